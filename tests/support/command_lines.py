"""The commands of ``dialog`` and ``lm``, and processes that run them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

COMMANDS = (
    "analyze gradient", "analyze rank", "chat", "check", "compare", "demo", "describe", "distinct", "doctor",
    "evaluate", "export", "import", "prepare", "presets", "references", "report", "runs", "score", "serve",
    "show", "train", "tune",
)  # fmt: skip
LM_COMMANDS = (
    "analyze components", "analyze divergence", "analyze examples", "analyze gates",
    "analyze geometry", "analyze gradient", "analyze histories", "analyze rank", "analyze recovery",
    "analyze temperature", "analyze unargmaxable", "bottleneck", "check", "compare", "describe",
    "doctor", "dynamic", "evaluate", "export", "finetune", "generate", "import", "prepare",
    "presets", "report", "reverse-copy", "runs", "score", "serve", "train", "tune",
)  # fmt: skip
Outcome = tuple[int, str, str]
FULL = "standard output: No space left on device; free some, or write elsewhere\n"


def python(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | (env or {}),
    )


def cpu_seconds_since(before: os.times_result) -> float:
    """Of the processes that ended since: unlike wall time, it does not depend on what else is running."""
    now = os.times()
    return now.children_user + now.children_system - before.children_user - before.children_system


def leaves(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The commands of a group by the words that call them, those of the groups inside it included."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            assert command.help
            yield from leaves(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command
