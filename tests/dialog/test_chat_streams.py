"""Chat over pipes and on a real terminal: lines, Ctrl-C, history."""

import io
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from dialog.batches import Example
from dialog.chat.ctrl_c import CTRL_C, Press
from dialog.chat.terminal import converse, history_file, prompt_session, typed_line
from dialog.chat.transcript import read_transcript
from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Hypothesis
from lm.ending import EarlyStop
from lm.errors import Interrupted
from tests.support.chat_terminal import Terminal
from tests.support.toy_chat import conversation
from tests.support.toy_responder import ToyResponder


class Terminated(ToyResponder):
    """It gets a signal while it thinks."""

    def respond(self, examples: Sequence[Example], decode: DecodeConfig) -> list[list[Hypothesis]]:
        signal.raise_signal(signal.SIGTERM)
        return super().respond(examples, decode)


def test_what_is_not_utf8_is_told_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    source = io.TextIOWrapper(io.BytesIO(b"/help\n\xff/help\n"))
    converse(conversation(), source, output := io.StringIO())
    lines = output.getvalue().splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :], "the line without it is answered"
    assert capsys.readouterr().err == "line 2: not UTF-8; dropped the invalid bytes\n"


@pytest.mark.parametrize("error", ["none", "closed", "full"])
def test_remarks_that_nobody_takes_change_nothing(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "hello qqq\n\udcff\nhello zzz\n"
    output, expected = io.StringIO(), io.StringIO()
    converse(conversation(), io.StringIO(said), expected)
    with open("/dev/full", "wb", buffering=0) as full:
        stream = io.TextIOWrapper(full, write_through=True)
        if error == "closed":
            stream.close()
        with monkeypatch.context() as patch:
            patch.setattr("sys.stderr", None if error == "none" else stream)
            patch.setattr("sys.stdout", output)  # what print takes for a standard error that is None
            converse(conversation(), io.StringIO(said), output)
    assert output.getvalue() == expected.getvalue()


def test_piped_lines_get_a_line_each() -> None:
    """Invalid UTF-8, CRLF and a missing last newline included."""
    raw = b"hello\r\n\n\xff\xfe there\nlast \xe2\x80\xa8 line\n/quit\nnever"
    source, target = io.TextIOWrapper(io.BytesIO(raw)), io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    chat = conversation()
    converse(chat, source, target)
    said = [exchange.said.text for exchange in chat.conversation.exchanges]
    assert said == ["hello", "there", "last \u2028 line"]
    assert target.buffer.getvalue().decode().split("\n") == [
        *(exchange.reply.text or "(says nothing)" for exchange in chat.conversation.exchanges),
        "",
    ]


def test_a_closed_output_ends_it_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    chat = conversation()
    with open(writer, "w", encoding="utf-8") as output:
        converse(chat, io.StringIO("hello\n" * 5), output)
        output.write("what is flushed at the end goes nowhere")
    assert len(chat.conversation.exchanges) == 1


def test_ctrl_c_ends_a_reply_and_nothing_else() -> None:
    before = signal.getsignal(signal.SIGINT)
    with CTRL_C.held():
        with pytest.raises(Interrupted), CTRL_C.ends_reply(), suppress(Exception):  # as in libraries
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interrupted), CTRL_C.ends_reply():
            raise AssertionError("a press between two replies of one line was forgotten")
        CTRL_C.forget()
        with CTRL_C.ends_reply():
            pass
    assert signal.getsignal(signal.SIGINT) is before


def test_another_signal_after_ctrl_c_ends_the_chat() -> None:
    def both() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGTERM)

    with EarlyStop(), CTRL_C.held():
        with pytest.raises(KeyboardInterrupt) as raised, CTRL_C.ends_reply():
            both()
        assert not isinstance(raised.value, Press)


