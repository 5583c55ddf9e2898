"""The softmax bottleneck on a language whose truth is known.

A seeded language of C contexts and V words has a log-probability matrix of exactly rank r. Every head is
trained on its true distributions, without sampling noise, and is then measured against them:
KL(truth ‖ model) in nats and the rank of the model's own log-probability matrix.

Below the heads there is a free vector of H numbers for every context, the limit of an unlimited network:
what is left of KL(truth ‖ model) is what the head cannot express. A softmax of context size E reaches rank
E + 2 at most (normaliser and output bias included), and so does MoC, whatever H is.

Equal parameters. At each E all heads have the parameters, to the nearest H, of a MoS with the largest K at
``hidden_size``: those whose projections are smaller get a larger H. Beside them goes one softmax that may
spend the same parameters on a larger E of its own (``WIDE``), H = E, rounded down.

C contexts · V words · r rank · E context size of the head · K components · H hidden size.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lm.analysis.spectrum import RankResult
from lm.analysis.steps import Poll, Progress, no_poll, no_progress
from lm.errors import ConfigError, DivergenceError, StorageError
from lm.heads import HEADS, Head
from lm.optim import Schedule, build_optimizer
from lm.schema import MAX_SEED, HeadConfig, OptimConfig
from lm.storage import canonical_json, make_folder, parse_json, read_file, shown, write_atomic, write_json

WIDE = "wide softmax"
MEASURES = ("parameters", "kl", "rank", "late_gain")
POINTS, RESULT = "points.jsonl", "bottleneck.json"
CONTEXT_SCALE = 10.0  # of mixtures: the output matrix could learn it, but needs many more steps to
MAX_SCORES = 1 << 26  # C·K·V of one head; training holds about eight float32 tensors of that size
_LIMIT = 1 << 26  # bytes of points.jsonl


@dataclass(frozen=True)
class Language:
    """A language with log P = U Wᵀ − log Z, where U is (C, r − 1), W is (V, r − 1) and both are Gaussian.

    The logits have rank r − 1 and the normaliser adds one. ``spread`` is their standard deviation in nats.

    Raises:
        ConfigError: a size or rank that no such matrix has, or a rank that float64 cannot tell.
    """

    seed: int
    contexts: int
    vocab: int
    rank: int
    spread: float = 3.0
    context_law: Literal["uniform", "zipf"] = "uniform"

    def __post_init__(self) -> None:
        smaller = min(self.contexts, self.vocab)
        _require(0 <= self.seed <= MAX_SEED, f"--seeds {self.seed}: a seed is between 0 and {MAX_SEED}")
        _require(
            2 <= self.rank <= smaller,
            f"--rank {self.rank}: choose between 2 and {smaller}, the smaller of contexts and words",
        )
        _require(0 < self.spread < 100, f"--spread {self.spread}: choose above 0 and below 100")
        _require(
            self.context_law in ("uniform", "zipf"), f"--context-law {self.context_law}: uniform or zipf"
        )
        measured = measured_rank(self.log_probs)
        _require(
            measured == self.rank,
            f"--rank {self.rank}: the language measures {measured} in float64; bring --spread nearer to 3",
        )

    @cached_property
    def log_probs(self) -> Tensor:
        """log P(v | c), (C, V) float64."""
        generator = torch.Generator().manual_seed(self.seed)
        factors = [
            torch.randn(size, self.rank - 1, generator=generator, dtype=torch.float64)
            for size in (self.contexts, self.vocab)
        ]
        logits = factors[0] @ factors[1].T * (self.spread / math.sqrt(self.rank - 1))
        return torch.log_softmax(logits, dim=-1)

    @cached_property
    def context_probs(self) -> Tensor:
        """P(c), (C,) float64."""
        numbers = torch.arange(1, self.contexts + 1, dtype=torch.float64)
        weights = numbers.reciprocal() if self.context_law == "zipf" else torch.ones_like(numbers)
        return weights / weights.sum()

    @cached_property
    def entropy(self) -> float:
        """Of the next word given its context, nats: the loss of a perfect model."""
        return -float(self.context_probs @ (self.log_probs.exp() * self.log_probs).sum(-1))

    def divergence(self, log_probs: Tensor) -> float:
        """KL(truth ‖ model) in nats, exact over all contexts; ``log_probs`` (C, V) are the model's."""
        return float(self.context_probs @ (self.log_probs.exp() * (self.log_probs - log_probs)).sum(-1))


