"""TOML documents with the line number of every key.

``tomllib`` gives no positions, but error messages need them. A TOML document is a sequence of table headers
and ``key = value`` statements. A statement ends with a line outside of all strings and brackets. So parsing
statement by statement gives exact lines without a second TOML parser.
"""

import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lm.disk.storage import read_file
from lm.errors import ConfigError, StorageError

Lines = dict[tuple[str, ...], int]

MAX_TOML = 1 << 20  # bytes of a config
MAX_DEPTH = 32  # brackets in brackets, and parts of a dotted key; a config has two
_TOKEN = re.compile(  # an unterminated string runs to the end of the document or line
    r'''"""(?:[^\\]|\\.)*?(?:"{3,5}|\\?\Z)|"(?:[^"\\\n]|\\.)*"?|'''
    r"""'''.*?(?:'{3,5}|\Z)|'[^'\n]*'?|#[^\n]*|[\[{\]}\n]""",
    re.DOTALL,
)
_BRACKET = re.compile(r"[\[{\]}]")
_DOTTED = re.compile(rf"(?<![\w-])(?:[\w-]+[ \t]*\.[ \t]*){{{MAX_DEPTH}}}")
_LONG_NUMBER = re.compile(r"[0-9_]{4301}")


class _OutOfRange(float):
    """A float, infinite or 0, that shows the digits it was written with."""

    def __new__(cls, text: str) -> "_OutOfRange":
        number = super().__new__(cls, text)
        number.text = str(text)  # a copy is made from the number
        return number

    text: str

    def __repr__(self) -> str:
        return self.text


def as_float(text: str) -> float:
    """A float of TOML. A number out of the range of floats keeps its text for messages."""
    number = float(text)
    above = math.isinf(number) and text[-1].isdecimal()
    below = number == 0 and re.search(r"[1-9]", text.lower().partition("e")[0])
    return _OutOfRange(text) if above or below else number


def read_toml(path: Path) -> tuple[dict[str, Any], Lines]:
    """Parse a file. Return its data and the line of every key and table.

    Raises ConfigError for a file that is missing, not regular, too large, not UTF-8 or not TOML.
    """
    try:
        text = read_file(path, limit=MAX_TOML).decode("utf-8-sig")
    except StorageError as error:
        raise ConfigError(str(error)) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8; save the file as UTF-8") from None
    try:
        if line := _too_deep(text):
            raise ConfigError(f"{path}:{line}: not a config: nested too deeply")
        data = tomllib.loads(text, parse_float=as_float)
        return data, key_lines(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_syntax_message(path, text, str(error))) from None
    except RecursionError:
        raise ConfigError(f"{path}: not a config: nested too deeply") from None
    except ValueError as error:  # Python parses no longer numbers
        line = next((n for n, part in enumerate(text.split("\n"), 1) if _LONG_NUMBER.search(part)), 1)
        raise ConfigError(
            f"{path}:{line}: a number of more than 4,300 digits; write a shorter one"
        ) from error


def key_lines(text: str) -> Lines:
    """The first line (from 1) of every key, table and table of a dotted key in valid TOML."""
    found: Lines = {}
    table: tuple[str, ...] = ()
    for line, statement in _statements(text):
        data = tomllib.loads(statement)
        header = statement.lstrip().startswith("[")
        if header:
            table = _key_paths(data)[-1]
        for path in _key_paths(data):
            found.setdefault(path if header else table + path, line)
    return found


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield every header and every key with its value in valid TOML, with its first line."""
    line = number = 1
    start = depth = 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in "[{") - (token[0] in "]}")
        number += token[0].count("\n")
        if token[0] == "\n" and depth == 0:
            yield line, text[start : token.end()]
            start, line = token.end(), number
    yield line, text[start:]


def _too_deep(text: str) -> int:
    """The line of the first bracket nested too deeply, or of a key with too many parts; 0 if there is none.

    The time of tomllib grows with the square of the depth, and very deep nesting overflows the stack.
    """
    bare = _TOKEN.sub(_without_text, text)
    depth = 0
    for bracket in _BRACKET.finditer(bare):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > MAX_DEPTH:
            return bare.count("\n", 0, bracket.start()) + 1
    dotted = _DOTTED.search(bare)
    return bare.count("\n", 0, dotted.start()) + 1 if dotted else 0


def _without_text(token: re.Match[str]) -> str:
    """The replacement of a token: one letter and the line ends for a string, nothing for a comment."""
    found = token[0]
    lines = "\n" * found.count("\n")
    return f"s{lines}" if found[0] in "\"'" else "" if found[0] == "#" else found


def _key_paths(data: dict[str, Any]) -> list[tuple[str, ...]]:
    """Every path of nested tables, outer ones first; for an array of tables only its own path."""
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
        reason = "key or table occurs twice; remove one of the two"
    content = lines[number - 1].strip()
    return f"{path}:{number}: not valid TOML: {reason}" + (f": {content[:60]!r}" if content else "")
