"""The commands that stand on pages for readers."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PageCommand:
    """One command of a page: program, arguments, and what a ``printf`` before it writes to its input."""

    section: str
    program: str
    arguments: tuple[str, ...]
    written: str = ""


def page_commands(page: Path) -> list[PageCommand]:
    """All ``lm`` and ``dialog`` commands in blocks of code without a language, in order."""
    found, section, fence = [], "", None
    for line in page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        if line.startswith("```"):
            fence = line if fence is None else None
        elif fence is None and line.startswith("#"):
            section = line.lstrip("# ")
        elif fence == "```" and (command := parsed(section, line)):
            found.append(command)
    return found


def parsed(section: str, line: str) -> PageCommand | None:
    """A line of a shell; None where it is no command of ours."""
    if not re.search(r"\b(lm|dialog) ", line):
        return None
    words = shlex.split(line, comments=True)
    written = ""
    if "|" in words:
        before, words = words[: words.index("|")], words[words.index("|") + 1 :]
        written = before[1].replace("\\n", "\n")
    if not words or words[0] not in ("lm", "dialog"):
        return None
    return PageCommand(section, words[0], tuple(words[1:]), written)
