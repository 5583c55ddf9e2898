"""TOML documents whose values know the line they were written on.

``tomllib`` gives no positions, but a line of errors is worth little without one. A TOML document is a
sequence of table headers and ``key = value`` statements, and a statement ends where ``tomllib`` first
accepts it; reading statement by statement therefore gives exact lines without a second TOML parser.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from lm.errors import ConfigError

Lines = dict[tuple[str, ...], int]


def read_toml(path: Path) -> tuple[dict[str, Any], Lines]:
    """Parse a file; returns its data and the line of every key and table.

    Raises ConfigError for a file that is missing, unreadable, not UTF-8 or not TOML.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8; save the file as UTF-8") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_syntax_message(path, text, str(error))) from None
    except RecursionError:
        raise ConfigError(f"{path}: not a config: nested too deeply") from None
    return data, key_lines(text)


def key_lines(text: str) -> Lines:
    """The line (from 1) on which every key, table and table of a dotted key of valid TOML first stands."""
    found: Lines = {}
    table: tuple[str, ...] = ()
    statement, start = "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not statement:
            start = number
        statement += line + "\n"
        try:
            data = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue  # an array or string that goes on
        header = statement.lstrip().startswith("[")
        if header:
            table = _key_paths(data)[-1]
        for path in _key_paths(data):
            found.setdefault(path if header else table + path, start)
        statement = ""
    return found


def _key_paths(data: dict[str, Any]) -> list[tuple[str, ...]]:
    """Every path of nested tables, outer ones first; of an array of tables, its own."""
    paths: list[tuple[str, ...]] = []
    for key, value in data.items():
        paths.append((key,))
        if isinstance(value, dict):
            paths += [(key, *rest) for rest in _key_paths(value)]
    return paths


def _syntax_message(path: Path, text: str, problem: str) -> str:
    position = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", problem)
    reason = problem[: position.start()] if position else problem
    lines = text.split("\n")
    number = int(position[1]) if position and position[1] else len(lines)
    if reason.startswith(("Cannot overwrite", "Cannot declare")):
        reason = "this key or table is already there; remove one of the two"
    content = lines[number - 1].strip()
    return f"{path}:{number}: not valid TOML: {reason}" + (f": {content[:60]!r}" if content else "")
