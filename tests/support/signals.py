"""Real signals at chosen moments of a computation in this process, as a command line takes them."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from lm.ending import EarlyStop

ROOT = Path(__file__).parents[2]
OURS = tuple(str(ROOT / folder) for folder in ("lm", "dialog"))


@contextmanager
def signal_at(call: int = 0, name: str = "") -> Iterator[list[int]]:
    """A section with a SIGTERM at that call of a function of ``lm`` or ``dialog``; 0 = none.

    ``name`` restricts the count to functions of that name. A generator is called for every item. Yields the
    number of calls so far. Run all once before, since a signal during an import ends the process.
    """
    calls = [0]

    def look(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS) and name in ("", code.co_name):
            if code.co_filename.endswith(("lm/ending.py", "lm/stop.py")):
                return
            calls[0] += 1
            if calls[0] == call:
                signal.raise_signal(signal.SIGTERM)

    with EarlyStop():
        sys.setprofile(look)
        try:
            yield calls
        finally:
            sys.setprofile(None)
