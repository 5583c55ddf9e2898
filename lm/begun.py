"""From its import on, a signal ends the process with 75 and one line. A command imports it first.

:func:`lm.ending.begin` replaces the handlers, once what it needs is imported. Only Python's own start, and
the script that pip writes, come before.
"""

import os
import signal

_EXIT_CODE = 75  # that of lm.errors.Interrupted, which is not imported yet


def leave(*_: object) -> None:
    """Signal handler that exits at once."""
    try:
        os.write(2, b"interrupted; run the same command again\n")
    finally:  # also with a closed stderr
        os._exit(_EXIT_CODE)


for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    if signal.getsignal(_number) in (signal.SIG_DFL, signal.default_int_handler):
        signal.signal(_number, leave)