def measured_rank(log_probs: Tensor) -> int:
    """Numerical rank of a (C, V) float64 matrix: singular values above the expected roundoff error."""
    values = torch.linalg.svdvals(log_probs)
    rows, columns = log_probs.shape
    return RankResult(values.numpy(), (rows, columns)).rank


@dataclass(frozen=True)
class BottleneckOptions:
    """What is swept, over which languages. ConfigError, one line, where it makes no sense."""

    contexts: int = 96
    vocab: int = 768
    rank: int = 48
    spread: float = 3.0
    context_law: Literal["uniform", "zipf"] = "uniform"
    heads: tuple[str, ...] = ("softmax", "sigsoftmax", "moc", "mos", "moss")
    embedding_sizes: tuple[int, ...] = (2, 4, 8, 16, 32, 48)
    components: tuple[int, ...] = (4,)
    hidden_size: int = 48  # of the largest head; the others have more
    steps: int = 1000
    lr: float = 0.05
    seeds: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        for name in ("heads", "embedding_sizes", "components", "seeds"):
            values: tuple[object, ...] = getattr(self, name)
            option = f"--{name.replace('_', '-')}"
            _require(len(values) > 0, f"{option}: name at least one")
            _require(len(set(values)) == len(values), f"{option}: one of them stands twice; name each once")
        for head in self.heads:
            _require(head in HEADS, f"--heads: {head!r} is no head; choose from {', '.join(HEADS)}")
        for name in ("contexts", "vocab", "rank", "hidden_size", "steps"):
            value = getattr(self, name)
            _require(value >= 1, f"--{name.replace('_', '-')} {value}: must be at least 1")
        for name in ("embedding_sizes", "components"):
            least = min(getattr(self, name))
            _require(least >= 1, f"--{name.replace('_', '-')} {least}: must be at least 1")
        _require(0 < self.lr < math.inf, f"--lr {self.lr}: must be above 0")
        scores = self.contexts * self.vocab * max(self.components)
        _require(
            scores <= MAX_SCORES,
            f"{scores:,} contexts × words × components need about {scores * 32 // 10**6:,} MB;"
            f" choose at most {MAX_SCORES:,}",
        )
        for seed in self.seeds:
            self.language(seed)

    def language(self, seed: int) -> Language:
        """The language of a seed."""
        return Language(seed, self.contexts, self.vocab, self.rank, self.spread, self.context_law)


@dataclass(frozen=True)
class Point:
    """One model: everything but the language and the training that decides what comes out."""

    kind: str
    components: int
    embedding_size: int
    hidden_size: int

    def parameters(self, contexts: int, vocab: int) -> int:
        """Of the table of contexts and of the head."""
        size, hidden, components = self.embedding_size, self.hidden_size, self.components
        total = contexts * hidden + vocab * size + vocab
        if HEADS[self.kind].mixes == "nothing":
            return total + (hidden * size if hidden != size else 0)
        return total + (hidden + 1) * components * size + (hidden * components if components > 1 else 0)


