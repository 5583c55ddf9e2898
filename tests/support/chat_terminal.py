"""A chat with the toy responder on a pseudo-terminal, in a forked child."""

import fcntl
import os
import pty
import signal
import struct
import sys
import termios
import time
import warnings
from contextlib import suppress
from pathlib import Path

from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_input
from prompt_toolkit.output import create_output

from dialog.chat.terminal import converse_on_terminal
from lm.ending import EarlyStop
from lm.errors import Interrupted
from tests.support.toy_chat import conversation


class Terminal:
    """The other end of a terminal of 30 lines and 100 columns, on which the chat shows its first prompt."""

    def __init__(self, folder: Path, kind: str = "xterm") -> None:
        with warnings.catch_warnings():  # of the threads of the test runner, which hold no lock of ours
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid, self.master = pty.fork()
        if not self.pid:
            _chat(folder, kind)
        os.set_blocking(self.master, False)
        self.resize(30, 100)
        self.screen = self.seen = ""  # what is shown after the text that was expected last, and all of it
        self.expect("Ctrl-D leaves")
        self.expect(">")

    def resize(self, lines: int, columns: int) -> None:
        """Set the size, of which the chat is told by a signal."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read(self) -> None:
        """Take what is there, and answer the question for the place of the cursor."""
        try:
            read = os.read(self.master, 65536).decode(errors="replace")  # echoed as typed
        except OSError:  # nothing, or the end
            return
        if "\x1b[6n" in read:
            self.type("\x1b[1;1R")
        self.screen += read
        self.seen += read

    def expect(self, *texts: str) -> None:
        """Wait until one of the texts is shown."""
        deadline = time.monotonic() + 60
        while not any(text in self.screen for text in texts):
            assert time.monotonic() < deadline, f"no {texts} in {self.screen[-500:]!r}"
            time.sleep(0.005)
            self.read()
        self.screen = next(self.screen.partition(text)[2] for text in texts if text in self.screen)

    def type(self, text: str) -> None:
        """Press keys."""
        with suppress(OSError):
            os.write(self.master, text.encode(errors="surrogateescape"))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the chat."""
        os.kill(self.pid, number)

    def hang_up(self) -> None:
        """Close this end, once."""
        if self.master >= 0:
            os.close(self.master)
            self.master = -1

    def ended(self, repeated: str = "") -> int:
        """Wait for the end: the exit code or −signal. ``repeated`` is typed again every two seconds."""
        started = typed = time.monotonic()
        pid = 0
        while not pid:
            now = time.monotonic()
            assert now < started + 60, f"it does not end: {self.screen[-500:]!r}"
            if repeated and now > typed + 2:
                self.type(repeated)
                typed = now
            time.sleep(0.005)
            self.read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """End the chat if it goes on."""
        if self.pid:
            self.signal(signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
        self.hang_up()


def _chat(folder: Path, kind: str) -> None:
    """In the child: a chat as a program's; never returns."""
    code = 70
    try:
        os.chdir(folder)
        os.environ |= {"XDG_STATE_HOME": str(folder), "TERM": kind}
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode) for n, mode in ((0, "r"), (1, "w"), (2, "w")))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        own = create_app_session(create_input(), create_output())  # not those of the parent
        with own, EarlyStop():
            converse_on_terminal(conversation(), sys.stdout)
        code = 0
    except KeyboardInterrupt:
        code = Interrupted.exit_code
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)
