"""Use of the components of a mixture: shares by the prior, and the preferred words of each.

n tokens · K components · V words.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm.errors import DataError
from lm.heads.head import Head
from lm.heads.states import Layers
from lm.results import Merged

WORDS = 10  # shown per component
SAMPLED = 1 << 27  # numbers π_k·p_k that a short analysis computes, a few seconds of one processor
_BLOCK = 8 << 20  # numbers of a block of (n, K, V); 64 MB of float64

_States = Iterable[tuple[Layers, Tensor]]  # hidden states (n, ·) of blocks of a text, and the targets (n,)


@dataclass(frozen=True)
class PriorUse:
    """Statistics of a prior π over K components.

    ``prior_entropy`` is the mean entropy of π in nats, at most log K. ``prior_perplexity``, its exponential,
    is the number of components that a token mixes. ``usage`` is the mean of π, and ``usage_entropy`` its
    entropy. ``effective_components``, the exponential, is the number in use over the whole text.
    """

    tokens: int
    components: int
    prior_entropy: float
    prior_perplexity: float
    usage: Sequence[float]
    usage_entropy: float
    effective_components: float


@dataclass(frozen=True)
class PreferredWord:
    """A word of a component: the component's share of its expected count, by the usage, and contribution."""

    word: str
    share: float
    ratio: float
    contribution: float


@dataclass(frozen=True)
class PredictionUse:
    """Statistics of the predictions p_k of K components.

    Let S_k(v) = Σ_t π_k(t) p_k(v|t) be the expected count of v from component k. Let p̄_k and p̄ be the
    normalised S_k and Σ_k S_k. The preferred words of component k have the largest contributions
    p̄_k(v) log(p̄_k(v) / p̄(v)) to KL(p̄_k ‖ p̄). A contribution is the log ratio of the component's share of the
    word to its share of all words, weighted by p̄_k(v). So neither rare words with extreme ratios come first,
    nor frequent words that every component predicts.

    ``posterior_usage`` is the mean of π_k p_k(y) / P(y) at the targets y, and ``posterior_entropy`` the mean
    entropy. ``specialisation`` is KL(p̄_k ‖ p̄) in nats. ``mutual_information`` of component and word is
    Σ_k usage_k · specialisation_k.
    """

    posterior_usage: Sequence[float]
    posterior_entropy: float
    mutual_information: float
    specialisation: Sequence[float]
    preferred: Sequence[Sequence[PreferredWord]]


@dataclass(frozen=True)
class ComponentUse:
    """Use of the components of a head. MoC mixes contexts, so its components have no predictions."""

    head: str
    prior: Merged[PriorUse]
    predictions: Merged[PredictionUse | None] = None


