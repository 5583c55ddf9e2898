"""Required libraries and their versions, as the installed package names them."""

import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import dataclass

from lm.errors import ConfigError

_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)(?:\[.*?\])?\s*(?:>=\s*([\d.]+))?")


@dataclass(frozen=True)
class Library:
    """A library, its minimum version and its installed version. "" means any version, and not installed."""

    name: str
    least: str
    installed: str

    @property
    def too_old(self) -> bool:
        """True if the installed version is below the minimum."""
        return bool(self.installed) and bool(self.least) and _parts(self.installed) < _parts(self.least)


def required_libraries(extra: str = "") -> Iterator[Library]:
    """The libraries of Highrank, or those that an optional extra such as ``tune`` adds.

    Nothing if Highrank runs from a folder without an installation.
    """
    try:
        requirements = importlib.metadata.requires("highrank") or ()
    except importlib.metadata.PackageNotFoundError:
        return
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        _, _, owner = requirement.partition("extra ==")
        if match is not None and owner.strip(" '\"") == extra:
            yield Library(match[1], match[2] or "", installed_version(match[1]))


def installed_version(name: str) -> str:
    """The version of a library, or "" if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def require_libraries(who: str, extra: str, *names: str) -> None:
    """Raise ConfigError unless the named libraries, which ``who`` needs, are installed and new enough.

    ``extra`` is the optional extra of Highrank that installs them.
    """
    required = {library.name: library for library in required_libraries(extra)}
    for name in names:
        library = required.get(name) or Library(name, "", installed_version(name))  # another brings it
        if library.installed and not library.too_old:
            continue
        newer = f" {library.least} or newer, not {library.installed}" if library.installed else ""
        remedy = f"install it with pip install -e '.[{extra}]' in the folder of Highrank"
        raise ConfigError(f"{who} needs {name}{newer}; {remedy}")


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])
