"""Components of a mixture: their use by the prior, and the preferred words of each."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lm.console.tables import Table
from lm.errors import ConfigError, DataError

if TYPE_CHECKING:
    from lm.language.trained import TrainedLm
    from lm.language.windows import Ids

WORDS = 10  # shown per component


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
    sums = _PriorSums()
    for log_prior in priors:
        sums.add(log_prior)
    return sums.report()


class _PriorSums:
    def __init__(self) -> None:
        self.tokens, self.entropy = 0, 0.0
        self.usage = torch.zeros(())

    def add(self, log_prior: Tensor) -> None:
        prior = log_prior.double().exp()
        self.entropy += float(torch.special.entr(prior).sum())
        self.usage = self.usage + prior.sum(0)
        self.tokens += len(prior)

    def report(self) -> dict[str, Any]:
        if not self.tokens:
            raise DataError("the text has no tokens to analyse components on; name a longer text")
        usage = self.usage / self.tokens
        spread, entropy = float(torch.special.entr(usage).sum()), self.entropy / self.tokens
        return {
            "tokens": self.tokens,
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
    sums, expected, posterior = _PriorSums(), torch.zeros(()), torch.zeros(())
    posterior_entropy = 0.0
    for joint, targets in blocks:
        joint = joint.double()
        sums.add(joint.logsumexp(-1))
        at_targets = joint[torch.arange(len(targets), device=joint.device), :, targets]  # (n, K)
        responsible = at_targets.softmax(-1)
        posterior = posterior + responsible.sum(0)
        posterior_entropy += float(torch.special.entr(responsible).sum())
        expected = expected + joint.exp().sum(0)
    report = sums.report()
    components = _preferences(expected, words, shown)
    return report | {
        "posterior_usage": (posterior / sums.tokens).tolist(),
        "posterior_entropy": posterior_entropy / sums.tokens,
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


def components_of_run(trained: "TrainedLm", ids: "Ids", shown: int = WORDS) -> dict[str, Any]:
    """Analyse the components of a run on a text.

    MoC mixes contexts, so its components have a prior but no predictions. Raises ConfigError for a head
    without components.
    """
    head = trained.model.head
    if head.prior is None:
        of = f"with {head.config.components} component{'s' if head.config.components > 1 else ''}"
        raise ConfigError(
            f"head.kind = {head.config.kind!r} {of} has no prior to analyse; "
            "name a run of moc, mos, moss or doc with head.components > 1"
        )
    vocab, prior, link = len(trained.codec.vocabulary), head.prior, head.mixer.prior_link
    if head.mixer.mixes_contexts:
        with torch.no_grad():
            readings = trained.readings(ids)
            priors = (link.log_normalised(prior(hidden.last[:, 0]).double()) for hidden, _ in readings)
            result = prior_statistics(priors)
    else:
        rows = max(
            1, min(64, (8 << 20) // (head.config.components * vocab))
        )  # at most 64 MB of float64 per block
        blocks = trained.component_log_probs(ids, rows=rows)
        result = component_statistics(blocks, trained.codec.vocabulary.tokens, shown)
    return {"head": head.config.kind} | result


def component_tables(name: str, result: dict[str, Any]) -> list[Table | str]:
    """Table with a row per component of a run, the most used first, and a summary."""
    usage = result["usage"]
    rows = []
    for index in sorted(range(len(usage)), key=lambda index: (-usage[index], index)):
        row: dict[str, object] = {"component": index + 1, "mean π": usage[index]}
        if "preferred" in result:
            row |= {
                "posterior": result["posterior_usage"][index],
                "specialisation, nats": result["specialisation"][index],
                "prefers": " ".join(word["word"] for word in result["preferred"][index]),
            }
        rows.append(row)
    return [
        Table(f"Components of {name}", rows),
        f"entropy of the prior {result['prior_entropy']:.3f} nats a token, which is "
        f"{result['prior_perplexity']:.2f} of {result['components']} components; "
        f"{result['effective_components']:.2f} are in use over the {result['tokens']:,} tokens",
    ]
