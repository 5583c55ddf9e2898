"""Search for a setting of dynamic evaluation on the validation split.

Finished results are stored in a file of the run. The next setting depends only on them, so that an
interrupted search continues as if uninterrupted.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from lm.disk.jsonfile import JSON, is_sealed, read_json, sealed, write_json
from lm.errors import ConfigError, DivergenceError, StorageError, require
from lm.language.adaptation import (
    ADAPT_LENGTH,
    DYNAMIC_SETTINGS,
    GRID_DECAY,
    GRID_LR,
    RANGES,
    STREAMS,
    Adaptation,
    DynamicSetting,
    Statistics,
    factors,
)
from lm.language.evaluate import Text, likelihood
from lm.language.results import Likelihood
from lm.language.trained import TrainedLm
from lm.numbers import shortest
from lm.results import as_json
from lm.steps import OnProgress, Steps

NUMBERS = ("lr", "decay", "eps")


@dataclass(frozen=True)
class TriedSetting:
    """η, λ and ε of dynamic evaluation, and the likelihood of the searched text, None if it diverged."""

    lr: float
    decay: float
    eps: float
    nll: float | None
    perplexity: float | None


@dataclass(frozen=True)
class SearchedSettings:
    """All settings that a search has tried, the option that asked for it, and the text."""

    searched: Sequence[TriedSetting]
    searched_by: str
    searched_on: str


@dataclass(frozen=True)
class Grid:
    """Every η with every λ of the grid of Krause et al. (2018), in proportion to the window."""

    option: ClassVar[str] = "--grid"  # of the command line
    chooses: ClassVar[tuple[str, ...]] = ("lr", "decay")  # fields of the setting that the search sets
    file: ClassVar[str] = "grid.json"  # of the results

    @property
    def count(self) -> int:
        """Number of settings."""
        return len(GRID_LR) * len(GRID_DECAY)

    def label(self, base: DynamicSetting) -> str:
        """Label of the result in evaluations."""
        usual = DYNAMIC_SETTINGS["default"]
        same = (base.eps, base.scaling) == (usual.eps, usual.scaling)
        return "-".join(["grid", *([] if same else [f"eps-{shortest(base.eps)}"]), *unusual(base)])

    def propose(self, base: DynamicSetting, tried: Sequence[TriedSetting]) -> DynamicSetting:
        """The next setting after the ``tried`` ones; ``base`` is not in original scaling."""
        factor = base.window / ADAPT_LENGTH
        lr, decay = divmod(len(tried), len(GRID_DECAY))
        return replace(base, lr=GRID_LR[lr] * factor, decay=GRID_DECAY[decay] * factor)


@dataclass(frozen=True)
class Draws:
    """``count`` settings from the ranges of Melis et al. (2020, Table 6), by optuna's TPE sampler.

    Melis et al. sum gradients over a window, so their ε is divided by the window's length here.
    """

    count: int
    option: ClassVar[str] = "--trials"
    chooses: ClassVar[tuple[str, ...]] = NUMBERS
    file: ClassVar[str] = "trials.json"

    def __post_init__(self) -> None:
        require(self.count >= 1, f"--trials {self.count}: must be at least 1")

    def label(self, base: DynamicSetting) -> str:
        if base.scaling == "original":  # the search sets all of its numbers
            base = replace(base, scaling="normalised")
        return "-".join([f"trials-{self.count}", *unusual(base)])

    def propose(self, base: DynamicSetting, tried: Sequence[TriedSetting]) -> DynamicSetting:
        from optuna.distributions import FloatDistribution
        from optuna.trial import TrialState, create_trial

        from lm.tuning.trials import WORST, next_draw

        scale = {"lr": 1.0, "decay": 1.0, "eps": 1 / base.window}
        ranges = {
            name: FloatDistribution(low * scale[name], high * scale[name], log=True)
            for name, (low, high) in RANGES.items()
        }
        trials = [
            create_trial(
                state=TrialState.COMPLETE,
                value=WORST if one.nll is None else one.nll,
                params={name: getattr(one, name) for name in ranges},
                distributions=dict(ranges),
            )
            for one in tried
        ]
        return replace(base, **next_draw(str(len(tried)), trials, ranges).params)


SettingSearch = Grid | Draws


def require_free(search: SettingSearch, changed: Mapping[str, object]) -> None:
    """Raise ConfigError if a search would override or ignore explicit options."""
    if overridden := [name for name in search.chooses if name in changed]:
        names = " ".join(f"--{name}" for name in overridden)
        raise ConfigError(
            f"{names}: {search.option} sets {' and '.join(search.chooses)} itself;"
            f" leave out {names} or {search.option}"
        )
    if changed.get("scaling") == "original" and "eps" in search.chooses:  # it converts given numbers only
        raise ConfigError(f"--scaling original: has no effect with {search.option}; leave it out")


def choose(
    search: SettingSearch,
    base: DynamicSetting,
    trained: TrainedLm,
    statistics: Statistics,
    valid: Text,
    folder: Path,
    of: Mapping[str, JSON],
    progress: OnProgress,
) -> tuple[DynamicSetting, SearchedSettings]:
    """The best setting on ``valid``, and all tried ones.

    Results are stored in ``folder`` with the key ``of`` of the statistics. DivergenceError if all diverge.
    """
    base = base.normalised(statistics.windows, len(statistics.squares))
    fixed = {name: getattr(base, name) for name in (*NUMBERS, "scaling") if name not in search.chooses}
    paper = bool(of["paper"])
    key = {**of, "valid_sha256": valid.sha256, "tokens": len(valid.ids) - paper, **fixed}
    path = folder / search.file
    tried = _finished(path, key)[: search.count]
    before = len(tried)
    factors(statistics, base)  # a failure of theirs is one of every setting
    steps = Steps(len(valid.ids) * (search.count - before), progress)
    while len(tried) < search.count:
        setting = search.propose(base, tried)
        found: Likelihood | None = None
        with suppress(DivergenceError):
            nll = Adaptation(trained, statistics, setting, paper).nll(valid.ids, steps.advance)
            found = likelihood(nll, trained, valid, len(nll))
        loss, ppl = (found.nll, found.perplexity) if found else (None, None)
        tried.append(TriedSetting(setting.lr, setting.decay, setting.eps, loss, ppl))
        write_json(path, sealed({"of": key, "results": [as_json(one) for one in tried]}))
        steps.reach(len(valid.ids) * (len(tried) - before))
    losses = [(one.nll, place) for place, one in enumerate(tried) if one.nll is not None]
    if not losses:
        remedy = "give --lr and --eps instead" if "eps" in search.chooses else "raise --eps"
        raise DivergenceError(f"dynamic evaluation diverges with every setting of {search.option}; {remedy}")
    best = tried[min(losses)[1]]
    chosen = replace(base, lr=best.lr, decay=best.decay, eps=best.eps)
    return chosen, SearchedSettings(tried, search.option, valid.source)


def _finished(path: Path, key: Mapping[str, JSON]) -> list[TriedSetting]:
    """Results of an earlier, perhaps unfinished, search with the same key; [] if the file was changed."""
    with suppress(StorageError, KeyError, TypeError):
        record: Any = read_json(path)
        if is_sealed(record) and record["of"] == key:
            return [TriedSetting(**row) for row in record["results"]]
    return []


def unusual(setting: DynamicSetting) -> list[str]:
    """Parts of a label for the non-default options of a setting, except its numbers."""
    window = [] if setting.window == ADAPT_LENGTH else [f"window-{setting.window}"]
    streams = [] if setting.streams == STREAMS else [f"streams-{setting.streams}"]
    return [*window, *streams, *([] if setting.scaling == "normalised" else [setting.scaling])]
