"""The output head: hidden states in, a distribution over the vocabulary out.

One class covers every kind; ``HEADS`` says what each kind mixes and through which link function.

    softmax, sigsoftmax   g(W h + b)
    sigmoid, relu         g(W h + b), the baselines of Kanai et al. (2018, Eq. 35, 34)
    moc                   softmax(W Σ_k π_k c_k + b)    (Yang et al. 2018, §2.5)
    mos, moss             Σ_k π_k g(W c_k + b)    (Yang et al. 2018, Eq. 2; Kanai et al. 2018, Eq. 19)
    mixtape               softmax of logits that gates of every word mix    (:mod:`lm.heads.mixtape`)
    plif                  softmax(f(W h + b)) with a learned f    (:mod:`lm.heads.plif`)
    doc                   mos with contexts of several layers    (Takase et al. 2018)

with contexts c_k = s · tanh(W_k h + b_k) and π = softmax of V h (sigsoftmax for moss). Everything stays in
the log domain: there is no log(p + ε), which would cap the loss, falsify gradients and raise measured rank.

The logits z of any of them may be divided by a temperature, one number or one for every word in its context
(:mod:`lm.heads.temperature`).

N tokens · H hidden size · K components · E context size · V words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from lm.errors import ConfigError
from lm.heads.config import HeadConfig
from lm.heads.links import EXP, RELU, SIGMOID, SIGSOFTMAX, Link
from lm.heads.output_layer import Mixture, OutputLayer
from lm.heads.precision import precise
from lm.heads.states import Layers, States
from lm.regularize import dropout_mask

__all__ = ["HEADS", "Head", "HeadConfig", "HeadParts"]


@dataclass(frozen=True)
class HeadParts:
    """What a kind of head is made of: one row of the registry."""

    mixes: Literal["nothing", "contexts", "logits", "probabilities"]
    link: Link
    prior_link: Link = EXP


HEADS: dict[str, HeadParts] = {
    "softmax": HeadParts("nothing", EXP),
    "sigsoftmax": HeadParts("nothing", SIGSOFTMAX),
    "sigmoid": HeadParts("nothing", SIGMOID),
    "relu": HeadParts("nothing", RELU),
    "moc": HeadParts("contexts", EXP),
    "mos": HeadParts("probabilities", EXP),
    "moss": HeadParts("probabilities", SIGSOFTMAX, prior_link=SIGSOFTMAX),
    "mixtape": HeadParts("logits", EXP),
    "plif": HeadParts("nothing", EXP),
    "doc": HeadParts("probabilities", EXP),
}


class Head(OutputLayer):
    """A decoder head of any kind.

    Logits and probabilities are float32 or better whatever the precision of the model. For log-probabilities
    in float64 throughout, as ranks need them, ask ``copy.deepcopy(head).double()`` at ``hidden.double()``.

    Args:
        config: kind, K, E, tying, bias, dropout; see :class:`lm.heads.config.HeadConfig`.
        hidden_size: H, the size of the last layer's hidden states.
        vocab_size: V.
        embedding: the (V, E) parameter to share when ``config.tied``.
        lower_sizes: the sizes of the layers below the last that the model can hand over, the highest first.
            A doc head reads the first few of them, as many as ``config.lower_components`` has, from the
            ``Layers`` that it gets. Every other head takes a plain tensor as well.

    Raises:
        ConfigError: if tying is asked for without an embedding of the right shape, or lower layers that the
            model has not.
    """

    def __init__(
        self,
        config: HeadConfig,
        hidden_size: int,
        vocab_size: int,
        embedding: nn.Parameter | None = None,
        lower_sizes: Sequence[int] = (),
    ) -> None:
        super().__init__(config, HEADS[config.kind].link, hidden_size, vocab_size)
        self.parts = HEADS[config.kind]
        size, components = self.size, self.components
        self.rows_per_token = components if self.parts.mixes in ("logits", "probabilities") else 1
        self.projection: nn.Linear | None = None
        self.latent: nn.Linear | None = None
        self.prior: nn.Linear | None = None
        if self.parts.mixes == "nothing":
            if size != hidden_size:
                self.projection = nn.Linear(hidden_size, size, bias=False)
        else:
            self.latent = nn.Linear(hidden_size, (components - sum(config.lower_components)) * size)
            if components > 1 and self.parts.mixes != "logits":
                self.prior = nn.Linear(hidden_size, components, bias=False)
        self.lower_sizes = tuple(lower_sizes[: len(config.lower_components)])
        if len(self.lower_sizes) < len(config.lower_components):
            raise ConfigError(
                f"head.lower_components: {config.kind} reads {len(config.lower_components)} layers below the"
                f" last, and this model hands over {len(lower_sizes)}; choose another head.kind, such as mos"
            )
        self.lower = nn.ModuleList(
            nn.Linear(lower, count * size)
            for lower, count in zip(self.lower_sizes, config.lower_components, strict=True)
        )
        self.add_output(embedding)
        self.scale: nn.Parameter | float = config.context_scale
        if config.learn_context_scale:
            self.scale = nn.Parameter(torch.tensor(config.context_scale))

    def contexts(self, hidden: States, streams: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The vectors that meet the output matrix, and how they are mixed.

        Latent dropout happens here, one mask for all time steps of a stream: with ``hidden`` of shape
        (T, B, H) a stream is a column; with (N, H), ``streams`` (N,) numbers the stream of every token
        (None: every token is its own).

        Returns:
            contexts (..., K, E), where K = 1 unless mos, moss, doc or mixtape; log π (..., K), or None where
            probabilities are not mixed.
        """
        last, lower = Layers.of(hidden)
        if self.latent is None:
            if self.projection is None:  # these states have had their own dropout
                return last.unsqueeze(-2), None
            return self._drop(self.projection(last), streams).unsqueeze(-2), None
        latent = self.latent(last)
        if self.lower:
            others = (layer(states) for layer, states in zip(self.lower, lower, strict=True))
            latent = torch.cat((latent, *others), -1)
        copies = self.components if self.config.shared_latent_mask else 1
        latent = self._drop(torch.tanh(latent), streams, copies) * self.scale
        latent = latent.unflatten(-1, (self.components, self.size))  # (..., K, E)
        if self.prior is None:
            return latent, None
        log_prior = self.parts.prior_link.log_normalised(precise(self.prior(last)))
        if self.parts.mixes == "contexts":
            prior = log_prior.exp().to(latent.dtype)
            return torch.einsum("...k,...ke->...e", prior, latent).unsqueeze(-2), None
        return latent, log_prior

    def objective(
        self, hidden: States, targets: Tensor, streams: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What training minimises, and :meth:`loss`, which is a part of it: sums over tokens in nats.

        They are the same but for ``config.temperature_loss_scaling`` and ``config.prior_penalty``.
        """
        mixture, config = self._flat(hidden, streams), self.config
        weights = mixture.contexts.new_ones(targets.numel())
        objective = loss = self.mixture_loss(mixture, targets.reshape(-1), weights)
        if config.temperature_loss_scaling:
            objective = objective * self.mean_word_temperature(mixture.states)
        if config.prior_penalty:
            of_streams = config.prior_penalty_of == "streams"
            penalty = prior_penalty(
                mixture.log_prior, _streams(Layers.of(hidden).last, streams) if of_streams else None
            )
            objective = objective + targets.numel() * config.prior_penalty * penalty
        return objective, loss

    def loss(
        self,
        hidden: States,
        targets: Tensor,
        weights: Tensor | None = None,
        streams: Tensor | None = None,
        component_temperature: float = 1.0,
    ) -> Tensor:
        """Σ w·(−log P(target)) in nats, a scalar. Scratch memory does not depend on the number of tokens.

        Args:
            hidden: (..., H).  targets: (...) word ids.  weights: (...) or None for ones.
            streams: see :meth:`contexts`.  component_temperature: that of :meth:`log_probs`.
        """
        mixture = self._flat(hidden, streams)
        flat = mixture.contexts.new_ones(targets.numel()) if weights is None else weights.reshape(-1)
        flat = flat.to(mixture.contexts.dtype)
        return self.mixture_loss(mixture, targets.reshape(-1), flat, component_temperature)

    def nll(
        self,
        hidden: States,
        targets: Tensor,
        streams: Tensor | None = None,
        component_temperature: float = 1.0,
    ) -> Tensor:
        """−log P(target) of every token in nats, shaped like ``targets``; exact products, no gradients.

        ``component_temperature`` is that of :meth:`log_probs`.
        """
        mixture = self._flat(hidden, streams)
        return self.mixture_nll(mixture, targets.reshape(-1), component_temperature).view(targets.shape)

    def log_probs(
        self, hidden: States, component_temperature: float = 1.0, operand: Tensor | None = None
    ) -> Tensor:
        """log P(v) of every word, (..., V), normalised and at least float32.

        Without gradients, what it needs beside the result does not depend on the number of tokens, and the
        products are in bfloat16 if the ``operand`` is given that :meth:`rounded` returns.
        ``component_temperature`` divides the logits of every component. For a mixture that differs from
        tempering the mixed distribution, which callers do on the result.
        """
        mixture = self._flat(hidden, None)
        log_probs = self.mixture_log_probs(mixture, component_temperature, operand)
        return log_probs.view(*Layers.of(hidden).last.shape[:-1], self.vocab_size)

    def component_log_probs(self, hidden: States) -> Tensor:
        """log π_k + log p_k(v), (..., K, V), at least float32; K = 1 unless mos, moss or doc.

        Its logsumexp over K is :meth:`log_probs`, over V the log prior.
        """
        joint = self.joint_log_probs(self._flat(hidden, None))
        return joint.view(*Layers.of(hidden).last.shape[:-1], *joint.shape[1:])

    def temperatures(self, hidden: States) -> Tensor:
        """Divisors of the logits, (..., V); ones for a head without temperature."""
        last = Layers.of(hidden).last
        return self.word_temperatures(self._rows(last)).view(*last.shape[:-1], self.vocab_size)

    def _flat(self, hidden: States, streams: Tensor | None) -> Mixture:
        """A row for every token, at least float32."""
        contexts, log_prior = self.contexts(hidden, streams)
        contexts = precise(contexts).reshape(-1, *contexts.shape[-2:])
        if log_prior is None:
            log_prior = contexts.new_zeros(len(contexts), 1)
        log_prior = log_prior.reshape(len(contexts), log_prior.shape[-1])
        return Mixture(contexts, log_prior, self._rows(Layers.of(hidden).last))

    def _rows(self, last: Tensor) -> Tensor:
        """The last layer's states (N, H), which temperatures and gates read, at least float32."""
        return precise(last).reshape(-1, self.hidden_size)

    def _drop(self, states: Tensor, streams: Tensor | None, copies: int = 1) -> Tensor:
        """Latent dropout; the mask of the first of ``copies`` equal parts of every state is that of all."""
        rate = self.config.latent_dropout
        if not self.training or rate == 0:
            return states
        width = states.shape[-1] // copies
        if streams is not None:
            count = int(streams.max()) + 1 if streams.numel() else 0
            mask = dropout_mask(states, (count, width), rate)[streams]
        else:
            places = states.shape[:-1] if states.dim() < 3 else (1, *states.shape[1:-1])
            mask = dropout_mask(states, (*places, width), rate)
        return states * (mask if copies == 1 else torch.cat([mask] * copies, -1))


def prior_penalty(log_prior: Tensor, streams: Tensor | None = None) -> Tensor:
    """β of Takase et al. (2018): (std(B) / avg(B))² of B_k = Σ π_k over the tokens of log π (N, K).

    With ``streams`` (N,), the stream of every token, it is what the authors' code computes (main.py of
    nttcslab-nlp/doc_lm): B is summed over the tokens of each stream, and the variance of all B·K sums,
    unbiased, is taken K − 1 times.
    """
    shares, components = log_prior.exp(), log_prior.shape[-1]
    if streams is None:
        totals = shares.sum(0)
        return totals.var(correction=0) / totals.mean().square()
    totals = shares.new_zeros(int(streams.max()) + 1, components).index_add(0, streams, shares)
    return (components - 1) * totals.var() / totals.mean().square()


def _streams(hidden: Tensor, streams: Tensor | None) -> Tensor:
    """The stream of every token, (N,): a column of (T, B, H), and every token its own of (N, H)."""
    if streams is not None:
        return streams
    columns = torch.arange(hidden.shape[-2], device=hidden.device)
    return columns.repeat(hidden.numel() // (hidden.shape[-1] * len(columns)))
