"""Measures of the gradients that a head passes back, which :mod:`lm.spectra.derivatives` defines."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lm.console.tables import Table
from lm.errors import DivergenceError
from lm.spectra.derivatives import HeadGradients
from lm.spectra.rank import matrix_rank
from lm.spectra.spectrum import effective_rank
from lm.steps import OnProgress, Steps, no_progress


@dataclass(frozen=True)
class GradientRanks:
    """Ranks of a matrix of gradients, a row per token, and the largest possible one."""

    effective_rank: float
    rank: int
    ranks: Mapping[str, int]
    full_rank: int

    @classmethod
    def of(cls, blocks: Iterator[Tensor], rows: int, columns: int) -> "GradientRanks":
        """Ranks of a matrix that arrives in blocks of rows."""
        result = matrix_rank(blocks, rows, columns, what="gradients of token")
        return cls(effective_rank(result.singular_values), result.rank, result.ranks, min(rows, columns))


@dataclass(frozen=True)
class GradientMeasures:
    """Gradients of a head on a text.

    ``share`` is a mean over the ``sample`` of tokens, of which those without a gradient are left out,
    with the standard error ``share_error``, None for one token. ``jacobian_rank`` is the mean rank of J,
    and ``random_share`` the share of a random direction. ``gradient_norm`` is the root mean square of
    ‖g‖, with the ``gain`` and ``alignment`` of the batch. ``logits`` has the ranks of g, ``states`` those
    of Jᵀg, and ``update`` those of JJᵀg.
    """

    head: str
    components: int
    context_scale: float
    embedding_size: int
    state_size: int
    vocabulary: int
    tokens: int
    sample: int
    share: float
    share_error: float | None
    jacobian_rank: float
    random_share: float
    gradient_norm: float
    gain: float
    alignment: float
    logits: GradientRanks
    states: GradientRanks
    update: GradientRanks


def measure_gradients(
    gradients: HeadGradients, sample: int, progress: OnProgress = no_progress
) -> GradientMeasures:
    """Measure gradients at every token, and the shares at ``sample`` of the tokens.

    The sample is evenly spaced. Its cost is that of J: K·E·S·V operations a token.

    Raises:
        DivergenceError: gradients that are not finite, or all 0.
        StorageError: no room for the temporary files of :func:`lm.spectra.rank.matrix_rank`.
    """
    head, tokens = gradients.head, gradients.tokens
    chosen = np.unique(np.linspace(0, tokens - 1, min(sample, tokens)).round().astype(int)).tolist()
    steps = Steps(4 * tokens + gradients.size * len(chosen) + 1, progress)  # tokens, and directions of J
    gradients = replace(gradients, advance=steps.advance)
    gradient_norm, gain, alignment = _norms(gradients)
    found = []
    for token in chosen:
        found.append(gradients.share(token))
        steps.advance(gradients.size)
    shares, ranks = _shares(found)
    measures = GradientMeasures(
        head=head.config.kind,
        components=head.config.components,
        context_scale=float(head.scale),
        embedding_size=head.size,
        state_size=gradients.size,
        vocabulary=head.vocab_size,
        tokens=tokens,
        sample=len(shares),
        share=float(np.mean(shares)),
        share_error=float(np.std(shares, ddof=1)) / math.sqrt(len(shares)) if len(shares) > 1 else None,
        jacobian_rank=float(np.mean(ranks)),
        random_share=math.sqrt(float(np.mean(ranks)) / max(1, head.vocab_size - 1)),
        gradient_norm=gradient_norm,
        gain=gain,
        alignment=alignment,
        logits=GradientRanks.of(gradients.at_logits(), tokens, head.vocab_size),
        states=GradientRanks.of(gradients.at_states(), tokens, gradients.size),
        update=GradientRanks.of(gradients.of_update(), tokens, head.vocab_size),
    )
    steps.advance(1)
    return measures


def _shares(found: Sequence[tuple[float, int] | None]) -> tuple[Sequence[float], Sequence[int]]:
    """Shares and ranks of the tokens that have a gradient. Raises DivergenceError if none has one."""
    shares = [share for share in found if share is not None]
    if not shares:
        raise DivergenceError(
            "all gradients are 0: the model is certain of every token of the sample; analyse another text"
            " with --data, or raise --sample"
        )
    return [share for share, _ in shares], [rank for _, rank in shares]


def _norms(gradients: HeadGradients) -> tuple[float, float, float]:
    """Root mean square of ‖g‖, gain and alignment."""
    at_logits = at_states = of_update = 0.0
    cosines = 0.0
    for states, targets in gradients.blocks():
        logits, back = gradients.gradient(states, targets)
        change = gradients.change(states, back)
        at_logits += float(logits.square().sum())
        at_states += float(back.square().sum())
        of_update += float(change.square().sum())
        size = (logits.norm(dim=1) * change.norm(dim=1)).clamp_min(torch.finfo(change.dtype).tiny)
        cosines += float((back.square().sum(1) / size).sum())
    if not all(map(math.isfinite, (at_logits, at_states, of_update))):
        raise DivergenceError(
            "the gradients are not finite: the model has diverged; choose another checkpoint"
        )
    tokens = gradients.tokens
    gain = math.sqrt(at_states / at_logits) if at_logits else 0.0
    return math.sqrt(at_logits / tokens), gain, cosines / tokens


def gradient_tables(results: Mapping[str, GradientMeasures]) -> list[Table | str]:
    """Tables with a row per run, by name."""
    norms = [
        {
            "run": name,
            "head": found.head,
            "K": found.components,
            "factor": found.context_scale,
            "tokens": found.tokens,
            "sample": found.sample,
            "share": found.share,
            "error of the share": found.share_error,
            "random share": found.random_share,
            "gain": found.gain,
            "alignment": found.alignment,
        }
        for name, found in results.items()
    ]
    ranks: list[dict[str, object]] = []
    for name, found in results.items():
        row = {"run": name, "head": found.head, "E": found.embedding_size, "states": found.state_size}
        for place in ("logits", "states", "update"):
            measured: GradientRanks = getattr(found, place)
            row |= {f"rank of {place}": measured.rank, f"effective of {place}": measured.effective_rank}
        ranks.append(row)
    return [
        Table("Gradients", norms),
        "sample: number of tokens whose share is measured; "
        "share: norm of the gradient at log P that a state can follow, a mean with its standard error; "
        "random share: of a random direction; "
        "gain: norm at the states by norm at log P; alignment: cosine of the gradient and of the change"
        " of log P after a step of the states",
        Table("Ranks of the matrices of gradients, and of the change of log P", ranks),
    ]
