"""The output head: hidden states in, a distribution over the vocabulary out.

One class covers every kind; ``HEADS`` says what each kind mixes and through which link function.

    softmax, sigsoftmax   g(W h + b)
    sigmoid, relu         g(W h + b), the baselines of Kanai et al. (2018, Eq. 35, 34)
    moc                   softmax(W Σ_k π_k c_k + b)    (Yang et al. 2018, §2.5)
    mos, moss             Σ_k π_k g(W c_k + b)    (Yang et al. 2018, Eq. 2; Kanai et al. 2018, Eq. 19)

with contexts c_k = s · tanh(W_k h + b_k) and π = softmax of V h (sigsoftmax for moss). Everything stays in
the log domain: there is no log(p + ε), which would cap the loss, falsify gradients and raise measured rank.

N tokens · H hidden size · K components · E context size · V words.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from lm.errors import ConfigError
from lm.links import EXP, RELU, SIGMOID, SIGSOFTMAX, Link
from lm.mixture_loss import LossOptions, Output, mixture_log_probs, mixture_loss, mixture_nll, tempered
from lm.regularize import dropout_mask
from lm.schema import HeadConfig

__all__ = ["HEADS", "Head", "HeadConfig", "HeadParts"]


@dataclass(frozen=True)
class HeadParts:
    """What a kind of head is made of: one row of the registry."""

    mixes: Literal["nothing", "contexts", "probabilities"]
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
}


class Head(nn.Module):
    """A decoder head of any kind.

    Logits and probabilities are float32 or better whatever the precision of the model. For log-probabilities
    in float64 throughout, as ranks need them, ask ``copy.deepcopy(head).double()`` at ``hidden.double()``.

    Args:
        config: kind, K, E, tying, bias, dropout; see :class:`lm.schema.HeadConfig`.
        hidden_size: H, the size of the hidden states that the head reads.
        vocab_size: V.
        embedding: the (V, E) parameter to share when ``config.tied``.

    Raises:
        ConfigError: if tying is asked for without an embedding of the right shape.
    """

    def __init__(
        self, config: HeadConfig, hidden_size: int, vocab_size: int, embedding: nn.Parameter | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.parts = HEADS[config.kind]
        self.hidden_size, self.vocab_size = hidden_size, vocab_size
        size = self.size = config.embedding_size or hidden_size
        components = self.components = config.components
        self.projection: nn.Linear | None = None
        self.latent: nn.Linear | None = None
        self.prior: nn.Linear | None = None
        if self.parts.mixes == "nothing":
            if size != hidden_size:
                self.projection = nn.Linear(hidden_size, size, bias=False)
        else:
            self.latent = nn.Linear(hidden_size, components * size)
            if components > 1:
                self.prior = nn.Linear(hidden_size, components, bias=False)
        if config.tied:
            if embedding is None or embedding.shape != (vocab_size, size):
                found = "none" if embedding is None else tuple(embedding.shape)
                raise ConfigError(
                    f"head.tied: needs an embedding of shape {(vocab_size, size)}, found {found};"
                    " set head.embedding_size to the model's embedding size"
                )
            self.weight = embedding
        else:
            self.weight = nn.Parameter(torch.empty(vocab_size, size).uniform_(-0.1, 0.1))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if config.output_bias else None
        self.shift = nn.Parameter(torch.zeros(())) if config.learn_shift else None
        self.scale: nn.Parameter | float = config.context_scale
        if config.learn_context_scale:
            self.scale = nn.Parameter(torch.tensor(config.context_scale))
        self._options = LossOptions(
            self.parts.link, bf16_products=config.products == "bfloat16", skip_below=config.skip_below
        )

    def contexts(self, hidden: Tensor, streams: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The vectors that meet the output matrix, and how they are mixed.

        Latent dropout happens here, one mask for all time steps of a stream: with ``hidden`` of shape
        (T, B, H) a stream is a column; with (N, H), ``streams`` (N,) numbers the stream of every token
        (None: every token is its own).

        Returns:
            contexts (..., K, E), where K = 1 unless mos or moss; log π (..., K), or None for K = 1.
        """
        if self.latent is None:
            states = hidden if self.projection is None else self.projection(hidden)
            return self._drop(states, streams).unsqueeze(-2), None
        latent = self._drop(torch.tanh(self.latent(hidden)), streams) * self.scale
        latent = latent.unflatten(-1, (self.components, self.size))  # (..., K, E)
        if self.prior is None:
            return latent, None
        log_prior = self.parts.prior_link.log_normalised(self._precise(self.prior(hidden)))
        if self.parts.mixes == "contexts":
            prior = log_prior.exp().to(latent.dtype)
            return torch.einsum("...k,...ke->...e", prior, latent).unsqueeze(-2), None
        return latent, log_prior

    def loss(
        self, hidden: Tensor, targets: Tensor, weights: Tensor | None = None, streams: Tensor | None = None
    ) -> Tensor:
        """Σ w·(−log P(target)) in nats, a scalar. Scratch memory does not depend on the number of tokens.

        Args:
            hidden: (..., H).  targets: (...) word ids.  weights: (...) or None for ones.
            streams: see :meth:`contexts`.
        """
        contexts, log_prior = self._flat(hidden, streams)
        with torch.autocast(hidden.device.type, enabled=False):
            return mixture_loss(
                contexts,
                log_prior,
                self._output(),
                targets.reshape(-1),
                None if weights is None else weights.reshape(-1).to(contexts.dtype),
                self._options,
            )

    def nll(
        self,
        hidden: Tensor,
        targets: Tensor,
        streams: Tensor | None = None,
        component_temperature: float = 1.0,
    ) -> Tensor:
        """−log P(target) of every token in nats, shaped like ``targets``; exact products, no gradients.

        ``component_temperature`` is that of :meth:`log_probs`.
        """
        contexts, log_prior = self._flat(hidden, streams)
        with torch.autocast(hidden.device.type, enabled=False):
            contexts, output = tempered(contexts, self._output(), component_temperature)
            nll = mixture_nll(contexts, log_prior, output, targets.reshape(-1), self._options)
        return nll.view(targets.shape)

    def log_probs(
        self, hidden: Tensor, component_temperature: float = 1.0, bf16_products: bool = False
    ) -> Tensor:
        """log P(v) of every word, (..., V), normalised and at least float32.

        Without gradients, what it needs beside the result does not depend on the number of tokens, and the
        products may be in bfloat16.
        ``component_temperature`` divides the logits of every component. For a mixture that differs from
        tempering the mixed distribution, which callers do on the result.
        """
        contexts, log_prior = self._flat(hidden, None)
        if torch.is_grad_enabled():
            scores = self._component_scores(contexts, component_temperature)  # (N, K, V)
            single = log_prior.shape[1] == 1
            log_probs = scores[:, 0] if single else (scores + log_prior[..., None]).logsumexp(1)
        else:
            with torch.autocast(hidden.device.type, enabled=False):
                options = replace(self._options, bf16_products=bf16_products)
                contexts, output = tempered(contexts, self._output(), component_temperature)
                log_probs = mixture_log_probs(contexts, log_prior, output, options)
        return log_probs.view(*hidden.shape[:-1], self.vocab_size)

    def component_log_probs(self, hidden: Tensor) -> Tensor:
        """log π_k + log p_k(v), (..., K, V), at least float32; K = 1 unless mos or moss.

        Its logsumexp over K is :meth:`log_probs`, over V the log prior.
        """
        contexts, log_prior = self._flat(hidden, None)
        scores = self._component_scores(contexts, 1.0) + log_prior[..., None]
        return scores.view(*hidden.shape[:-1], *scores.shape[1:])

    def _component_scores(self, contexts: Tensor, temperature: float) -> Tensor:
        with torch.autocast(contexts.device.type, enabled=False):
            contexts, output = tempered(contexts, self._output(), temperature)
            return self.parts.link.log_normalised(output.logits(contexts), output.shift)

    def _output(self) -> Output:
        """Output matrix, bias and shift, at least float32."""
        bias, shift = (None if p is None else self._precise(p) for p in (self.bias, self.shift))
        return Output(self._precise(self.weight), bias, shift)

    def _flat(self, hidden: Tensor, streams: Tensor | None) -> tuple[Tensor, Tensor]:
        """Contexts (N, K, E) and log prior (N, K), at least float32."""
        contexts, log_prior = self.contexts(hidden, streams)
        contexts = self._precise(contexts).reshape(-1, *contexts.shape[-2:])
        if log_prior is None:
            return contexts, contexts.new_zeros(contexts.shape[:2])
        return contexts, log_prior.reshape(contexts.shape[:2])

    def _drop(self, states: Tensor, streams: Tensor | None) -> Tensor:
        rate = self.config.latent_dropout
        if not self.training or rate == 0:
            return states
        if streams is not None:
            count = int(streams.max()) + 1 if streams.numel() else 0
            return states * dropout_mask(states, (count, states.shape[-1]), rate)[streams]
        shape = states.shape if states.dim() < 3 else (1, *states.shape[1:])
        return states * dropout_mask(states, shape, rate)

    @staticmethod
    def _precise(tensor: Tensor) -> Tensor:
        return tensor if tensor.dtype == torch.float64 else tensor.float()
