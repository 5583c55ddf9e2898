"""Mixer: the part of a head from hidden states to context vectors and their prior.

N tokens · H hidden size · K components · E context size.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lm.heads.config import HeadConfig
from lm.heads.facets import FacetInputs
from lm.heads.links import Link
from lm.heads.precision import precise
from lm.heads.states import Layers, States
from lm.regularize import dropout_mask


class Mixture(NamedTuple):
    """Contexts, prior and hidden states of N tokens, which determine their distributions."""

    contexts: Tensor  # (N, K, E), or more where parts of the vocabulary have their own
    log_prior: Tensor  # (N, K) log π; (N, 1) zeros where logits are mixed
    states: Tensor  # (N, H) the hidden states that temperatures and gates are computed from
    words: Tensor  # (N, M) words of the source, (N, 0) unless the head reads them
    word_logits: Tensor  # (N, M) their logits in the first component


@dataclass(frozen=True)
class Mixer:
    """The part of a head above the output matrix; its layers and parameters are the head's own.

    A head mixes nothing if ``latent`` is None. Otherwise it mixes contexts with ``mixes_contexts``, and
    distributions or logits without.
    """

    config: HeadConfig
    size: int  # E
    training: bool
    projection: nn.Linear | None
    facets: FacetInputs | None
    latent: nn.Linear | None
    lower: nn.ModuleList  # a linear layer for each layer below the last that is read
    prior: nn.Linear | None
    prior_link: Link
    scale: Tensor | float
    mixes_contexts: bool

    def contexts(self, hidden: States, streams: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Context vectors, which the output matrix multiplies, and their log prior.

        Latent dropout uses one mask for all time steps of a stream. With ``hidden`` of shape (T, B, H), a
        stream is a column. With (N, H), ``streams`` (N,) numbers the stream of every token, and None makes
        every token its own stream.

        Returns:
            Contexts (..., K, E), where K = 1 except for mos, moss, doc, mixtape, mfs and cpr, and log π
            (..., K), None unless probabilities are mixed. After the first context, mfs and cpr have those of
            parts of the vocabulary.
        """
        last, lower, _ = Layers.of(hidden).down_to(self.config.lower_layers)
        if self.latent is None:
            if self.projection is None:  # dropout was applied to these states before
                return last.unsqueeze(-2), None
            return self._drop(self.projection(last), streams).unsqueeze(-2), None
        read = self.read(hidden)
        latent = self.latent(read)
        if self.lower:
            others = (layer(states) for layer, states in zip(self.lower, lower, strict=True))
            latent = torch.cat((latent, *others), -1)
        copies = self.config.components if self.config.shared_latent_mask else 1
        if self.config.context_activation == "tanh":
            latent = torch.tanh(latent)
        latent = self._drop(latent, streams, copies) * self.scale
        latent = latent.unflatten(-1, (-1, self.size))  # (..., K, E)
        if self.prior is None:
            return latent, None
        log_prior = self.prior_link.log_normalised(precise(self.prior(read)))
        if self.mixes_contexts:
            prior = log_prior.exp().to(latent.dtype)
            return torch.einsum("...k,...ke->...e", prior, latent).unsqueeze(-2), None
        return latent, log_prior

    def read(self, hidden: States) -> Tensor:
        """Input of contexts and prior of a mixture: last layer (..., H), or q (..., 2 H) for mfs and cpr."""
        states = Layers.of(hidden).down_to(self.config.lower_layers)
        return states.last if self.facets is None else self.facets(states)

    def mixture(self, hidden: States, streams: Tensor | None = None) -> Mixture:
        """Contexts, log prior and states with one row a token, at least float32, without words."""
        contexts, log_prior = self.contexts(hidden, streams)
        contexts = precise(contexts).reshape(-1, *contexts.shape[-2:])
        if log_prior is None:
            log_prior = contexts.new_zeros(len(contexts), 1)
        none = contexts.new_zeros(len(contexts), 0)
        log_prior = log_prior.reshape(len(contexts), log_prior.shape[-1])
        return Mixture(contexts, log_prior, rows_of_last(hidden), none.long(), none)

    def _drop(self, states: Tensor, streams: Tensor | None, copies: int = 1) -> Tensor:
        """Latent dropout; all ``copies`` equal parts of a state share one mask."""
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


def rows_of_last(hidden: States) -> Tensor:
    """Last layer's states (N, H), at least float32, for temperatures and gates."""
    last = Layers.of(hidden).last
    return precise(last).reshape(-1, last.shape[-1])
