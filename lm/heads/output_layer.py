"""From context vectors to probabilities: what every head has below its mixture.

Where logits are one product and a fixed function of it, the loss is the one-pass loss of
:mod:`lm.heads.mixture_loss`. Where more is done to them, such as a temperature for every word, the formula
stands here as in the papers, and goes through chunks of tokens (:mod:`lm.heads.chunked_loss`).

N tokens · H hidden size · K components · E context size · V words.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lm.errors import ConfigError
from lm.heads.chunked_loss import Formula, chunked, chunked_loss, log_share
from lm.heads.config import HeadConfig
from lm.heads.links import Link
from lm.heads.loss_options import LossOptions, Output, rounded, tempered
from lm.heads.mixtape import WordGates
from lm.heads.mixture_loss import mixture_log_probs, mixture_loss, mixture_nll
from lm.heads.plif import PiecewiseLinear
from lm.heads.precision import precise, product
from lm.heads.temperature import WordTemperature

# Tensors of the size of a chunk's logits at the peak of differentiating a formula: 6 to 8 are alive, and what
# malloc does not give back in between makes 10 to 13 of them.
FORMULA_BUFFERS = 12


class Mixture(NamedTuple):
    """What the distributions of N tokens are made of."""

    contexts: Tensor  # (N, K, E)
    log_prior: Tensor  # (N, K) log π; (N, 1) zeros where logits are mixed
    states: Tensor  # (N, H) the hidden states that temperatures and gates are computed from


class OutputLayer(nn.Module):
    """The output matrix, its bias and whatever turns logits into probabilities.

    Args:
        config: see :class:`lm.heads.config.HeadConfig`.
        link: the link function of the kind of head.
        hidden_size: H.
        vocab_size: V.
    """

    rows_per_token: int  # of logits: K, or 1 where contexts are mixed
    weight: nn.Parameter  # (V, E)
    bias: nn.Parameter | None  # (V,)
    shift: nn.Parameter | None  # () of sigsoftmax
    gates: WordGates | None
    pointwise: PiecewiseLinear | None
    temperature: WordTemperature | None

    def __init__(self, config: HeadConfig, link: Link, hidden_size: int, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.hidden_size, self.vocab_size = hidden_size, vocab_size
        self.size = config.embedding_size or hidden_size
        self.components = config.components
        bf16 = config.products == "bfloat16"
        self.options = LossOptions(link, bf16_products=bf16, skip_below=config.skip_below)
        self._fixed = config.temperature_value if config.temperature == "constant" else 1.0

    def add_output(self, embedding: nn.Parameter | None) -> None:
        """Makes the parameters of this layer; ``embedding`` (V, E) is shared where ``config.tied``.

        Raises:
            ConfigError: if tying is asked for without an embedding of the right shape.
        """
        config, shape = self.config, (self.vocab_size, self.size)
        if not config.tied:
            self.weight = nn.Parameter(torch.empty(shape).uniform_(-0.1, 0.1))
        elif embedding is None or embedding.shape != shape:
            found = "none" if embedding is None else tuple(embedding.shape)
            raise ConfigError(
                f"head.tied: needs an embedding of shape {shape}, found {found};"
                " set head.embedding_size to the model's embedding size"
            )
        else:
            self.weight = embedding
        self.bias = nn.Parameter(torch.zeros(self.vocab_size)) if config.output_bias else None
        self.shift = nn.Parameter(torch.zeros(())) if config.learn_shift else None
        self.gates = self.pointwise = self.temperature = None
        if config.kind == "mixtape" and self.components > 1:
            self.gates = WordGates(config, self.hidden_size, self.vocab_size)
        if config.kind == "plif":
            self.pointwise = PiecewiseLinear(config.intervals, config.interval_range)
        if config.temperature not in ("none", "constant"):
            self.temperature = WordTemperature(config, self.hidden_size, self.vocab_size)

    @property
    def one_pass(self) -> bool:
        """Whether logits are one product and a fixed function of it."""
        return self.gates is None and self.pointwise is None and self.temperature is None

    @property
    def logit_buffers(self) -> int:
        """Tensors of the size of a chunk's logits that the loss holds at once."""
        return 1 if self.one_pass else FORMULA_BUFFERS

    @property
    def logit_bytes(self) -> int:
        """Bytes of a logit in them."""
        return self.options.entry_bytes if self.one_pass else 4

    def mixture_loss(
        self, mixture: Mixture, targets: Tensor, weights: Tensor, temperature: float = 1.0
    ) -> Tensor:
        """Σ w·(−log P(target)) in nats, a scalar, with logits divided by ``temperature``.

        targets and weights: (N,).
        """
        with torch.autocast(weights.device.type, enabled=False):
            if self.one_pass:
                contexts, output = self._tempered(mixture.contexts, temperature)
                return mixture_loss(contexts, mixture.log_prior, output, targets, weights, self.options)
            bf16 = self.options.bf16_products and torch.is_grad_enabled()
            formula = partial(self._nll, temperature=temperature, bf16=bf16)
            return chunked_loss(formula, [*mixture, targets], self.learned(), weights, self.chunk)

    @torch.no_grad()
    def mixture_nll(self, mixture: Mixture, targets: Tensor, temperature: float) -> Tensor:
        """−log P(target), (N,) nats, with logits divided by ``temperature``; exact, without gradients."""
        with torch.autocast(targets.device.type, enabled=False):
            if self.one_pass:
                contexts, output = self._tempered(mixture.contexts, temperature)
                return mixture_nll(contexts, mixture.log_prior, output, targets, self.options)
            return chunked(partial(self._nll, temperature=temperature), [*mixture, targets], self.chunk)

    def rounded(self) -> Tensor:
        """The output matrix as it is now, for products of :meth:`mixture_log_probs` in bfloat16."""
        return rounded(self.weight.detach())

    def mixture_log_probs(
        self, mixture: Mixture, temperature: float, operand: Tensor | None = None
    ) -> Tensor:
        """log P(v), (N, V), with logits divided by ``temperature``.

        Without gradients, products are in bfloat16 where the ``operand`` of :meth:`rounded` is given.
        """
        with torch.autocast(mixture.contexts.device.type, enabled=False):
            if self.one_pass and not torch.is_grad_enabled():
                contexts, output = self._tempered(mixture.contexts, temperature)
                options = replace(self.options, bf16_products=False)
                return mixture_log_probs(contexts, mixture.log_prior, output, options, operand)
            taken = None if torch.is_grad_enabled() else operand
            return self._whole(partial(self._log_probs, temperature=temperature, operand=taken), mixture)

    def joint_log_probs(self, mixture: Mixture) -> Tensor:
        """log π_k + log p_k(v), (N, K, V)."""
        with torch.autocast(mixture.contexts.device.type, enabled=False):
            return self._whole(self._joint, mixture)

    def word_temperatures(self, states: Tensor) -> Tensor:
        """What divides the logits at hidden states (N, H), (N, V)."""
        if self.temperature is None:
            return states.new_full((states.shape[0], self.vocab_size), self._fixed)
        with torch.autocast(states.device.type, enabled=False):
            tau: Tensor = self.temperature(states)
        return tau

    def mean_word_temperature(self, states: Tensor) -> Tensor:
        """Its mean over states and words, a scalar without gradient."""
        if self.temperature is None:
            return states.new_tensor(self._fixed)
        with torch.autocast(states.device.type, enabled=False):
            return self.temperature.mean(states, self.chunk)

    @property
    def chunk(self) -> int:
        """Tokens that go through the loss at once."""
        # only the one-pass loss keeps its logits in bfloat16
        options = self.options if self.one_pass else replace(self.options, bf16_products=False)
        return options.tokens_per_chunk(self.rows_per_token, self.vocab_size, self.weight.device.type)

    def _whole(self, formula: Formula, mixture: Mixture) -> Tensor:
        """A formula of all tokens: by chunks, unless gradients are wanted of it."""
        return formula(*mixture) if torch.is_grad_enabled() else chunked(formula, mixture, self.chunk)

    def _tempered(self, contexts: Tensor, temperature: float = 1.0) -> tuple[Tensor, Output]:
        """What gives the logits divided by ``temperature`` and by the constant one, at least float32."""
        bias, shift = (None if p is None else precise(p) for p in (self.bias, self.shift))
        return tempered(contexts, Output(precise(self.weight), bias, shift), temperature * self._fixed)

    def learned(self) -> list[nn.Parameter]:
        """The parameters below the mixture."""
        learned = [parameter for parameter in (self.weight, self.bias, self.shift) if parameter is not None]
        for module in (self.gates, self.pointwise, self.temperature):
            if module is not None:
                learned += module.parameters()
        return learned

    def _log_g(
        self,
        contexts: Tensor,
        states: Tensor,
        temperature: float,
        bf16: bool = False,
        operand: Tensor | None = None,
    ) -> Tensor:
        """log g of the logits of n tokens, (n, K, V); (n, 1, V) where they are mixed."""
        contexts, output = self._tempered(contexts, temperature)
        if self.gates is None:
            logits = product(contexts, output.weight, bf16, operand)
        else:
            logits = self.gates(contexts, states, output, bf16, operand)[:, None]
        if output.bias is not None:
            logits = logits + output.bias
        if self.temperature is not None:
            logits = logits * self.temperature(states).reciprocal()[:, None]
        if self.pointwise is not None:
            logits = self.pointwise(logits)
        return self.options.link.log(logits, output.shift)

    def _nll(
        self,
        contexts: Tensor,
        log_prior: Tensor,
        states: Tensor,
        targets: Tensor,
        temperature: float = 1.0,
        bf16: bool = False,
    ) -> Tensor:
        """−log P(target) of n tokens, (n,)."""
        log_g = self._log_g(contexts, states, temperature, bf16)
        return -(log_prior + log_share(log_g, targets)).logsumexp(1)

    def _joint(
        self,
        contexts: Tensor,
        log_prior: Tensor,
        states: Tensor,
        temperature: float = 1.0,
        operand: Tensor | None = None,
    ) -> Tensor:
        """log π_k + log p_k(v) of n tokens, (n, K, V)."""
        log_g = self._log_g(contexts, states, temperature, operand=operand)
        return log_g.log_softmax(2) + log_prior[..., None]

    def _log_probs(
        self,
        contexts: Tensor,
        log_prior: Tensor,
        states: Tensor,
        temperature: float,
        operand: Tensor | None = None,
    ) -> Tensor:
        """log P(v) of n tokens, (n, V)."""
        joint = self._joint(contexts, log_prior, states, temperature, operand)
        return joint[:, 0] if joint.shape[1] == 1 else joint.logsumexp(1)
