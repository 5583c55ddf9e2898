"""Names of trunks in configs: a kind, or hf:FOLDER for a pretrained model."""

from pathlib import Path

PRETRAINED = "hf"  # kind of the trunks that are models of transformers
_PREFIX = f"{PRETRAINED}:"  # of the name of such a trunk, before the folder


def trunk_kind(name: str) -> str:
    """Kind of a trunk by its name in a config: recurrent, transformer, or hf for hf:FOLDER.

    No kind is returned as it is.
    """
    if name in (PRETRAINED, _PREFIX):
        return _PREFIX  # lacks the folder
    return PRETRAINED if name.startswith(_PREFIX) else name


def pretrained_path(name: str) -> Path | None:
    """The folder of a trunk hf:FOLDER; None for others."""
    return Path(name.removeprefix(_PREFIX)) if trunk_kind(name) == PRETRAINED else None


def pretrained_name(path: Path) -> str:
    """The name of the trunk of a folder, or of a file that has its architecture."""
    return f"{_PREFIX}{path}"
