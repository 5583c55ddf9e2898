"""Rank forward and rank backward apart, on a language of known rank.

A head limits the distributions that a model can express (forward), and the gradients that reach its states
(backward; Godey & Artzi 2026, arXiv 2603.10145). Two heads, one after the other, separate these two limits.
First the *trainer* trains the states of all contexts. Then the states are fixed, and the *reader* learns to
predict from them. The rank forward is that of the reader, and the rank backward is that of the trainer.
Untrained states are the control, because a reader may do well on random states of enough dimensions. Readers
begin with other weights than trainers. A reader that began as its trainer would know weights by which the
states were trained.

States are trained with :class:`~lm.studies.row_rms.RowRms`, whose updates have the rank of the gradient. The
sum of many updates has a higher rank, because the output matrix changes.

All models have the same H and E. A full softmax has E = H. Parameters are not equal, unlike in the sweeps.

C contexts · V words · E context size · K components · H size of a state.
"""

import math
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lm.heads.head import Head
from lm.spectra.spectrum import effective_rank
from lm.steps import OnProgress, no_progress
from lm.studies.known_language import Language
from lm.studies.options import FULL, LanguageOptions, heads_of
from lm.studies.sweep import Sweep, cosine_adam, descend
from lm.studies.sweep_point import SweepPoint

UNTRAINED = "untrained"
READER = 1000  # added to the seed of the language; torch takes 32 bits of a seed on CPUs
BACKWARD_POINTS, BACKWARD_RESULT = "backward.jsonl", "backward.json"
RELAY_MEASURES: dict[str, type] = {
    "kl": float, "gradient_rank": int, "gradient_effective_rank": float, "moved_effective_rank": float,
    "readers": dict,
}  # fmt: skip


@dataclass(frozen=True)
class BackwardOptions(LanguageOptions):
    """Options of the pairs. Raises a one-line ConfigError for invalid values, or heads that do not fit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        heads_of(self)


def backward(options: BackwardOptions, out: Path, progress: OnProgress = no_progress) -> dict[str, Any]:
    """Train and measure every pair of trainer and reader, and save each trainer's to ``out`` at once.

    Returns:
        ``rows``: for each seed and trainer, ``kl`` of the trainer itself in nats (that of a uniform guess for
        untrained states), rank and effective rank of the gradient at the states (C, H) before training,
        the effective rank of all that training added to the states, and ``readers``: by name ``kl`` and
        ``rank`` of the log-probabilities.

    Raises:
        StorageError, DivergenceError: as for :func:`lm.studies.bottleneck.bottleneck`.
    """
    heads = heads_of(options)
    [steps], rows = options.steps, []
    plan = list(product(options.languages, (UNTRAINED, *heads)))
    sweep = Sweep(out, BACKWARD_POINTS, RELAY_MEASURES, len(plan), progress)
    for language, trainer in plan:
        settings = {
            **asdict(language), "trainer": trainer, "steps": steps, "lr": options.lr, "reader_seed": READER,
            "heads": {name: asdict(point) for name, point in heads.items()},
        }  # fmt: skip
        values = sweep.measured(settings, partial(relay, language, heads, trainer, steps, options.lr))
        rows.append({"seed": language.seed, "trainer": trainer} | values)
    result: dict[str, Any] = {"settings": asdict(options), "heads": list(heads), "rows": rows}
    return sweep.finished(BACKWARD_RESULT, result)


def relay(
    language: Language, heads: dict[str, SweepPoint], trainer: str, steps: int, lr: float
) -> dict[str, Any]:
    """Train the states with one head, then every head on the fixed states. Return the measures of a row."""
    hidden, optim = heads[FULL].hidden_size, cosine_adam(steps, lr)

    def loss(head: Head, states: Tensor) -> Tensor:
        return language.cross_entropy(head.log_probs(states))

    def seeded(point: SweepPoint, more: int = 0) -> tuple[nn.Embedding, Head]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(language.seed + more)
            return nn.Embedding(language.contexts, hidden), point.head(language.vocab)

    table, head = seeded(heads[FULL if trainer == UNTRAINED else trainer])
    start = table.weight.detach().double()
    gradient = torch.zeros(language.contexts, hidden, dtype=torch.float64)
    uniform = torch.full_like(language.log_probs, -math.log(language.vocab))
    own = language.divergence(uniform)
    if trainer != UNTRAINED:
        table, head = table.double(), head.double()
        [gradient] = torch.autograd.grad(loss(head, table.weight), table.weight)
        table, head = table.float(), head.float()
        descend(head, lambda: loss(head, table.weight), optim, table.weight)
        own = _measure(language, head, table.weight, trainer)[0]
    states = table.weight.detach()
    readers = {}
    for name, point in heads.items():
        _, reader = seeded(point, READER)
        descend(reader, partial(loss, reader, states), optim)
        kl, rank = _measure(language, reader, states, name)
        readers[name] = {"kl": kl, "rank": rank}
    return {
        "kl": own,
        "gradient_rank": int(torch.linalg.matrix_rank(gradient)),
        "gradient_effective_rank": _effective_rank(gradient),
        "moved_effective_rank": _effective_rank(states.double() - start),
        "readers": readers,
    }


def _effective_rank(matrix: Tensor) -> float:
    return effective_rank(torch.linalg.svdvals(matrix).numpy())


def _measure(language: Language, head: Head, states: Tensor, name: str) -> tuple[float, int]:
    """KL(truth ‖ model) and rank of the log-probabilities in float64."""
    with torch.no_grad():
        return language.measured(head.double().log_probs(states.double()), name)
