"""Options that the studies of heads share, and the heads that a study trains side by side.

C contexts · V words · E context size · K components · H hidden size.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal

from lm.config.section import MAX_NUMBER, MAX_SEED, MAX_SIZE, MIN_NUMBER
from lm.errors import require
from lm.heads.registry import HEADS
from lm.studies.known_language import Language
from lm.studies.sweep_point import LIKELY_WORDS, PARTS, SweepPoint, possible

FULL = "full softmax"
MAX_SCORES = 1 << 26  # largest C·K·V of a head; training holds about eight float32 tensors of that size
_COUNTS = (
    "contexts", "vocab", "rank", "embedding_sizes", "components", "component_sweep", "sweep_size",
    "hidden_size", "steps",
)  # fmt: skip


@dataclass(frozen=True)
class HeadOptions:
    """Heads, their sizes and their training. Raises a one-line ConfigError for invalid values."""

    heads: tuple[str, ...] = ("softmax", "sigsoftmax", "moc", "mos", "moss")
    components: tuple[int, ...] = (4,)
    sweep_size: int = 8  # E of the sweep of K, and of all heads without a sweep
    hidden_size: int = 48
    context_scale: tuple[float, ...] = (10.0,)  # factors on the contexts of mixtures
    steps: tuple[int, ...] = (1000,)
    lr: float = 0.05
    seeds: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value, option = getattr(self, name), f"--{name.replace('_', '-')}"
            values = value if isinstance(value, tuple) else (value,)
            require(len(values) > 0 or name == "component_sweep", f"{option}: name at least one")
            unique = len(set(values)) == len(values)
            require(unique or name == "steps", f"{option}: repeated value; name each once")
            if name in _COUNTS:
                least = min(values, default=1)
                require(least >= 1, f"{option} {least}: must be at least 1")
                largest = max(values, default=1)
                require(largest <= MAX_SIZE, f"{option} {largest}: must be at most {MAX_SIZE}")
        for head in self.heads:
            require(head in HEADS, f"--heads {head!r}: unknown head; choose from {', '.join(HEADS)}")
        for scale in self.context_scale:
            require_positive("--context-scale", scale)
        require_positive("--lr", self.lr)
        for seed in self.seeds:
            require(0 <= seed <= MAX_SEED, f"--seeds {seed}: must be between 0 and {MAX_SEED}")


@dataclass(frozen=True)
class LanguageOptions(HeadOptions):
    """Heads on a language of known distributions."""

    contexts: int = 96
    vocab: int = 768
    rank: int = 48
    spread: float = 3.0
    context_law: Literal["uniform", "zipf"] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        for head, least in (("cpr", LIKELY_WORDS[-1]), ("mfs", PARTS)):
            enough = head not in self.heads or self.vocab >= least
            require(enough, f"--vocab {self.vocab}: {head} needs {least} words; raise it")
        require_scores("contexts", self.contexts, self.vocab, max(self.components))
        _ = self.languages  # raises the error of an impossible one

    @cached_property
    def languages(self) -> tuple[Language, ...]:
        """Languages of the seeds, whose full rank is measured once."""
        sizes = (self.contexts, self.vocab, self.rank, self.spread, self.context_law)
        return tuple(Language(seed, *sizes) for seed in self.seeds)


def require_positive(option: str, value: float) -> None:
    """Raise ConfigError for a number that is not positive, or of a size that configs refuse."""
    usable = MIN_NUMBER <= value <= MAX_NUMBER
    require(usable, f"{option} {value}: must be a number from {MIN_NUMBER:g} to {MAX_NUMBER:g}")


def require_scores(rows: str, count: int, vocab: int, components: int) -> None:
    """Raise ConfigError if the scores of ``count`` rows for all words and components are too many."""
    scores = count * vocab * components
    require(
        scores <= MAX_SCORES,
        f"{scores:,} {rows} × words × components need about {scores * 32 // 10**6:,} MB;"
        f" lower one of these numbers, to a product of at most {MAX_SCORES:,}",
    )


def heads_of(options: HeadOptions) -> dict[str, SweepPoint]:
    """Heads by name: each kind at E = ``sweep_size`` with each factor, and the full softmax at E = H.

    All have the same K and number of updates. ConfigError for several, or heads or sizes that do not fit.
    """
    for name in ("components", "steps"):
        numbers = len(getattr(options, name))
        require(numbers == 1, f"--{name}: {numbers} numbers; give one for --task backward or spam")
    size, hidden, [components] = options.sweep_size, options.hidden_size, options.components
    require(size < hidden, f"--sweep-size {size}: must be below --hidden-size {hidden}, the full rank")
    found = {}
    for kind in options.heads:
        mixture, label = HEADS[kind].is_mixture, HEADS[kind].label
        count = components if mixture else 1
        require(kind != "doc", "--heads doc: this task has one layer, and doc reads two; leave doc out")
        require(possible(kind, count), f"--components {count}: not possible for {kind}; give another")
        for scale in options.context_scale if mixture else (1.0,):
            name = f"{label} ×{scale:g}" if mixture else label
            found[name] = SweepPoint(kind, count, size, hidden, scale)
    return found | {FULL: SweepPoint("softmax", 1, hidden, hidden)}
