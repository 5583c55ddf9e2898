"""Commands that make the numbers of a run again."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from lm.config.difference import changed_keys, flat_config
from lm.config.load import C, Resolved, load_config
from lm.config.presets import presets_and_bases
from lm.config.settings import DEFAULT
from lm.errors import HighrankError

_PLACE = re.compile(r"(.+):(\d+)")  # FILE:LINE


def train_command(resolved: Resolved[C], run: Path, program: str) -> str:
    """The ``train`` command of a run; "" if neither a preset nor a file gives its config.

    The config is loaded as the command would load it, and compared.
    """
    values = flat_config(resolved.config)
    overrides = [
        f"{key}={_text(value)}"
        for key, value in values.items()
        if not _is_file_or_default(resolved.provenance.get(key, DEFAULT))
    ]
    for source in _sources(resolved.provenance, program):
        try:
            again = load_config(source, type(resolved.config), family=program, overrides=overrides)
        except HighrankError:
            continue
        if not set(changed_keys(flat_config(again.config), values)) - {"extends", "about"}:
            words = [word for override in overrides for word in ("--set", override)]
            return shlex.join([program, "train", source, *words, "--run", str(run)])
    return ""


def _sources(provenance: dict[str, str], program: str) -> Iterator[str]:
    """Presets and files from which values of a config may come, the likeliest first."""
    places = {match.groups() for place in provenance.values() if (match := _PLACE.fullmatch(place))}
    lines = {(Path(file).name, line) for file, line in places}
    found = []
    for name, preset in presets_and_bases(program).items():
        shared = lines & {(preset.path.name, str(line)) for line in preset.lines.values()}
        if shared and not name.startswith("_"):
            found.append((-len(shared), name))
    yield from (name for _, name in sorted(found))
    yield from sorted({file for file, _ in places if Path(file).is_file()})


def _is_file_or_default(place: str) -> bool:
    return place == DEFAULT or _PLACE.fullmatch(place) is not None


def _text(value: object) -> str:
    """A value as ``--set`` reads it."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)
