"""Chat: what the model hears, the commands, hostile lines, parity with evaluation, a real terminal."""

import fcntl
import io
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prompt_toolkit.history import FileHistory
from test_terminal import FORBIDDEN, anything, mixtures
from toy_responder import ToyResponder

from dialog.batches import START, list_examples
from dialog.chat import converse, history_file, interruptible, prompt_session
from dialog.conversation import COMMANDS, Conversation
from dialog.corpus import Dialog, Utterance, load_dialogs
from dialog.schema import DecodeConfig, DialogConfig
from dialog.task import build_model
from dialog.trained import TrainedModel
from dialog.transcript import read_transcript
from lm.errors import DivergenceError, Interrupted
from lm.text import DIALOG, build_codec


def conversation() -> Conversation:
    return Conversation(ToyResponder())


def safe(lines: list[str]) -> bool:
    return not any("\n" in line or FORBIDDEN.search(line) for line in lines)


@pytest.fixture(scope="module")
def tiny() -> TrainedModel:
    """A real model with random weights."""
    config = DialogConfig.model_validate(
        {
            "model": {"embedding_size": 8, "init_range": 1.0},
            "encoder": {"utterance_size": 6, "context_size": 7},
            "decoder": {"hidden_size": 9},
            "head": {"kind": "mos", "components": 3, "embedding_size": 8},
            "decode": {"beam": 3, "nbest": 3, "max_length": 6},
        }
    )
    texts = ["well i think we saw that film", "oh yeah it was long , was n't it", "right uh-huh"]
    codec = build_codec("wordpunct", texts, vocab_size=60, extra_counts={"<s>": 3, "</s>": 3, DIALOG: 1})
    torch.manual_seed(5)
    return TrainedModel(config, codec, build_model(config, codec).eval(), torch.device("cpu"))


@pytest.mark.parametrize("method", ["beam", "sample"])
def test_replies_are_those_of_evaluation(tiny: TrainedModel, method: str) -> None:
    """The same context as an example of a corpus, among others in a batch, gets the same response."""
    decode = DecodeConfig.model_validate(tiny.config.decode.model_dump() | {"method": method, "seed": 7})
    chat = Conversation(tiny, decode)
    said = ["well i saw that film", "Oh, was it LONG?", "yeah", "right", "i think so", "uh-huh", "oh yeah"]
    replies = [chat.feed(line) for line in said]
    utterances = [u for exchange in chat.exchanges for u in (exchange.said, exchange.reply)]
    corpus = [Dialog("x", "", tuple(utterances)), Dialog("y", "", tuple(utterances[4:] + utterances[:3]))]
    corpus[0] = Dialog("x", "", (*utterances, Utterance("A", "bye")))
    examples = list_examples(corpus, tiny.config.data.context)
    found = tiny.respond(examples, decode, batch_size=5)
    for index, reply in enumerate(replies):
        best = found[2 * index + 1][0]
        assert chat.exchanges[index].hypotheses[0].tokens == best.tokens
        assert chat.exchanges[index].hypotheses[0].log_prob == pytest.approx(best.log_prob, abs=1e-4)
        assert reply == [tiny.codec.decode(best.tokens) or "(says nothing)"]
    assert len({tuple(reply) for reply in replies}) > 1


def test_shares_of_the_components_sum_to_the_probability(tiny: TrainedModel) -> None:
    chat = Conversation(tiny)
    chat.feed("well was it long")
    lines = chat.feed("/probs 4")
    best = chat.exchanges[-1].hypotheses[0]
    heads = [line for line in lines if not line.startswith(" ")]
    assert len(heads) == len(best.tokens) + best.finished
    assert len(lines) == 5 * len(heads)
    for line in lines:
        if line.startswith(" "):
            prob, shares = line.split()[0], line.partition(" = ")[2].split(" + ")
            assert len(shares) == 3
            assert sum(map(float, shares)) == pytest.approx(float(prob), abs=3e-4)
        else:
            assert sum(map(float, line.partition("prior ")[2].split())) == pytest.approx(1, abs=3e-4)


def test_the_model_hears_the_last_utterances() -> None:
    chat = conversation()
    chat.feed("hello there")
    (example,) = chat.model.heard
    assert example.context == (START, Utterance("A", "hello there"))
    assert example.responder == "B"
    for number in range(20):
        chat.feed(f"line {number}")
    spoken = [u for exchange in chat.exchanges for u in (exchange.said, exchange.reply)]
    assert chat.model.heard[-1].context == tuple(spoken[-10:-1])
    assert len(chat.model.heard[-1].context) == 9