def points(options: BottleneckOptions, size: int) -> Iterator[tuple[str, Point]]:
    """The models at E = ``size`` by the name of their row, all of the same number of parameters."""
    contexts, vocab = options.contexts, options.vocab
    most = max(options.components)
    budget = Point("mos", most, size, options.hidden_size).parameters(contexts, vocab)
    for kind in options.heads:
        for components in options.components if HEADS[kind].mixes != "nothing" else (1,):
            nearest = min(
                (Point(kind, components, size, hidden) for hidden in range(1, budget // contexts + 2)),
                key=lambda point: abs(point.parameters(contexts, vocab) - budget),
            )
            yield kind, nearest
    if "softmax" in options.heads:
        wide = (budget - vocab) // (contexts + vocab)
        yield WIDE, Point("softmax", 1, wide, wide)


def bottleneck(
    options: BottleneckOptions, out: Path, poll: Poll = no_poll, progress: Progress = no_progress
) -> dict[str, Any]:
    """Train and measure every point of the sweep; keep each in ``out`` as soon as it is there.

    ``out/points.jsonl`` holds every point ever measured there under its own settings, so the same command
    goes on where it was stopped and a longer sweep trains only what is new. ``out/bottleneck.json`` is the
    returned result. The same settings and number of threads give the same bytes.

    Args:
        poll: called before every training step; may raise.
        progress: told (points done, all points).

    Raises:
        StorageError: ``out`` cannot be written, or its points cannot be read.
        DivergenceError: training ended in non-finite numbers.
    """
    make_folder(out)
    measured = _read_points(out / POINTS)
    languages = {seed: options.language(seed) for seed in options.seeds}
    plan = [
        (language, size, name, point)
        for language in languages.values()
        for size in options.embedding_sizes
        for name, point in points(options, size)
    ]
    rows: list[dict[str, Any]] = []
    for done, (language, size, name, point) in enumerate(plan):
        progress(done, len(plan))
        settings = asdict(language) | asdict(point) | {"steps": options.steps, "lr": options.lr}
        key = canonical_json(settings)
        if key not in measured:
            outcome = train_point(language, point, options.steps, options.lr, poll)
            measured[key] = {"settings": settings, "result": outcome}
            write_atomic(out / POINTS, b"".join(canonical_json(one) + b"\n" for one in measured.values()))
        where = {"seed": language.seed, "head": name, "size": size}
        values = measured[key]["result"]
        rows.append(where | asdict(point) | {name: values[name] for name in MEASURES})
    progress(len(plan), len(plan))
    truth = [{"seed": seed, "rank": one.rank, "entropy": one.entropy} for seed, one in languages.items()]
    result: dict[str, Any] = {"settings": asdict(options), "truth": truth, "rows": rows}
    write_json(out / RESULT, result)
    return result


def train_point(
    language: Language, point: Point, steps: int, lr: float, poll: Poll = no_poll
) -> dict[str, Any]:
    """Train one model on the true distributions by full-batch Adam under a cosine schedule, and measure it.

    Returns:
        ``parameters``; ``kl`` in nats; ``rank``, of float64 log-probabilities of the trained weights;
        ``late_gain``, the nats that the last tenth of the training still gained.
    """
    mixes = HEADS[point.kind].mixes != "nothing"
    config = HeadConfig(
        kind=point.kind,  # type: ignore[arg-type]  # checked against HEADS
        components=point.components,
        embedding_size=point.embedding_size,
        context_scale=CONTEXT_SCALE if mixes else 1.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(language.seed)
        head = Head(config, point.hidden_size, language.vocab)
        table = nn.Embedding(language.contexts, point.hidden_size)
    model = nn.ModuleList([table, head])
    optim = OptimConfig(
        lr=lr, betas=(0.9, 0.99), schedule="cosine", warmup_steps=min(20, steps - 1), decay_steps=steps
    )
    optimizer, schedule = build_optimizer(optim, model), Schedule(optim)
    joint = (language.context_probs[:, None] * language.log_probs.exp()).float()  # (C, V)
    late = math.nan
    for step in range(steps):
        poll()
        loss = -(joint * head.log_probs(table.weight)).sum()
        if step == steps * 9 // 10:
            late = loss.item() - language.entropy
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = schedule.lr(step)
        optimizer.step()
    count = sum(parameter.numel() for parameter in model.parameters())
    model.double()
    with torch.no_grad():
        log_probs = head.log_probs(table.weight)
    if not log_probs.isfinite().all():
        raise DivergenceError(f"{point.kind} with E = {point.embedding_size} diverged; lower --lr")
    kl = language.divergence(log_probs)
    return {"parameters": count, "kl": kl, "rank": measured_rank(log_probs), "late_gain": late - kl}


def _read_points(path: Path) -> dict[bytes, dict[str, Any]]:
    """The points measured before, by their settings."""
    if not path.exists():
        return {}
    found: dict[bytes, dict[str, Any]] = {}
    for number, line in enumerate(read_file(path, limit=_LIMIT).splitlines(), start=1):
        match parse_json(line, path):
            case {
                "settings": dict(settings),
                "result": {"kl": float(), "rank": int(), "late_gain": float()} as values,
            }:
                found[canonical_json(settings)] = {"settings": settings, "result": values}
            case _:
                raise StorageError(f"{shown(path)}:{number}: not a point of a sweep; remove the file")
    return found


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)
