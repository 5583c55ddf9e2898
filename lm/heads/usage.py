"""Use of the components of a mixture: shares by the prior, and the preferred words of each.

n tokens · K components · V words.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lm.errors import DataError
from lm.heads.head import Head
from lm.heads.states import Layers

WORDS = 10  # shown per component
SAMPLED = 1 << 27  # numbers π_k·p_k that a short analysis computes, a few seconds of one processor
_BLOCK = 8 << 20  # numbers of a block of (n, K, V); 64 MB of float64


def component_use(
    head: Head, states: Iterable[tuple[Layers, Tensor]], words: Sequence[str], shown: int = WORDS
) -> dict[str, Any] | None:
    """Use of the components of a head on a text; None for a head without a prior.

    MoC mixes contexts, so its components have a prior but no predictions.

    Args:
        head: the head of a trained model.
        states: hidden states (n, ·) of blocks of the text, and the targets (n,).
        words: the V words.
        shown: number of preferred words per component.

    Returns:
        That of :func:`component_statistics`, or of :func:`prior_statistics` for MoC, with ``head``.

    Raises:
        DataError: no token.
    """
    if head.prior is None:
        return None
    if head.mixer.mixes_contexts:
        result = prior_statistics(_priors(head, states))
    else:
        result = component_statistics(_joints(head, states), words, shown)
    return {"head": head.config.kind} | result


def use_in_sample(
    head: Head, states: Iterable[tuple[Layers, Tensor]], words: Sequence[str]
) -> dict[str, Any] | None:
    """:func:`component_use` over the first tokens of a text, at most :data:`SAMPLED` numbers."""
    left = max(1, SAMPLED // (head.config.components * head.vocab_size))
    return component_use(head, _first(states, left), words)


def _first(states: Iterable[tuple[Layers, Tensor]], left: int) -> Iterator[tuple[Layers, Tensor]]:
    """The first tokens of the states."""
    for hidden, targets in states:
        yield hidden.map(partial(_rows, start=0, count=left)), targets[:left]
        left -= len(targets)
        if left <= 0:
            return


@torch.no_grad()
def _priors(head: Head, states: Iterable[tuple[Layers, Tensor]]) -> Iterator[Tensor]:
    """log π (n, K) of blocks."""
    prior, link = head.prior, head.mixer.prior_link
    assert prior is not None
    for hidden, _ in states:
        yield link.log_normalised(prior(hidden.last).double())


@torch.no_grad()
def _joints(head: Head, states: Iterable[tuple[Layers, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """log π_k + log p_k (n, K, V) and targets (n,) of small blocks."""
    rows = max(1, min(64, _BLOCK // (head.config.components * head.vocab_size)))
    for hidden, targets in states:
        for at in range(0, len(targets), rows):
            part = hidden.map(partial(_rows, start=at, count=rows))
            yield head.component_log_probs(part), targets[at : at + rows]


def _rows(layer: Tensor, start: int, count: int) -> Tensor:
    return layer[start : start + count]


def prior_statistics(priors: Iterator[Tensor]) -> dict[str, Any]:
    """Statistics of a prior over K components, from blocks (n, K) of log π.

    Returns:
        ``prior_entropy``: mean entropy of π in nats, at most log K.
        ``prior_perplexity``: exp(prior_entropy), the number of components that a token mixes.
        ``usage``: mean of π. ``usage_entropy``: entropy of the mean.
        ``effective_components``: exp(usage_entropy), the number in use over the whole text.

    Raises:
        DataError: no token.
    """
    return prior_report(*prior_sums(priors))


def prior_sums(priors: Iterator[Tensor]) -> tuple[Tensor, Tensor]:
    """Tokens and entropy of π (2), and π (K), summed over tokens."""
    tokens, entropy, usage = 0, 0.0, torch.zeros(())
    for log_prior in priors:
        prior = log_prior.double().exp()
        entropy += float(torch.special.entr(prior).sum())
        usage = usage + prior.sum(0)
        tokens += len(prior)
    return torch.tensor([tokens, entropy], dtype=torch.float64), usage


def prior_report(scalars: Tensor, usage_sum: Tensor) -> dict[str, Any]:
    tokens, entropy = scalars.tolist()
    if not tokens:
        raise DataError("the text has no tokens to analyse components on; name a longer text")
    usage, entropy = usage_sum / tokens, entropy / tokens
    spread = float(torch.special.entr(usage).sum())
    return {
        "tokens": int(tokens),
        "components": len(usage),
        "prior_entropy": entropy,
        "prior_perplexity": math.exp(entropy),
        "usage": usage.tolist(),
        "usage_entropy": spread,
        "effective_components": math.exp(spread),
    }


def component_statistics(
    blocks: Iterator[tuple[Tensor, Tensor]], words: Sequence[str], shown: int = WORDS
) -> dict[str, Any]:
    """Statistics of :func:`prior_statistics` and of the components' predictions. Memory is O(K·V).

    Let S_k(v) = Σ_t π_k(t) p_k(v|t) be the expected count of v from component k. Let p̄_k and p̄ be the
    normalised S_k and Σ_k S_k. The preferred words of component k have the largest contributions
    p̄_k(v) log(p̄_k(v) / p̄(v)) to KL(p̄_k ‖ p̄). A contribution is the log ratio of the component's share of the
    word to its share of all words, weighted by p̄_k(v). So neither rare words with extreme ratios come first,
    nor frequent words that every component predicts.

    Args:
        blocks: log π_k + log p_k (n, K, V) and targets (n,).
        words: the V words.
        shown: number of preferred words per component.

    Returns:
        Also ``posterior_usage``: mean of π_k p_k(y) / P(y) at the targets y.
        ``posterior_entropy``: mean entropy of π_k p_k(y) / P(y).
        For each component ``specialisation``: KL(p̄_k ‖ p̄) in nats.
        For each component ``preferred``: words with ``share`` = S_k(v) / Σ_j S_j(v),
        ``ratio`` = share / usage, and ``contribution``.
        ``mutual_information`` of component and word: Σ_k usage_k · specialisation_k.

    Raises:
        DataError: no token.
    """
    return component_report(words, shown, *component_sums(blocks))


def component_sums(blocks: Iterator[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """:func:`prior_sums`, entropies of the posterior (), posteriors (K), expected counts (K, V)."""
    priors: list[Tensor] = []
    posterior = posterior_entropy = expected = torch.zeros(())
    for block, targets in blocks:
        joint = block.double()
        priors.append(joint.logsumexp(-1))
        at_targets = joint[torch.arange(len(targets), device=joint.device), :, targets]  # (n, K)
        responsible = at_targets.softmax(-1)
        posterior = posterior + responsible.sum(0)
        posterior_entropy = posterior_entropy + torch.special.entr(responsible).sum()
        expected = expected + joint.exp().sum(0)
    return *prior_sums(iter(priors)), posterior_entropy, posterior, expected


def component_report(
    words: Sequence[str],
    shown: int,
    scalars: Tensor,
    usage: Tensor,
    posterior_entropy: Tensor,
    posterior: Tensor,
    expected: Tensor,
) -> dict[str, Any]:
    report = prior_report(scalars, usage)
    tokens, components = report["tokens"], _preferences(expected, words, shown)
    return report | {
        "posterior_usage": (posterior / tokens).tolist(),
        "posterior_entropy": float(posterior_entropy) / tokens,
        "mutual_information": sum(
            usage * component["specialisation"]
            for usage, component in zip(report["usage"], components, strict=True)
        ),
        "specialisation": [component["specialisation"] for component in components],
        "preferred": [component["preferred"] for component in components],
    }


def _preferences(expected: Tensor, words: Sequence[str], shown: int) -> list[dict[str, Any]]:
    """Specialisation and preferred words of each component, from expected counts (K, V)."""
    totals = expected.sum(0)
    shares = torch.where(totals > 0, expected / totals, 0.0)
    usage = expected.sum(1) / expected.sum()
    own = expected / expected.sum(1, keepdim=True).clamp_min(torch.finfo(expected.dtype).tiny)
    ratios = shares / usage[:, None].clamp_min(torch.finfo(expected.dtype).tiny)
    contributions = torch.special.xlogy(own, ratios.clamp_min(torch.finfo(expected.dtype).tiny))
    result = []
    for share, ratio, contribution in zip(shares, ratios, contributions, strict=True):
        best = contribution.topk(min(shown, len(contribution)))
        preferred = [
            {
                "word": words[index],
                "share": float(share[index]),
                "ratio": float(ratio[index]),
                "contribution": value,
            }
            for value, index in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            if value > 0
        ]
        result.append({"specialisation": float(contribution.sum()), "preferred": preferred})
    return result
