"""Early checks of the corpora that a config names, before any heavy import."""

import os
import shlex
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Protocol

from lm.errors import DataError, visible

SPLITS = ("train", "valid", "test")
SPLIT_NAMES = {  # splits by their names in data sets and files
    **{name: name for name in SPLITS},
    **dict.fromkeys(("val", "validation", "dev"), "valid"),
    "training": "train",
}
_MADE_UP = ("smalltalk:",)  # prefixes of synthetic corpora, which have no file


class NamedSplits(Protocol):
    """A config section that names corpora."""

    @property
    def train(self) -> str: ...
    @property
    def valid(self) -> str: ...
    @property
    def test(self) -> str: ...


def missing(source: str, command: str, other: str = "", named: str = "the path") -> DataError:
    """The error for a missing source, with the command that prepares a split, or another remedy.

    ``named`` is what named the source, as ``data.train``.
    """
    path = Path(source)
    if path.name not in SPLITS or not path.parent.name:
        return DataError(f"{source}: no such file or folder; check {named}")
    if os.path.isfile(path.parent / "manifest.json"):
        remedies = " or ".join(filter(None, (f"prepare it again with a {path.name} split", other)))
        return DataError(f"{path.parent}: prepared without a {path.name} split; {remedies}")
    origin, out = (shlex.quote(visible(one)) for one in (f"path/to/{path.parent.name}", path.parent))
    made = f"{source}: no such corpus; make it with: {command} {origin} --out {out}"
    return DataError(f"{made}; or {other}" if other else made)


def own_split(data: NamedSplits, source: str) -> bool:
    """True if a source is a split of a config."""
    return source in [getattr(data, name) for name in SPLITS]


def split_of_run(data: NamedSplits, name: str, instead: str = "") -> str:
    """The source of a split by the config of a run, with an option ``instead`` of it for messages.

    DataError with the key of the split if a file or folder is missing.
    """
    source: str = getattr(data, name)
    if ":" in source or (source and _exists(source, os.lstat)):
        return source
    if not source:
        raise DataError(f"data.{name} of the run's config is empty; {instead or 'train with one'}")
    remedies, place = [instead] if instead else [], ""
    if not os.path.isabs(source):
        place = ", relative to the folder of the training"
        remedies.insert(0, "run the command in that folder")
    raise DataError(
        f"{source}: no such file or folder; it is data.{name} of the run's config{place};"
        f" {', or '.join(remedies) or 'restore it'}"
    )


def require_splits(data: NamedSplits, command: str, instead: str = "") -> list[str]:
    """Raise DataError if a training text is missing. Return warnings about equal splits."""
    for name in SPLITS[:2]:
        source: str = getattr(data, name)
        if not source:
            raise DataError(f"data.{name} is empty; name a corpus, in the config or with --set data.{name}=…")
        if not source.startswith(_MADE_UP) and not _exists(source, os.stat):
            own = f"train on a file of your own with: {instead}" if instead else ""
            raise missing(source, command, own or f"name yours with --set data.{name}=…", f"data.{name}")
    return [
        f"warning: data.{one} and data.{other} are both {visible(getattr(data, one))}; "
        "scores do not measure generalisation to other text"
        for one, other in combinations(SPLITS, 2)
        if _same(getattr(data, one), getattr(data, other))
    ]


def _exists(source: str, look: Callable[[str], object]) -> bool:
    """True if ``look`` finds a source. Raises DataError if a folder of the path may not be read."""
    try:
        look(source)
    except PermissionError as error:
        raise DataError(f"{source}: cannot be read ({error.strerror}); check path and permissions") from error
    except (OSError, ValueError):
        return False
    return True


def _same(one: str, other: str) -> bool:
    try:
        return one == other or os.path.samefile(one, other)
    except (OSError, ValueError):
        return False
