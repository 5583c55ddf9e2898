"""The softmax bottleneck on a language with known true distributions.

A seeded language of C contexts and V words has a log-probability matrix of exactly rank r. Every head is
trained on the true distributions, without sampling noise. The measures are KL(truth ‖ model) in nats and the
rank of the model's log-probability matrix.

The input of a head is a free vector of H numbers for every context, the limit of an unlimited network. So the
remaining KL(truth ‖ model) is the part that the head cannot express. A softmax of context size E reaches at
most rank E + 2 (including normaliser and output bias), and so does MoC, regardless of H.

Two sweeps: of E for every K in ``components``, and of K in ``component_sweep`` at E = ``sweep_size``.

Parameters are equal. At each E all heads have, to the nearest H, as many as a MoS with the largest K of
``components`` at ``hidden_size``. Heads with smaller projections get a larger H, and heads with more
components a smaller one. An extra softmax (``WIDE``) spends the same parameters on a larger E, with H = E,
rounded down.

The contexts of mixtures are multiplied by each of ``context_scale``. The papers' factor is 1. The output
matrix could learn a larger factor in many more updates, so every factor may have its own number of updates.

C contexts · V words · r rank · E context size of the head · K components · H hidden size.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lm.errors import require
from lm.heads.registry import HEADS
from lm.steps import OnProgress, no_progress
from lm.studies.known_language import Language
from lm.studies.options import LanguageOptions, require_scores
from lm.studies.sweep import Sweep, cosine_adam, descend
from lm.studies.sweep_point import SweepPoint, possible

WIDE = "wide softmax"
MEASURES: dict[str, type] = {"parameters": int, "kl": float, "rank": int, "late_gain": float}
POINTS, RESULT = "points.jsonl", "bottleneck.json"


@dataclass(frozen=True)
class BottleneckOptions(LanguageOptions):
    """Options of the sweeps. Raises a one-line ConfigError for invalid values.

    ``hidden_size`` is that of a MoS with the largest of ``components``. ``steps`` has a number per factor, or
    one for all. Heads without components get the largest.
    """

    embedding_sizes: tuple[int, ...] = (2, 4, 8, 16, 32, 48)
    component_sweep: tuple[int, ...] = (1, 2, 4, 8, 16)  # empty: no sweep of K

    def __post_init__(self) -> None:
        super().__post_init__()
        require_scores("contexts", self.contexts, self.vocab, max(self.component_sweep, default=1))
        require(
            len(self.steps) in (1, len(self.context_scale)),
            f"--steps: {len(self.steps)} numbers for {len(self.context_scale)} of --context-scale;"
            " give one, or one for each",
        )
        given = ",".join(map(str, self.components))
        for head in self.heads:
            require(
                not HEADS[head].is_mixture or any(possible(head, number) for number in self.components),
                f"--components {given}: {head} cannot have it; add 4, as in {given},4",
            )
        for head, number in self._mixtures(self.components):
            size = next((one for one in self.embedding_sizes if not self._fits(head, number, one)), None)
            require(
                size is None,
                f"--heads {head}: more parameters than the others at K = {number}, E = {size} and any H;"
                f" raise --hidden-size, or leave {head} out",
            )

    @property
    def swept_components(self) -> tuple[int, ...]:
        """K of the second sweep, without those that exceed the number of parameters at any H."""
        if not any(HEADS[kind].is_mixture for kind in self.heads):
            return ()
        sweep, size = self.component_sweep, self.sweep_size
        large = {k for head, k in self._mixtures(sweep) if not self._fits(head, k, size)}
        return tuple(k for k in sweep if k not in large)

    def _mixtures(self, components: Sequence[int]) -> Iterator[tuple[str, int]]:
        """Kinds of mixtures with each of their possible numbers of components."""
        kinds = (kind for kind in self.heads if HEADS[kind].is_mixture)
        return ((kind, k) for kind, k in product(kinds, components) if possible(kind, k))

    def _fits(self, kind: str, components: int, size: int) -> bool:
        """True if a head exceeds the number of parameters at E = ``size`` for no H."""
        least = SweepPoint(kind, components, size, 1)
        return least.parameters(self.contexts, self.vocab) <= self.budget(size)

    def steps_of(self, point: SweepPoint) -> int:
        """Number of updates of a model."""
        if not HEADS[point.kind].is_mixture or len(self.steps) == 1:
            return max(self.steps)
        return self.steps[self.context_scale.index(point.context_scale)]

    def budget(self, size: int) -> int:
        """Number of parameters of every model at E = ``size``."""
        largest = SweepPoint("mos", max(self.components), size, self.hidden_size)
        return largest.parameters(self.contexts, self.vocab)


def points(
    options: BottleneckOptions, size: int, components: Sequence[int]
) -> Iterator[tuple[str, SweepPoint]]:
    """Yield (name of the row, model) at E = ``size``, all with the same number of parameters."""
    contexts, vocab, budget = options.contexts, options.vocab, options.budget(size)
    for kind in options.heads:
        for number in filter(partial(possible, kind), components) if HEADS[kind].is_mixture else (1,):
            with_hidden = partial(SweepPoint, kind, number, size)
            hidden = range(1, budget // contexts + 2)
            place = bisect_left(hidden, budget, key=lambda h: with_hidden(h).parameters(contexts, vocab))
            nearest = min(
                map(with_hidden, hidden[max(0, place - 1) : place + 1]),
                key=lambda point: abs(point.parameters(contexts, vocab) - budget),
            )
            for scale in options.context_scale if HEADS[kind].is_mixture else (1.0,):
                yield kind, replace(nearest, context_scale=scale)
    if "softmax" in options.heads:
        wide = (budget - vocab) // (contexts + vocab)
        yield WIDE, SweepPoint("softmax", 1, wide, wide)


def models(options: BottleneckOptions) -> list[tuple[int, str, SweepPoint]]:
    """List (E, name of the row, model) of both sweeps without repetitions."""
    cells = [(size, options.components) for size in options.embedding_sizes]
    if options.swept_components:
        cells.append((options.sweep_size, options.swept_components))
    found = ((size, *named) for size, components in cells for named in points(options, size, components))
    return list(dict.fromkeys(found))


def bottleneck(options: BottleneckOptions, out: Path, progress: OnProgress = no_progress) -> dict[str, Any]:
    """Train and measure every point of the sweeps, and save each to ``out`` at once.

    ``out/points.jsonl`` holds every measured point with its settings. So the same command resumes an
    interrupted sweep, and a longer sweep trains only new points. ``out/bottleneck.json`` is the returned
    result. The same settings and number of threads give the same bytes. StorageError if ``out`` cannot be
    written, or its points cannot be read. DivergenceError if training ended in non-finite numbers.
    """
    plan = list(product(options.languages, models(options)))
    sweep = Sweep(out, POINTS, MEASURES, len(plan), progress)
    rows: list[dict[str, Any]] = []
    for language, (size, name, point) in plan:
        steps = options.steps_of(point)
        settings = asdict(language) | asdict(point) | {"steps": steps, "lr": options.lr}
        values = sweep.measured(settings, partial(train_point, language, point, steps, options.lr))
        where = {"seed": language.seed, "head": name, "size": size, "steps": steps}
        rows.append(where | asdict(point) | {name: values[name] for name in MEASURES})
    truth = [{"seed": one.seed, "rank": one.rank, "entropy": one.entropy} for one in options.languages]
    result: dict[str, Any] = {
        "settings": asdict(options),
        "swept_components": options.swept_components,
        "truth": truth,
        "rows": rows,
    }
    return sweep.finished(RESULT, result)


def train_point(language: Language, point: SweepPoint, steps: int, lr: float) -> dict[str, Any]:
    """Train one model on the true distributions by full-batch Adam with a cosine schedule, and measure it.

    Returns:
        ``parameters``: their number. ``kl``: KL(truth ‖ model) in nats.
        ``rank``: rank of the log-probabilities in float64. ``late_gain``: gain of the last tenth of the
        training in nats.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(language.seed)
        head = point.head(language.vocab)
        table = nn.Embedding(language.contexts, point.width)
    model = nn.ModuleList([table, head])

    def loss() -> Tensor:
        return language.cross_entropy(head.log_probs(point.layers(table.weight)))

    losses = descend(model, loss, cosine_adam(steps, lr))
    late = losses[steps * 9 // 10] - language.entropy
    count = sum(parameter.numel() for parameter in model.parameters())
    model.double()
    with torch.no_grad():
        log_probs = head.log_probs(point.layers(table.weight))
    kl, rank = language.measured(log_probs, f"{point.kind} with E = {point.embedding_size}")
    return {"parameters": count, "kl": kl, "rank": rank, "late_gain": late - kl}
