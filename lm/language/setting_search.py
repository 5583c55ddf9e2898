"""The choice of a setting of dynamic evaluation on the validation split, setting after setting.

What is finished is kept in a file of the run, and the next setting follows from that alone, so that a search
that was stopped goes on as if it had not been.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

from lm.disk.storage import JSON, read_json, write_json
from lm.errors import ConfigError, DivergenceError, StorageError, require
from lm.language.adaptation import (
    ADAPT_LENGTH,
    DYNAMIC_SETTINGS,
    GRID_DECAY,
    GRID_LR,
    RANGES,
    STREAMS,
    DynamicSetting,
    Statistics,
    dynamic_nll,
)
from lm.language.evaluate import Text, likelihood
from lm.language.trained import TrainedLm
from lm.runs.evaluations import Result
from lm.steps import OnProgress, Steps

NUMBERS = ("lr", "decay", "eps")
SettingRows = Sequence[
    Mapping[str, Any]
]  # of each setting lr, decay, eps; nll and perplexity, None if it diverged


class SettingSearch(Protocol):
    """Which settings are tried."""

    option: ClassVar[str]  # of the command line
    chooses: ClassVar[tuple[str, ...]]  # fields of the setting; the others stay
    file: ClassVar[str]  # where results are kept

    @property
    def count(self) -> int:
        """How many settings."""
        ...

    def label(self, base: DynamicSetting) -> str:
        """What its result is kept under."""
        ...

    def propose(self, base: DynamicSetting, rows: SettingRows) -> DynamicSetting:
        """The one after those of ``rows``; ``base`` is not in original scaling."""
        ...


@dataclass(frozen=True)
class Grid:
    """Every η with every λ of the grid of Krause et al. (2018), in proportion to the window."""

    option: ClassVar[str] = "--grid"
    chooses: ClassVar[tuple[str, ...]] = ("lr", "decay")
    file: ClassVar[str] = "grid.json"

    @property
    def count(self) -> int:
        return len(GRID_LR) * len(GRID_DECAY)

    def label(self, base: DynamicSetting) -> str:
        usual = DYNAMIC_SETTINGS["default"]
        same = (base.eps, base.scaling) == (usual.eps, usual.scaling)
        return "-".join(["grid", *([] if same else [f"eps-{base.eps:g}"]), *unusual(base)])

    def propose(self, base: DynamicSetting, rows: SettingRows) -> DynamicSetting:
        factor = base.window / ADAPT_LENGTH
        lr, decay = divmod(len(rows), len(GRID_DECAY))
        return replace(base, lr=GRID_LR[lr] * factor, decay=GRID_DECAY[decay] * factor)


@dataclass(frozen=True)
class Draws:
    """So many settings from the ranges of Melis et al. (2020, Table 6), by optuna's TPE sampler.

    Their ε is for gradients that are summed over a window, so it is divided by its length here.
    """

    trials: int
    option: ClassVar[str] = "--trials"
    chooses: ClassVar[tuple[str, ...]] = NUMBERS
    file: ClassVar[str] = "trials.json"

    def __post_init__(self) -> None:
        require(self.trials >= 1, f"--trials {self.trials}: must be at least 1")

    @property
    def count(self) -> int:
        return self.trials

    def label(self, base: DynamicSetting) -> str:
        if base.scaling == "original":  # of numbers that are all chosen here
            base = replace(base, scaling="normalised")
        return "-".join([f"trials-{self.trials}", *unusual(base)])

    def propose(self, base: DynamicSetting, rows: SettingRows) -> DynamicSetting:
        from optuna.distributions import FloatDistribution
        from optuna.trial import TrialState, create_trial

        from lm.tuning.trials import next_draw

        scale = {"lr": 1.0, "decay": 1.0, "eps": 1 / base.window}
        ranges = {
            name: FloatDistribution(low * scale[name], high * scale[name], log=True)
            for name, (low, high) in RANGES.items()
        }
        trials = [
            create_trial(
                state=TrialState.FAIL if row["nll"] is None else TrialState.COMPLETE,
                value=row["nll"],
                params={name: row[name] for name in ranges},
                distributions=dict(ranges),
            )
            for row in rows
        ]
        return replace(base, **next_draw(str(len(rows)), trials, ranges).params)


def require_free(search: SettingSearch, changed: Collection[str]) -> None:
    """ConfigError where a search would override numbers that were asked for one by one."""
    if overridden := [name for name in search.chooses if name in changed]:
        names = " ".join(f"--{name}" for name in overridden)
        raise ConfigError(
            f"{names}: {search.option} chooses {' and '.join(search.chooses)} itself;"
            f" leave out {names} or {search.option}"
        )


def choose(
    search: SettingSearch,
    base: DynamicSetting,
    trained: TrainedLm,
    statistics: Statistics,
    valid: Text,
    folder: Path,
    of: Mapping[str, JSON],
    progress: OnProgress,
) -> tuple[DynamicSetting, list[Result]]:
    """The best setting on ``valid``, and the results of all; one that diverges has none.

    They are kept in ``folder``, with what the statistics are ``of``. DivergenceError if all diverge.
    """
    base = base.normalised(statistics.windows, len(statistics.squares))
    fixed = {name: getattr(base, name) for name in (*NUMBERS, "scaling") if name not in search.chooses}
    paper = bool(of["paper"])
    key = {**of, "valid_sha256": valid.sha256, "tokens": len(valid.ids) - paper, **fixed}
    path = folder / search.file
    rows = _finished(path, key)[: search.count]
    before = len(rows)
    steps = Steps(len(valid.ids) * (search.count - before), progress)
    while len(rows) < search.count:
        setting = search.propose(base, rows)
        row: Result = {name: getattr(setting, name) for name in NUMBERS}
        try:
            nll = dynamic_nll(trained, valid.ids, statistics, setting, paper=paper, advance=steps.advance)
            measured = likelihood(nll, trained, valid, len(nll))
            row |= {name: measured[name] for name in ("nll", "perplexity")}
        except DivergenceError:
            row |= {"nll": None, "perplexity": None}
        rows.append(row)
        write_json(path, {"of": key, "results": rows})
        steps.reach(len(valid.ids) * (len(rows) - before))
    found = [(row["nll"], place) for place, row in enumerate(rows) if row["nll"] is not None]
    if not found:
        raise DivergenceError(
            f"dynamic evaluation diverges with every setting of {search.option}; raise --eps"
        )
    best = rows[min(found)[1]]
    return replace(base, **{name: best[name] for name in NUMBERS}), rows


def _finished(path: Path, key: Result) -> list[Result]:
    """The results of an earlier search of the same, as far as it came."""
    with suppress(StorageError, KeyError, TypeError):
        record: Any = read_json(path)
        if record["of"] == key:
            return list(record["results"])
    return []


def unusual(setting: DynamicSetting) -> list[str]:
    """What is unusual of a setting besides its numbers, for a label."""
    window = [] if setting.window == ADAPT_LENGTH else [f"window-{setting.window}"]
    streams = [] if setting.streams == STREAMS else [f"streams-{setting.streams}"]
    return [*window, *streams, *([] if setting.scaling == "normalised" else [setting.scaling])]
