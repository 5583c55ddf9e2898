"""Names of trunks in configs: a kind, or hf:FOLDER for a pretrained model."""

from pathlib import Path

from lm.config.own_remedy import OwnRemedyError
from lm.errors import visible

PRETRAINED = "hf"  # kind of the trunks that are models of transformers
_EXAMPLES = "docs/huggingface.md"  # has a config of each family on such a trunk
_PREFIX = f"{PRETRAINED}:"  # of the name of such a trunk, before the folder


def trunk_kind(name: str) -> str:
    """Kind of a trunk by its name in a config: recurrent, transformer, or hf for hf:FOLDER.

    No kind is returned as it is.
    """
    if name in (PRETRAINED, _PREFIX):
        return _PREFIX  # lacks the folder
    return PRETRAINED if name.startswith(_PREFIX) else name


class Kinds:
    """The names of trunks of some kinds."""

    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and trunk_kind(name) in self._kinds


def unfit(trunk: str, problem: str) -> OwnRemedyError:
    """The mistake of a config that does not fit its pretrained trunk.

    A folder that does not exist comes first, since the user has to mend that in any case.
    """
    path = pretrained_path(trunk)
    if path is not None and not path.exists():
        return OwnRemedyError(f"model.trunk = {visible(trunk)}: no such folder; check the path")
    remedy = f"begin with a config without it, as in {_EXAMPLES}"
    return OwnRemedyError(f"{problem}; {remedy}", for_key="leave it out")


def pretrained_path(name: str) -> Path | None:
    """The folder of a trunk hf:FOLDER; None for others."""
    return Path(name.removeprefix(_PREFIX)) if trunk_kind(name) == PRETRAINED else None


def pretrained_name(path: Path) -> str:
    """The name of the trunk of a folder, or of a file that has its architecture."""
    return f"{_PREFIX}{path}"