def test_undo_and_reset_restore_what_the_model_heard() -> None:
    chat = conversation()
    first = chat.feed("one")
    second = chat.feed("two")
    assert chat.feed("/undo") == ["(took back: two)"]
    assert chat.feed("two") == second
    assert chat.feed("/reset") == ["(a new conversation)"]
    assert chat.feed("one") == first
    chat.feed("/undo")
    assert chat.feed("/undo") == ["(nothing to take back)"]
    assert chat.feed("/probs") == ["(no reply to look into yet)"]


def test_settings_reach_the_model() -> None:
    chat = conversation()
    chat.feed("/beam 7")
    assert (chat.decode.method, chat.decode.beam) == ("beam", 7)
    chat.feed("/greedy")
    assert (chat.decode.method, chat.decode.beam) == ("beam", 1)
    (line,) = chat.feed("/sample T=0.5 top_k=4 top_p=0.9 on=components")
    decode = chat.decode
    assert (decode.method, decode.temperature, decode.top_k, decode.top_p) == ("sample", 0.5, 4, 0.9)
    assert decode.temperature_on == "components"
    assert "T=0.5" in line
    before = chat.feed("hello")
    chat.feed("/undo")
    chat.feed("/seed 99")
    assert chat.feed("hello") != before
    assert chat.decode.seed == 99
    assert chat.feed("/quit") == []
    assert chat.ended


def test_nbest_lists_scores_and_says_the_first() -> None:
    chat = conversation()
    chat.feed("/nbest 3")
    lines = chat.feed("hello")
    assert [line.split()[:2] for line in lines] == [["1.", "-1.500"], ["2.", "-2.500"], ["3.", "-3.500"]]
    assert (chat.exchanges[0].reply.text or "(says nothing)") in lines[0]


def test_help_lists_every_command_and_show_the_context() -> None:
    chat = conversation()
    listed = chat.feed("/help")
    assert [line.split()[0] for line in listed] == [f"/{name}" for name in COMMANDS]
    chat.feed("hello")
    shown = chat.feed("/show")
    assert shown[0] == "(beam search, 10 beams)"
    assert shown[2] == "A  hello"
    assert len(shown) == 4


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/rset", "did you mean /reset?"),
        ("/", "/help"),
        ("/nbets 3", "did you mean /nbest?"),
        ("/beam", "use /beam N"),
        ("/beam x", "whole number, got x"),
        ("/beam 0", "from 1 to 1000"),
        ("/beam 1000000", "from 1 to 1000"),
        ("/beam " + "9" * 5000, "whole number"),
        ("/beam 1 2", "use /beam N"),
        ("/nbest -1", "from 1 to 1000"),
        ("/seed -1", "from 0 to"),
        ("/sample T=0", "temperature: input should be greater than 0"),
        ("/sample T=nan", "temperature"),
        ("/sample T=inf", "temperature"),
        ("/sample top_p=2", "top_p: input should be less than or equal to 1"),
        ("/sample top_k=0.5", "whole number"),
        ("/sample on=words", "temperature_on"),
        ("/sample hotter", "use /sample"),
        ("/sample x=1", "use /sample"),
        ("/probs 0", "from 1 to 1000"),
        ("/reset now", "use /reset"),
        ("/save", "use /save FILE"),
        ("/save talk.jsonl", "nothing to save yet"),
    ],
)
def test_bad_commands_get_one_line_and_change_nothing(line: str, says: str, in_tmp: Path) -> None:
    chat = conversation()
    before = (chat.decode, chat.shown)
    (answer,) = chat.feed(line)
    assert says in answer
    assert (chat.decode, chat.shown) == before
    assert chat.exchanges == []
    assert list(in_tmp.iterdir()) == []


