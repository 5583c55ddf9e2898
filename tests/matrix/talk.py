"""Rows of chat and terminals: J1 typed lines, J2 shown text, J3 sessions on a pseudo-terminal."""

import fcntl
import io
import json
import os
import pty
import random
import signal
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stdout, suppress
from pathlib import Path

from rich.console import Console

from dialog.chat.conversation import Conversation
from dialog.chat.repl import COMMANDS, Repl
from dialog.chat.terminal import converse_on_terminal
from lm.console.app import show
from lm.console.tables import Table
from lm.console.terminal import sanitize, unmarked
from lm.errors import visible
from tests.matrix.row import Case
from tests.support.terminal_text import DANGEROUS, FORBIDDEN
from tests.support.toy_responder import ToyResponder

MARKUP = ("[bold]x[/bold]", "[/foo]", "[link=http://x]y[/link]", ":smile:", "\x1b]8;;http://x\x1b\\y")


def anything(rng: random.Random, longest: int = 12) -> str:
    """Text of dangerous pieces, markup, words, and characters from anywhere."""
    pieces = []
    for _ in range(rng.randint(0, longest)):
        kind = rng.randrange(4)
        pieces.append(
            rng.choice(DANGEROUS) if kind == 0
            else rng.choice(MARKUP) if kind == 1
            else chr(rng.choice((rng.randrange(0x250), rng.randrange(0x10FFFF)))) if kind == 2
            else rng.choice(("word", "hello there", " ", "9" * 30))
        )  # fmt: skip
    return "".join(pieces)


@contextmanager
def typed(folder: Path) -> Iterator[Case]:
    """J1: conversations of ten lines, commands with any arguments among them, in a folder with a run."""
    (folder / "run").mkdir()
    ours = [folder / "run" / "config.json", folder / "run" / "metrics.jsonl", folder / "notes.txt"]
    for path in ours:
        path.write_text("{}\n")

    def line(rng: random.Random) -> str:
        if rng.random() < 0.5:
            return anything(rng)
        name = rng.choice([*COMMANDS, "x", "", "SAVE", "beem"])
        if name == "save" or rng.random() < 0.1:
            path = rng.choice(
                ("run/config.json", "run/metrics.jsonl", "notes.txt", "..", "", "new.jsonl", "a/b")
            )
            return f"/save {path}{rng.choice(('', anything(rng, 2).replace('/', '')))}"
        value = rng.choice((anything(rng), str(rng.randint(-3, 9)), "9" * 5000, "T=0.5", "nan", "top_k=1e9"))
        return f"/{name} {value}"

    def case(rng: random.Random, index: int) -> int:
        with chdir(folder):
            return talk_of_ten(rng, index)

    def talk_of_ten(rng: random.Random, index: int) -> int:
        toy = ToyResponder()
        chat = Repl(Conversation(toy))
        lines = [line(rng) for _ in range(10)]
        if index % 300 == 0:
            lines[0] = anything(rng) * 20_000
        for text in lines:
            answers = chat.feed(text)
            for answer in answers:
                assert "\n" not in answer, repr(text)
                assert not FORBIDDEN.search(answer), repr(text)
            assert len(answers) <= 5000
        assert all(len(example.context) <= 9 for example in toy.heard)
        for path in ours:
            assert path.read_text() == "{}\n", f"{path.name} was overwritten by one of {lines}"
        return len(lines)

    yield case


@contextmanager
def shown(folder: Path) -> Iterator[Case]:
    """J2: what reaches a terminal of any text: no control, no escape, no direction, no markup."""

    def case(rng: random.Random, index: int) -> int:
        text = anything(rng, 30)
        clean = sanitize(text)
        assert not FORBIDDEN.search(clean)
        assert sanitize(clean) == clean
        clean.encode()
        output = io.StringIO()
        Console(file=output, force_terminal=True, width=10_000, highlight=False).print(unmarked(text), end="")
        assert not FORBIDDEN.search(output.getvalue())
        assert output.getvalue().split() == clean.split()
        piped = io.StringIO()
        with redirect_stdout(piped):
            show(Table(text, [{"text": text, "other": 1.5}]))
        assert not set(piped.getvalue()) & {"\x1b", "\x07", "\x9b", "\r", "\u202e", "\b", "\0"}, repr(text)
        assert visible(text).isprintable()
        return 1

    yield case


