"""Rows of chat and terminals: J1 typed lines, J2 shown text, J3 sessions on a pseudo-terminal."""

import io
import json
import random
import signal
import time
from collections.abc import Iterator
from contextlib import chdir, closing, contextmanager, redirect_stdout
from pathlib import Path

from rich.console import Console

from dialog.chat.conversation import Conversation
from dialog.chat.repl import COMMANDS, Repl
from lm.console.output import show
from lm.console.tables import Table
from lm.console.terminal import sanitize, unmarked
from lm.errors import Interrupted, visible
from tests.matrix.row import Case
from tests.support.chat_terminal import Terminal
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
    yield lambda rng, index: session(folder, rng, index)


def session(folder: Path, rng: random.Random, index: int) -> int:
    """Keys at random, then one of the endings; it ends by itself, with its code, within seconds."""
    ending, saved = ("ctrl-d", "quit", "ctrl-c", "hang up", "kill")[index % 5], folder / f"talk-{index}.jsonl"
    with closing(Terminal(folder)) as terminal:
        for _ in range(rng.randint(0, 4)):
            terminal.resize(rng.randint(1, 60), rng.randint(1, 200))
            terminal.type(
                rng.choice(("hello", "\x03", "\x1b[A", "caf\u00e9", "\t", "\x15", "\x0c", "/nbest 3"))
            )
        terminal.resize(30, 100)
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
        code = ended(terminal, ending)
        expected = {"hang up": (0, Interrupted.exit_code), "kill": (-signal.SIGKILL,)}.get(ending, (0,))
        assert code in expected, f"{ending}: exit {code}: {terminal.screen[-300:]!r}"
        for line in saved.read_text(encoding="utf-8").splitlines():
            json.loads(line)
    return 1


def ended(terminal: Terminal, ending: str) -> int:
    """The exit code or −signal of a chat that is left so."""
    if ending == "kill":
        terminal.signal(signal.SIGKILL)
    elif ending == "hang up":
        terminal.hang_up()
    else:
        terminal.type("/quit\r" if ending == "quit" else "\x04")
    # The kernel loses a Ctrl-D that comes between two prompts, in line mode.
    return terminal.ended("\x04" if ending == "ctrl-d" else "")