def test_a_saved_conversation_is_json_lines(in_tmp: Path) -> None:
    chat = conversation()
    chat.feed("caf\u00e9 \udcff\x1b[31m \u201cquoted\u201d\u2028here")
    chat.feed("/nbest 2")
    chat.feed("again")
    assert chat.feed("/save talk it over.jsonl") == ["(saved 4 utterances to talk it over.jsonl)"]
    lines = (in_tmp / "talk it over.jsonl").read_text(encoding="utf-8").split("\n")
    records = [json.loads(line) for line in lines[:-1]]
    assert lines[-1] == ""
    (dialog,) = load_dialogs("talk it over.jsonl")
    assert dialog.id == "talk it over"
    assert [(u.speaker, u.text) for u in dialog.utterances] == [(r["speaker"], r["text"]) for r in records]
    assert [record["speaker"] for record in records] == ["A", "B", "A", "B"]
    assert records[0]["text"] == "caf\u00e9  \u201cquoted\u201d\u2028here"
    assert records[3]["text"] == records[3]["hypotheses"][0]["text"]
    assert len(records[3]["hypotheses"]) == records[3]["decode"]["nbest"] == 2


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/nonexistent/folder/x", "its folder does not exist"),
        (".", "is a folder; name a file"),
        ("x" * 5000, "shorter path"),
        ("fifo", "not a regular file"),
        ("link", "not a regular file"),
        ("/dev/null", "not a regular file"),
    ],
)
def test_where_nothing_can_be_saved(path: str, says: str, in_tmp: Path) -> None:
    chat = conversation()
    chat.feed("hello")
    os.mkfifo("fifo")
    Path("link").symlink_to("elsewhere")
    (answer,) = chat.feed(f"/save {path}")
    assert says in answer
    assert sorted(os.listdir()) == ["fifo", "link"]


def chat_lines(name: str) -> list[dict[str, Any]]:
    """The lines of a conversation that chat has saved."""
    chat = conversation()
    chat.feed("hello")
    chat.feed("how are you")
    chat.feed(f"/save {name}")
    return [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]


def test_saving_replaces_a_saved_conversation_and_nothing_else(in_tmp: Path) -> None:
    saved = chat_lines("talk.jsonl")
    turns = [{key: record[key] for key in ("dialog", "speaker", "text")} for record in saved]
    foreign = {
        "notes": "remember the milk\n",
        "empty": "",
        "blank": "\n",
        "nothing.json": "{}",
        "corpus.jsonl": "".join(f"{json.dumps(turn)}\n" for turn in turns),
        "other.jsonl": "".join(f"{json.dumps(record | {'mine': 1})}\n" for record in saved),
        "more.jsonl": Path("talk.jsonl").read_text(encoding="utf-8") + "and my notes\n",
        "order.jsonl": "".join(f"{json.dumps(record)}\n" for record in (saved[1], *saved)),
        "edited.jsonl": "".join(f"{json.dumps(r | {'text': 'mine'})}\n" for r in saved),
        "deep.json": "[" * 200_000,
        "digits.json": '{"dialog": ' + "9" * 5000 + "}",
    }
    for name, content in foreign.items():
        Path(name).write_text(content, encoding="utf-8")
    Path("bytes").write_bytes(b"\xff\xfe\0")
    chat = conversation()
    chat.feed("hello")
    for name in (*foreign, "bytes"):
        before = Path(name).read_bytes()
        (answer,) = chat.feed(f"/save {name}")
        assert answer.endswith("so it is not replaced; save to another file"), name
        assert Path(name).read_bytes() == before
    assert chat.feed("/save talk.jsonl") == ["(saved 2 utterances to talk.jsonl)"]
    assert len(Path("talk.jsonl").read_text(encoding="utf-8").splitlines()) == 2


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "lock", "checkpoints/last.json"])
def test_saving_spares_a_run(name: str, in_tmp: Path) -> None:
    saved = chat_lines("talk.jsonl")
    Path("run/checkpoints").mkdir(parents=True)
    Path("run/config.json").write_text("{}")
    path = Path("run") / name
    path.write_text("".join(f"{json.dumps(record)}\n" for record in saved))
    before = path.read_bytes()
    chat = conversation()
    chat.feed("hello")
    (answer,) = chat.feed(f"/save {path}")
    assert "belongs to" in answer
    assert answer.endswith("write to another file")
    assert path.read_bytes() == before