@contextmanager
def sessions(folder: Path) -> Iterator[Case]:
    """J3: a chat in a forked child on a terminal of its own."""
    os.environ["XDG_STATE_HOME"] = str(folder)
    os.environ["TERM"] = "xterm"
    yield lambda rng, index: session(folder / f"talk-{index}.jsonl", rng, index)


def session(saved: Path, rng: random.Random, index: int) -> int:
    """Keys at random, then one of the endings; it ends by itself, with 0, within seconds."""
    ending = ("ctrl-d", "quit", "ctrl-c", "hang up", "kill")[index % 5]
    pid, master = pty.fork()
    if pid == 0:
        talk()
    terminal = Screen(master)
    try:
        terminal.expect("Ctrl-D leaves")
        terminal.expect(">")
        for _ in range(rng.randint(0, 4)):
            size = struct.pack("HHHH", rng.randint(1, 60), rng.randint(1, 200), 0, 0)
            fcntl.ioctl(master, termios.TIOCSWINSZ, size)
            terminal.type(
                rng.choice(("hello", "\x03", "\x1b[A", "caf\u00e9", "\t", "\x15", "\x0c", "/nbest 3"))
            )
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        terminal.type("\x03")
        terminal.type(f"something\r/save {saved}\r")
        terminal.expect("(saved 2 utterances", "(saved 1 utterances")
        if ending == "ctrl-c":
            terminal.type("wait\r")
            terminal.expect("thinking")
            started = time.monotonic()
            terminal.type("\x03")
            terminal.expect("(stopped)")
            assert time.monotonic() - started < 5, "a reply went on after Ctrl-C"
        code = terminal.end(pid, ending)
        expected = {"hang up": (0, 75, -signal.SIGHUP), "kill": (-signal.SIGKILL,)}.get(ending, (0,))
        assert code in expected, f"{ending}: exit {code}: {terminal.text[-300:]!r}"
        for line in saved.read_text(encoding="utf-8").splitlines():
            json.loads(line)
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        with suppress(OSError):
            os.close(master)
    return 1


def talk() -> None:
    """In the child: chat with the toy on this terminal; never returns."""
    code = 70
    try:
        import sys

        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode) for n, mode in ((0, "r"), (1, "w"), (2, "w")))
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        converse_on_terminal(Repl(Conversation(ToyResponder())), sys.stdout)
        code = 0
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


class Screen:
    """The other end of a terminal."""

    def __init__(self, master: int) -> None:
        self.master, self.text = master, ""
        os.set_blocking(master, False)

    def read(self) -> None:
        """Take what is there; answer the question for the place of the cursor."""
        try:
            new = os.read(self.master, 65536).decode(errors="replace")
        except OSError:
            return
        if "\x1b[6n" in new:
            self.type("\x1b[1;1R")
        self.text += new

    def expect(self, *texts: str) -> None:
        deadline = time.monotonic() + 60
        while not any(text in self.text for text in texts):
            assert time.monotonic() < deadline, f"no {texts} in {self.text[-300:]!r}"
            time.sleep(0.005)
            self.read()
        self.text = next(self.text.partition(text)[2] for text in texts if text in self.text)

    def type(self, text: str) -> None:
        with suppress(OSError):
            os.write(self.master, text.encode(errors="surrogateescape"))

    def end(self, pid: int, ending: str) -> int:
        """Leave, and wait: the exit code or −signal."""
        if ending == "kill":
            os.kill(pid, signal.SIGKILL)
        elif ending == "hang up":
            os.close(self.master)
        else:
            self.type("/quit\r" if ending == "quit" else "\x04")
        started = typed = time.monotonic()
        ended = 0
        while not ended:
            now = time.monotonic()
            assert now < started + 60, f"{ending}: it does not end: {self.text[-300:]!r}"
            if ending == "ctrl-d" and now > typed + 2:
                self.type("\x04")  # the kernel loses one that comes between two prompts, in line mode
                typed = now
            time.sleep(0.005)
            if ending != "hang up":
                self.read()
            ended, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status)