def use_in_sample(head: Head, states: _States, words: Sequence[str]) -> ComponentUse | None:
    """Use of components over the first tokens of a text, at most :data:`SAMPLED` numbers.

    None for a head without a prior. DataError without a token.
    """
    if head.prior is None:
        return None
    few = _first(states, max(1, SAMPLED // (head.config.components * head.vocab_size)))
    if head.mixer.mixes_contexts:
        return ComponentUse(head.config.kind, prior_use(*prior_sums(priors(head, few))))
    sums = component_sums(joints(head, _small(few, head)))
    return ComponentUse(head.config.kind, *prediction_use(words, *sums))


def _first(states: _States, left: int) -> Iterator[tuple[Layers, Tensor]]:
    for hidden, targets in states:
        yield hidden.rows(slice(left)), targets[:left]
        left -= len(targets)
        if left <= 0:
            return


def _small(states: _States, head: Head) -> Iterator[tuple[Layers, Tensor]]:
    """The states in blocks of :func:`block_rows`."""
    rows = block_rows(head)
    for hidden, targets in states:
        for at in range(0, len(targets), rows):
            part = slice(at, at + rows)
            yield hidden.rows(part), targets[part]


def block_rows(head: Head) -> int:
    """Number of tokens whose probabilities by component are computed at once."""
    return max(1, min(64, _BLOCK // (head.config.components * head.vocab_size)))


@torch.no_grad()
def priors(head: Head, states: _States) -> Iterator[Tensor]:
    """Yield log π (n, K) of blocks."""
    prior, mixer = head.prior, head.mixer
    assert prior is not None
    for hidden, _ in states:
        yield mixer.prior_link.log_normalised(prior(mixer.read(hidden)).double())


@torch.no_grad()
def joints(head: Head, states: _States) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield log π_k + log p_k (n, K, V) and targets (n,) of blocks."""
    for hidden, targets in states:
        yield head.component_log_probs(hidden), targets


def prior_sums(priors: Iterator[Tensor]) -> tuple[Tensor, Tensor]:
    """Tokens and entropy of π (2), and π (K), summed over tokens of blocks (n, K) of log π."""
    tokens, entropy, usage = 0, 0.0, torch.zeros(())
    for log_prior in priors:
        prior = log_prior.double().exp()
        entropy += float(torch.special.entr(prior).sum())
        usage = usage + prior.sum(0)
        tokens += len(prior)
    return torch.tensor([tokens, entropy], dtype=torch.float64), usage


def prior_use(scalars: Tensor, usage_sum: Tensor) -> PriorUse:
    """Statistics of a prior from :func:`prior_sums`. DataError without a token."""
    tokens, entropy = scalars.tolist()
    if not tokens:
        raise DataError("the text has no tokens to analyse components on; name a longer text")
    usage, entropy = usage_sum / tokens, entropy / tokens
    spread = float(torch.special.entr(usage).sum())
    return PriorUse(
        tokens=int(tokens),
        components=len(usage),
        prior_entropy=entropy,
        prior_perplexity=math.exp(entropy),
        usage=usage.tolist(),
        usage_entropy=spread,
        effective_components=math.exp(spread),
    )


def component_sums(blocks: Iterator[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """:func:`prior_sums`, entropies of the posterior (), posteriors (K), expected counts (K, V).

    Of blocks of log π_k + log p_k (n, K, V) and targets (n,). Memory is O(K·V).
    """
    scalars, usage = prior_sums(iter(()))
    posterior = posterior_entropy = expected = torch.zeros(())
    for block, targets in blocks:
        joint = block.double()
        scalars_of_block, usage_of_block = prior_sums(iter([joint.logsumexp(-1)]))
        scalars, usage = scalars + scalars_of_block, usage + usage_of_block
        at_targets = joint[torch.arange(len(targets), device=joint.device), :, targets]  # (n, K)
        responsible = at_targets.softmax(-1)
        posterior = posterior + responsible.sum(0)
        posterior_entropy = posterior_entropy + torch.special.entr(responsible).sum()
        expected = expected + joint.exp().sum(0)
    return scalars, usage, posterior_entropy, posterior, expected


def prediction_use(
    words: Sequence[str],
    scalars: Tensor,
    usage: Tensor,
    posterior_entropy: Tensor,
    posterior: Tensor,
    expected: Tensor,
) -> tuple[PriorUse, PredictionUse]:
    """Statistics of a prior and of predictions from :func:`component_sums`. DataError without a token."""
    prior = prior_use(scalars, usage)
    found = [*_preferences(expected, words)]
    specialisation = [divergence for divergence, _ in found]
    return prior, PredictionUse(
        posterior_usage=(posterior / prior.tokens).tolist(),
        posterior_entropy=float(posterior_entropy) / prior.tokens,
        mutual_information=sum(map(math.prod, zip(prior.usage, specialisation, strict=True))),
        specialisation=specialisation,
        preferred=[preferred for _, preferred in found],
    )


def _preferences(expected: Tensor, words: Sequence[str]) -> Iterator[tuple[float, list[PreferredWord]]]:
    """Yield specialisation and preferred words of each component, from expected counts (K, V)."""
    tiny = torch.finfo(expected.dtype).tiny
    totals = expected.sum(0)
    shares = torch.where(totals > 0, expected / totals, 0.0)
    usage = expected.sum(1) / expected.sum()
    own = expected / expected.sum(1, keepdim=True).clamp_min(tiny)
    ratios = shares / usage[:, None].clamp_min(tiny)
    contributions = torch.special.xlogy(own, ratios.clamp_min(tiny))
    for share, ratio, contribution in zip(shares, ratios, contributions, strict=True):
        best = contribution.topk(min(WORDS, len(contribution)))
        preferred = [
            PreferredWord(words[index], float(share[index]), float(ratio[index]), value)
            for value, index in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            if value > 0
        ]
        yield float(contribution.sum()), preferred