def test_conversations_of_before_are_recognised(in_tmp: Path) -> None:
    """What earlier versions wrote: no model, nothing beside the words of a line without a reply."""
    lines = chat_lines("old.jsonl")
    for line in lines:
        line.pop("model", None)
    lines.insert(2, {"dialog": "old", "speaker": "A", "text": "no answer"})
    Path("old.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    turns = read_transcript(Path("old.jsonl"))
    assert [(turn.said, turn.reply) for turn in turns] == [
        ("hello", lines[1]["text"]), ("no answer", ""), ("how are you", lines[4]["text"]),
    ]  # fmt: skip
    assert turns[1].decode is None
    chat = conversation()
    chat.feed("hello")
    assert chat.feed("/save old.jsonl") == ["(saved 2 utterances to old.jsonl)"]


commands = st.tuples(
    st.sampled_from([*COMMANDS, "x", ""]), mixtures | anything | st.integers().map(str)
).filter(lambda pair: not pair[0].startswith("save"))
lines_of_input = mixtures | anything | commands.map(lambda pair: f"/{pair[0]} {pair[1]}")


@settings(max_examples=150, deadline=None)
@given(st.lists(lines_of_input, max_size=12))
def test_no_line_breaks_it_and_nothing_unsafe_comes_back(lines: list[str]) -> None:
    chat = conversation()
    for line in lines:
        assert safe(chat.feed(line))
        assert len(chat.feed("/undo")) == 1
    assert safe(chat.feed("and then"))
    assert safe(chat.feed("/probs 50"))
    assert safe(chat.feed("/show"))


def test_a_megabyte_and_many_turns(in_tmp: Path) -> None:
    chat = conversation()
    assert safe(chat.feed("word \x1b[1m" * 100_000))
    chat.feed("/reset")
    started = time.perf_counter()
    for turn in range(2000):
        assert len(chat.feed(f"turn {turn}")) == 1
    assert time.perf_counter() - started < 10
    assert len(chat.model.heard[-1].context) == 9


def test_what_is_not_utf8_is_told_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    source = io.TextIOWrapper(io.BytesIO(b"/help\n\xff/help\n"))
    converse(conversation(), source, output := io.StringIO())
    lines = output.getvalue().splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :], "the line without it is answered"
    assert capsys.readouterr().err == "line 2: not UTF-8; left out what is not\n"


def test_empty_lines_are_passed_over() -> None:
    chat = conversation()
    assert [chat.feed(line) for line in ("", "   ", "\n", "\x1b[31m", "\udcff")] == [[]] * 5
    assert chat.exchanges == []


def test_a_stopped_or_failed_reply_leaves_the_conversation() -> None:
    chat = conversation()

    def press() -> None:
        raise Interrupted("stopped")

    def fail() -> None:
        raise DivergenceError("the model's probabilities are not numbers")

    assert chat.feed("wait", press) == ["(stopped)"]
    assert chat.feed("wait", fail) == ["the model's probabilities are not numbers"]
    assert chat.exchanges == []


def test_piped_lines_get_a_line_each() -> None:
    """Invalid UTF-8, CRLF and a missing last newline included."""
    raw = b"hello\r\n\n\xff\xfe there\nlast \xe2\x80\xa8 line\n/quit\nnever"
    source, target = io.TextIOWrapper(io.BytesIO(raw)), io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    chat = conversation()
    converse(chat, source, target)
    said = [exchange.said.text for exchange in chat.exchanges]
    assert said == ["hello", "there", "last \u2028 line"]
    assert target.buffer.getvalue().decode().split("\n") == [
        *(exchange.reply.text or "(says nothing)" for exchange in chat.exchanges),
        "",
    ]


def test_a_closed_output_ends_it_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    chat = conversation()
    with open(writer, "w", encoding="utf-8") as output:
        converse(chat, io.StringIO("hello\n" * 5), output)
        output.write("what is flushed at the end goes nowhere")
    assert len(chat.exchanges) == 1


def test_ctrl_c_is_polled_and_then_forgotten() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as poll:
        poll()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted):
            poll()
        poll.reset()
        poll()
    assert signal.getsignal(signal.SIGINT) is before


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


class Terminal:
    """A program on a pseudo-terminal."""

    def __init__(self, folder: Path) -> None:
        self.master, slave = pty.openpty()
        environment = os.environ | {"XDG_STATE_HOME": str(folder), "TERM": "xterm"}
        paths = os.pathsep.join((str(Path(__file__).parents[1]), str(Path(__file__).parent)))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "toy_responder"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment | {"PYTHONPATH": paths},
            start_new_session=True,
            cwd=folder,
        )
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        os.close(slave)
        os.set_blocking(self.master, False)
        self.screen = ""

    def expect(self, text: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.screen:
            assert time.monotonic() < deadline, f"no {text!r} in {self.screen[-500:]!r}"
            time.sleep(0.01)
            try:
                read = os.read(self.master, 65536).decode(errors="replace")  # echoed as typed
            except BlockingIOError:
                continue
            if "\x1b[6n" in read:  # the prompt asks where the cursor is
                os.write(self.master, b"\x1b[1;1R")
            self.screen += read
        self.screen = self.screen.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self.master, text.encode(errors="surrogateescape"))


def test_on_a_terminal_ctrl_c_stops_a_reply_and_ctrl_d_leaves(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    try:
        terminal.expect("Ctrl-D leaves")
        terminal.expect(">")
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
        terminal.expect("left")
        assert terminal.process.wait(60) == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.master)
    lines = (tmp_path / "highrank" / "chat_history").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("+")] == ["+wait", "+/nosuch "]
