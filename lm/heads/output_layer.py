"""Output layer: the part of every head from context vectors to probabilities.

If logits are a fixed function of one product, the loss is the one-pass loss of :mod:`lm.heads.mixture_loss`.
Otherwise, for example with a temperature for every word, the formula is here as in the papers. The loss then
processes it in chunks of tokens (:mod:`lm.heads.chunked_loss`).

N tokens · H hidden size · K components · E context size · V words.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from lm.errors import require
from lm.heads.chunked_loss import Formula, chunked, chunked_loss, log_share, mixed_log_probs
from lm.heads.config import HeadConfig
from lm.heads.cpr import replaced, reranked
from lm.heads.facets import partitioned
from lm.heads.loss_options import LossOptions, Output, rounded, tempered
from lm.heads.mixer import Mixture
from lm.heads.mixtape import WordGates
from lm.heads.mixture_loss import one_pass_log_probs, one_pass_loss, one_pass_nll
from lm.heads.plif import PiecewiseLinear
from lm.heads.precision import precise, product
from lm.heads.rows import LOWEST
from lm.heads.temperature import WordTemperature

# Tensors of the size of a chunk's logits at the peak of differentiating a formula: 6 to 8 are alive, and
# memory that malloc does not return raises that to 10 to 13.
FORMULA_BUFFERS = 12
GATHERED_COPIES = 3  # output vectors of likely words, their gradients, and a copy
PLAIN_TOKENS = 2  # up to this many tokens the plain formula is faster than the chunked one


class PastDecoder(nn.Module):
    """Past decode regularisation (Brahma 2018): the present word from the next word's distribution.

    It predicts through the output matrix W: softmax(W tanh(A Wᵀp + c) + b).
    """

    def __init__(self, size: int, vocab_size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(size, size)  # A, c
        self.bias = nn.Parameter(torch.zeros(vocab_size))  # b

    def forward(self, log_probs: Tensor, weight: Tensor, words: Tensor, bf16: bool = False) -> Tensor:
        """−log of the probability of the present words (N,), from log p (N, V) of the next and W (V, E)."""
        expected = product(log_probs.exp(), weight.mT, bf16)
        state = torch.tanh(product(expected, precise(self.layer.weight)) + precise(self.layer.bias))
        logits = product(state, weight, bf16) + precise(self.bias)
        return nn.functional.cross_entropy(logits, words, reduction="none")


@dataclass(frozen=True)
class OutputLayer:
    """The part of a head below its mixture; its modules and parameters are the head's own."""

    config: HeadConfig
    options: LossOptions
    rows_per_token: int  # rows of logits: K, or 1 if contexts are mixed
    weight: nn.Parameter  # (V, E)
    bias: nn.Parameter | None  # (V,)
    shift: nn.Parameter | None  # () of sigsoftmax
    gates: WordGates | None
    pointwise: PiecewiseLinear | None
    temperature: WordTemperature | None
    past: PastDecoder | None

    @property
    def divisor(self) -> float:
        """Divisor of all logits: the constant temperature, or 1."""
        return self.config.temperature_value if self.config.temperature == "constant" else 1.0

    @property
    def one_pass(self) -> bool:
        """True if logits are a fixed function of one product."""
        plain = self.gates is None and self.pointwise is None and self.temperature is None
        return plain and self.config.partitions == 1 and not self.dynamic_contexts

    @property
    def dynamic_contexts(self) -> int:
        """Number of parts of the vocabulary that depend on the token and have contexts of their own."""
        return len(self.config.candidates) + self.config.source_contexts

    @property
    def gathered(self) -> int:
        """Memory per token of the gathered output vectors of likely words in training, in numbers."""
        return GATHERED_COPIES * max(self.config.candidates, default=0) * self.weight.shape[1]

    @property
    def penalised(self) -> bool:
        """True if the training loss reads the probability of more words than the target."""
        return self.config.label_smoothing > 0 or self.config.unlikelihood > 0 or self.past is not None

    @property
    def trains_in_one_pass(self) -> bool:
        """True if the training loss is the one-pass loss, whose only buffer may hold bfloat16."""
        return self.one_pass and not self.penalised

    @property
    def logit_buffers(self) -> int:
        """Number of tensors of the size of a chunk's logits that the training loss holds at once."""
        return 1 if self.trains_in_one_pass else FORMULA_BUFFERS

    @property
    def logit_bytes(self) -> int:
        """Size of a logit in the buffers, in bytes."""
        return self.options.entry_bytes if self.trains_in_one_pass else 4

    def loss(self, mixture: Mixture, targets: Tensor, weights: Tensor, temperature: float = 1.0) -> Tensor:
        """Σ w·(−log P(target)) in nats, a scalar, with logits divided by ``temperature``.

        targets and weights: (N,).
        """
        with torch.autocast(weights.device.type, enabled=False):
            if self.one_pass:
                contexts, output = self.tempered(mixture.contexts, temperature)
                return one_pass_loss(contexts, mixture.log_prior, output, targets, weights, self.options)
            bf16 = self._rounds(mixture.contexts)
            formula = partial(self._nll, temperature=temperature, bf16=bf16)
            return chunked_loss(formula, [*mixture, targets], self.learned(), weights, self.chunk)

    def penalised_loss(
        self,
        mixture: Mixture,
        targets: Tensor,
        weights: Tensor,
        repeated: Tensor | None,
        present: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Σ w · (the training loss of a token), and Σ w · (−log P(target)) without gradients.

        The training loss has label smoothing, unlikelihood and past decoding. With smoothing ε and weights α
        and λ, that of a token y after the words C, ``repeated`` (N, C), the last of which is x, ``present``
        (N,), is::

            −(1 − ε) log P(y) − ε/V Σ_v log P(v) − α Σ_{c ∈ C} log(1 − P(c)) − λ log Q_P(x)

        (Szegedy et al. 2016, § 7; Welleck et al. 2020, Eq. 5; Brahma 2018). Q is that of the past decoder.
        Entries of ``repeated`` below 0 are none.
        """
        with torch.autocast(weights.device.type, enabled=False):
            bf16 = self._rounds(mixture.contexts)
            formula = partial(self._penalised, bf16=bf16)
            if repeated is None or not self.config.unlikelihood:
                repeated = targets.new_empty(len(targets), 0)
            if present is None:
                require(self.past is None, "head.past_decode: needs the present words; pass present")
                present = targets
            words = [targets, repeated, present]
            sums = chunked_loss(formula, [*mixture, *words], self.learned(), weights, self.chunk)
            return sums[0], sums[1].detach()

    @torch.no_grad()
    def nll(self, mixture: Mixture, targets: Tensor, temperature: float) -> Tensor:
        """−log P(target), (N,) nats, with logits divided by ``temperature``; exact, without gradients."""
        with torch.autocast(targets.device.type, enabled=False):
            if self.one_pass:
                contexts, output = self.tempered(mixture.contexts, temperature)
                return one_pass_nll(contexts, mixture.log_prior, output, targets, self.options)
            return chunked(partial(self._nll, temperature=temperature), [*mixture, targets], self.chunk)

    def rounded(self) -> Tensor:
        """The current output matrix rounded to bfloat16, as operand of :meth:`log_probs`."""
        return rounded(self.weight.detach())

    def log_probs(self, mixture: Mixture, temperature: float, operand: Tensor | None = None) -> Tensor:
        """log P(v), (N, V), with logits divided by ``temperature``.

        Without gradients, products are in bfloat16 if ``operand``, from :meth:`rounded`, is given.
        """
        with torch.autocast(mixture.contexts.device.type, enabled=False):
            if self.one_pass and len(mixture.contexts) > PLAIN_TOKENS and not torch.is_grad_enabled():
                contexts, output = self.tempered(mixture.contexts, temperature)
                options = replace(self.options, bf16_products=False)
                return one_pass_log_probs(contexts, mixture.log_prior, output, options, operand)
            taken = None if torch.is_grad_enabled() else operand
            return self._whole(partial(self._log_probs, temperature=temperature, operand=taken), mixture)

    def joint_log_probs(self, mixture: Mixture) -> Tensor:
        """log π_k + log p_k(v), (N, K, V)."""
        with torch.autocast(mixture.contexts.device.type, enabled=False):
            return self._whole(self._joint, mixture)

    def word_temperatures(self, states: Tensor) -> Tensor:
        """Temperatures that divide the logits, (N, V), at hidden states (N, H)."""
        if self.temperature is None:
            return states.new_full((len(states), len(self.weight)), self.divisor)
        with torch.autocast(states.device.type, enabled=False):
            tau: Tensor = self.temperature(states)
        return tau

    def mean_word_temperature(self, states: Tensor) -> Tensor:
        """Mean temperature over states and words, a scalar without gradient."""
        if self.temperature is None:
            return states.new_tensor(self.divisor)
        with torch.autocast(states.device.type, enabled=False):
            return self.temperature.mean(states, self.chunk)

    @property
    def chunk(self) -> int:
        """Number of tokens in a chunk of the loss."""
        options = self.options if self.trains_in_one_pass else replace(self.options, bf16_products=False)
        tokens = options.tokens_per_chunk(self.rows_per_token, len(self.weight), self.weight.device.type)
        logits = self.rows_per_token * len(self.weight) * self.logit_buffers
        return max(1, tokens * logits // (logits + self.gathered))

    def _rounds(self, contexts: Tensor) -> bool:
        """True if products of a formula are in bfloat16: in training, and not in float64."""
        return self.options.bf16_products and torch.is_grad_enabled() and contexts.dtype != torch.float64

    def _whole(self, formula: Formula, mixture: Mixture) -> Tensor:
        """Result of a formula for all tokens: in chunks, or at once if gradients are enabled."""
        return formula(*mixture) if torch.is_grad_enabled() else chunked(formula, mixture, self.chunk)

    def tempered(self, contexts: Tensor, temperature: float = 1.0) -> tuple[Tensor, Output]:
        """Contexts and output for logits divided by ``temperature`` and ``divisor``, at least float32."""
        bias, shift = (None if p is None else precise(p) for p in (self.bias, self.shift))
        return tempered(contexts, Output(precise(self.weight), bias, shift), temperature * self.divisor)

    def learned(self) -> list[nn.Parameter]:
        """Parameters of the output layer."""
        learned = [parameter for parameter in (self.weight, self.bias, self.shift) if parameter is not None]
        for module in (self.gates, self.pointwise, self.temperature, self.past):
            if module is not None:
                learned += module.parameters()
        return learned

    def _log_g(
        self, mixture: Mixture, temperature: float, bf16: bool = False, operand: Tensor | None = None
    ) -> Tensor:
        """log g of the logits of n tokens, (n, K, V), or (n, 1, V) if logits are mixed."""
        contexts, output = self.tempered(mixture.contexts, temperature)
        own = contexts[:, :0]  # of parts that depend on the token
        if count := self.dynamic_contexts:
            first, own, others = contexts.split((1, count, contexts.shape[1] - count - 1), 1)
            contexts = torch.cat((first, others), 1)
        if self.gates is not None:
            logits = self.gates(contexts, mixture.states, output, bf16, operand)[:, None]
        elif self.config.partitions > 1:
            logits = partitioned(contexts, output.weight, self.config.partitions, bf16, operand)
        else:
            logits = product(contexts, output.weight, bf16, operand)
        if output.bias is not None:
            logits = logits + output.bias
        if count:
            changed = reranked(logits[:, 0], own, output, self.config.candidates)
            changed = replaced(changed, mixture.words, mixture.word_logits / (temperature * self.divisor))
            logits = torch.cat((changed[:, None], logits[:, 1:]), 1)
        if self.temperature is not None:
            logits = logits * self.temperature(mixture.states).reciprocal()[:, None]
        if self.pointwise is not None:
            logits = self.pointwise(logits)
        return self.options.link.log(logits, output.shift)

    def _nll(self, *rows: Tensor, temperature: float = 1.0, bf16: bool = False) -> Tensor:
        """−log P(target) of n tokens, (n,). rows: of the mixture, and targets (n,)."""
        mixture, (targets,) = _of(rows)
        log_g = self._log_g(mixture, temperature, bf16)
        return -(mixture.log_prior + log_share(log_g, targets)).logsumexp(1)

    def _penalised(self, *rows: Tensor, bf16: bool) -> Tensor:
        """The losses of :meth:`penalised_loss` of n tokens, (n, 2).

        rows: of the mixture, targets (n,), repeated (n, C), present (n,).
        """
        mixture, (targets, repeated, present) = _of(rows)
        config, log_g = self.config, self._log_g(mixture, 1.0, bf16)
        log_probs = mixed_log_probs(log_g, mixture.log_prior)  # (n, V)
        nll = -log_probs.gather(1, targets[:, None])[:, 0]
        loss = (1 - config.label_smoothing) * nll
        if config.label_smoothing:
            loss = loss - config.label_smoothing * log_probs.mean(1)
        if repeated.shape[1]:
            unlikely = log_of_rest(log_probs, repeated.clamp(min=0))
            loss = loss - config.unlikelihood * unlikely.masked_fill(repeated < 0, 0).sum(1)
        if self.past is not None:
            loss = loss + config.past_decode * self.past(log_probs, precise(self.weight), present, bf16)
        return torch.stack((loss, nll.detach()), 1)

    def _joint(self, *rows: Tensor, temperature: float = 1.0, operand: Tensor | None = None) -> Tensor:
        """log π_k + log p_k(v) of n tokens, (n, K, V). rows: of the mixture."""
        mixture, _ = _of(rows)
        log_g = self._log_g(mixture, temperature, operand=operand)
        return log_g.log_softmax(2) + mixture.log_prior[..., None]

    def _log_probs(self, *rows: Tensor, temperature: float, operand: Tensor | None = None) -> Tensor:
        """log P(v) of n tokens, (n, V). rows: of the mixture."""
        joint = self._joint(*rows, temperature=temperature, operand=operand)
        return joint[:, 0] if joint.shape[1] == 1 else joint.logsumexp(1)


def _of(rows: Sequence[Tensor]) -> tuple[Mixture, Sequence[Tensor]]:
    """The mixture of n tokens, and the tensors after it, from n rows of each."""
    count = len(Mixture._fields)
    return Mixture(*rows[:count]), rows[count:]


def log_of_rest(log_probs: Tensor, words: Tensor) -> Tensor:
    """log(1 − P(w)) of words (n, C) of each of n distributions log P (n, V): (n, C).

    At most one word of a distribution has more than half of it. Its rest is the sum of all others, which is
    exact, with its gradient, also where P(w) is rounded to 1.
    """
    own = log_probs.gather(1, words)
    small = own <= -math.log(2)  # where 1 − P is exact enough
    rest = torch.log1p(-own.masked_fill(~small, -1.0).exp())
    rows = (~small).any(1).nonzero()[:, 0]
    if not len(rows):
        return rest
    likely = words[rows].gather(1, own[rows].argmax(1, keepdim=True))
    others = log_probs[rows].scatter(1, likely, LOWEST).logsumexp(1)
    of_likely = rest.new_zeros(len(rest)).index_copy(0, rows, others.to(rest.dtype))
    return torch.where(small, rest, of_likely[:, None])


def words_before(targets: Tensor) -> Tensor:
    """Different words before each token of sequences (R, T), other than the token: (R, T, T), -1 for none.

    These are the negative candidates of Welleck et al. (2020, Eq. 6).
    """
    same = targets[:, :, None] == targets[:, None, :]  # (R, T, T)
    before = torch.ones_like(same[0]).tril(-1)  # column j before row t
    first = ~(same & before).any(2)  # no earlier occurrence
    wanted = before & ~same & first[:, None, :]
    return targets[:, None, :].expand_as(same).masked_fill(~wanted, -1)