def test_history_is_kept_outside_the_run_and_never_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    session = prompt_session()
    session.history.store_string("hello \udcff\x1b[31mthere")
    path = tmp_path / "highrank" / "chat_history"
    assert history_file() == path
    assert list(FileHistory(path).load_history_strings()) == ["hello there"]
    path.unlink()
    path.mkdir()
    session = prompt_session()
    session.history.store_string("x")
    assert list(session.history.load_history_strings()) == []


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A chat with the toy, at its first prompt, in an empty folder."""
    with closing(Terminal(tmp_path)) as terminal:
        yield terminal


def test_on_a_terminal_ctrl_c_stops_a_reply_and_ctrl_d_leaves(terminal: Terminal, tmp_path: Path) -> None:
    terminal.type("half a line\x03wait\r")  # Ctrl-C at the prompt gives a new one
    terminal.expect("thinking")
    started = time.monotonic()
    terminal.type("\x03")
    terminal.expect("(stopped)")
    assert time.monotonic() - started < 1
    terminal.type("/nosuch \udcff\r")
    terminal.expect("unknown command /nosuch")
    terminal.expect(">")
    terminal.type("\x04")
    assert terminal.ended() == 0
    lines = (tmp_path / "highrank" / "chat_history").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("+")] == ["+wait", "+/nosuch "]


AT_THE_PROMPT = (
    "\x03",  # Ctrl-C on an empty line
    "\x03\x03\x03",
    "half a line\x03",
    "half\x04 a line\x03",  # Ctrl-D deletes a character, and there is none
    "/se\t\x03",  # completion open
    "\x1b[A\x03",  # in the history
    "\x12sea\x03\x03",  # in a search of it
    "\x1b[200~pasted\nlines\x1b[201~\x03",
    "\x1b\x03",
)


IN_A_REPLY = (
    "\x03",
    "\x03\x03",
    "\x03\x03\x03\x03",
    "typed ahead\x03",
    "\x1b[A\x03",
    "resize",
    "\x04\x03",
    "\r\r\x03",
)


def test_ctrl_c_never_ends_a_chat(terminal: Terminal) -> None:
    """At the prompt, in a reply, in a retry, in a replay, while the window changes: a prompt follows."""
    for number, keys in enumerate(AT_THE_PROMPT):
        terminal.type(f"{keys}\x03")
        time.sleep(0.02)
        terminal.type(f"\x15/nothing{number}\r")
        terminal.expect(f"unknown command /nothing{number}")
    for number, keys in enumerate(IN_A_REPLY):
        terminal.type("wait\r")
        terminal.expect("thinking")
        for width in (10, 20, 300, 100) if keys == "resize" else ():
            terminal.resize(30, width)
        terminal.type("\x03" if keys == "resize" else keys)
        terminal.expect("(stopped)")
        terminal.type(f"\x03\x15/nobody{number}\r")
        terminal.expect(f"unknown command /nobody{number}")
    terminal.expect(">")
    terminal.type("\x04")
    assert terminal.ended() == 0


@pytest.mark.parametrize("kind", ["xterm", "dumb"])
@pytest.mark.parametrize("replying", [True, False])
def test_other_signals_end_a_chat_at_once(tmp_path: Path, replying: bool, kind: str) -> None:
    with closing(Terminal(tmp_path, kind)) as terminal:
        if replying:
            terminal.type("wait\r")
            terminal.expect("thinking")
        else:
            terminal.type("half a line")
            terminal.expect("half a line")
        terminal.signal(signal.SIGTERM)
        assert terminal.ended() == Interrupted.exit_code


@pytest.mark.parametrize("kind", ["dumb", "xterm"])
def test_a_signal_before_the_first_event_of_a_prompt_ends_it(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with create_pipe_input() as keys, create_app_session(keys, DummyOutput()), EarlyStop():
        session = prompt_session()
        prompt = session.prompt

        def signalled(*arguments: Any, **options: Any) -> str:
            signal.raise_signal(signal.SIGTERM)
            return prompt(*arguments, **options)

        monkeypatch.setattr(session, "prompt", signalled)
        with pytest.raises(KeyboardInterrupt):
            typed_line(session)


def test_a_signal_ends_a_chat_on_a_pipe() -> None:
    """It has no Ctrl-C of its own, which would stop a reply only."""
    chat = conversation()
    chat.conversation.model = Terminated()
    with EarlyStop(), pytest.raises(KeyboardInterrupt):
        converse(chat, io.StringIO("hello\nthere\n"), output := io.StringIO())
    assert output.getvalue() == ""


def test_what_is_saved_outlives_the_process(terminal: Terminal, tmp_path: Path) -> None:
    terminal.type("hello\r/save talk.jsonl\r")
    terminal.expect("(saved ")
    terminal.type("wait\r")
    terminal.expect("thinking")
    terminal.signal(signal.SIGKILL)
    assert terminal.ended() == -signal.SIGKILL
    assert [turn.said for turn in read_transcript(tmp_path / "talk.jsonl")] == ["hello"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["highrank", "talk.jsonl"]


def test_help_breaks_no_word_on_a_terminal(terminal: Terminal) -> None:
    lines = conversation().feed("/help")
    for width in (60, 80):
        terminal.resize(30, width)
        terminal.type("/help\r")
        terminal.expect(lines[-1])
        shown = terminal.seen[terminal.seen.rindex(lines[0]) :]
        assert all(line in shown for line in lines)
