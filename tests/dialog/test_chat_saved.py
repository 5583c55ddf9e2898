"""Saved conversations: written, loaded, replayed, and refused where they are not ours."""

import io
import json
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialog.batches import Example
from dialog.chat.conversation import Conversation
from dialog.chat.ctrl_c import CTRL_C
from dialog.chat.repl import Repl
from dialog.chat.terminal import converse
from dialog.chat.transcript import Source, read_transcript
from dialog.corpora.corpus import load_dialogs
from dialog.decoding.config import DecodeConfig
from dialog.trained import TrainedModel
from lm.errors import StorageError
from tests.support.terminal_text import anything
from tests.support.toy_chat import chat_lines, conversation, safe
from tests.support.toy_responder import ToyResponder


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


def test_a_conversation_with_an_ensemble_is_saved_and_loaded(in_tmp: Path) -> None:
    """It has no step, and neither has an average; a run of an older version has no hash of its weights."""
    source = Source(run="runs/a + runs/b", checkpoint="best", step=None, weights=None)
    chat = Repl(Conversation(ToyResponder(), source=source))
    chat.feed("hello")
    for _ in range(2):
        assert chat.feed("/save talk.jsonl") == ["(saved 2 utterances to talk.jsonl)"]
    assert read_transcript(Path("talk.jsonl"))[0].model == source
    again = conversation()
    again.feed("/load talk.jsonl")
    assert again.conversation.exchanges[0].said.text == "hello"


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


def test_a_line_of_any_length_is_saved_and_loaded(in_tmp: Path) -> None:
    chat = conversation()
    chat.feed("word " * 20_000)
    assert chat.feed("/save long.jsonl")[0].startswith("(saved")
    again = conversation()
    again.feed("/load long.jsonl")
    assert again.conversation.exchanges[0].said == chat.conversation.exchanges[0].said


def test_saving_replaces_a_saved_conversation_and_nothing_else(in_tmp: Path) -> None:
    saved = chat_lines("talk.jsonl")
    turns = [{key: record[key] for key in ("dialog", "speaker", "text")} for record in saved]
    foreign = {
        "notes": "remember the milk\n",
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


@pytest.mark.parametrize(
    "name", ["config.json", "metrics.jsonl", "lock", "checkpoints/step-00000001/state.json"]
)
def test_saving_spares_a_run(name: str, in_tmp: Path) -> None:
    saved = chat_lines("talk.jsonl")
    Path("run/checkpoints/step-00000001").mkdir(parents=True)
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


@pytest.mark.parametrize("method", ["beam", "sample"])
def test_a_loaded_conversation_goes_on_as_if_never_saved(
    tiny: TrainedModel, in_tmp: Path, method: str
) -> None:
    decode = DecodeConfig.model_validate(tiny.config.decode.model_dump() | {"method": method, "seed": 7})
    source = Source(run="runs/tiny", checkpoint="best", step=5, weights="0" * 64)
    chat = Repl(Conversation(tiny, decode, source))
    for line in ("well i saw that film", "Oh, was it LONG?", "yeah", "/retry"):
        chat.feed(line)
    chat.feed("/save talk.jsonl")
    again = Repl(Conversation(tiny, decode, source))
    again.feed("something else")
    assert again.feed("/load talk.jsonl") == ["(goes on after 3 lines and their replies)"]
    for line in ("/history", "/show", "/probs", "/retry", "and then", "/probs 3", "/history"):
        assert again.feed(line) == chat.feed(line), line
    again.feed("/load talk.jsonl")
    again.feed("/save copy.jsonl")
    saved, copy = (Path(name).read_text(encoding="utf-8") for name in ("talk.jsonl", "copy.jsonl"))
    assert copy == saved.replace('"dialog": "talk"', '"dialog": "copy"')
    records = [json.loads(line) for line in saved.splitlines()]
    assert records[-1]["model"] == source.model_dump()
    assert records[-1]["decode"]["seed"] == 7 + (method == "sample")


def test_replay_shows_old_and_new_replies(tiny: TrainedModel, in_tmp: Path) -> None:
    chat = Repl(Conversation(tiny))
    said = ["well i saw that film", "was it long", "yeah right"]
    replies = [chat.feed(line)[0] for line in said]
    chat.feed("/save talk.jsonl")
    chat.feed("/reset")
    both = [
        line for pair in zip(said, replies, strict=True) for line in (f"A    {pair[0]}", f"both {pair[1]}")
    ]
    assert chat.feed("/replay talk.jsonl") == [*both, "(3 of 3 replies are the same)"]
    chat.feed("/sample T=3")
    told, *lines = chat.feed("/replay talk.jsonl")
    assert told == "(the old replies were made with other settings: /set method=beam)"
    new = [exchange.reply.text or "(says nothing)" for exchange in chat.conversation.exchanges]
    assert [exchange.said.text for exchange in chat.conversation.exchanges] == said
    pairs = list(zip(replies, new, strict=True))
    assert lines[-1] == f"({sum(old == now for old, now in pairs)} of 3 replies are the same)"
    for old, now in pairs:
        assert (f"both {old}" in lines) if old == now else {f"old  {old}", f"new  {now}"} < set(lines)
    output = io.StringIO()
    converse(Repl(Conversation(tiny)), io.StringIO(), output, Path("talk.jsonl"))
    assert output.getvalue().splitlines() == [*both, "(3 of 3 replies are the same)"]
    with pytest.raises(StorageError, match="no such file"):
        converse(chat, io.StringIO(), output, Path("none.jsonl"))


def test_a_replay_tells_of_other_weights(tiny: TrainedModel, in_tmp: Path) -> None:
    def chat(checkpoint: str, weights: str) -> Repl:
        source = Source(run="runs/a", checkpoint=checkpoint, step=1, weights=weights)
        return Repl(Conversation(tiny, source=source))

    saved = chat("last", "11")
    saved.feed("was it long")
    saved.feed("/save talk.jsonl")
    assert not any("other weights" in line for line in chat("best", "11").feed("/replay talk.jsonl"))
    told, *_ = chat("best", "22").feed("/replay talk.jsonl")
    assert told == "(the old replies are of other weights: runs/a, last)"


def test_a_stopped_replay_leaves_the_conversation(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chat_lines("talk.jsonl")
    Path("talk.jsonl").write_text(Path("talk.jsonl").read_text().replace("how are you", "wait"))
    chat = conversation()
    chat.feed("before")

    def press(responder: ToyResponder, example: Example) -> None:
        if example.context[-1].text == "wait":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ToyResponder, "_wait", press)
    with CTRL_C.held():
        assert chat.feed("/replay talk.jsonl")[-1] == "(stopped)"
    assert [exchange.said.text for exchange in chat.conversation.exchanges] == ["before"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_saved_file_breaks_it(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Cut, doubled, edited and foreign: it loads as a conversation, or one line says what it is."""
    path = tmp_path_factory.mktemp("chat") / "talk.jsonl"
    saved = chat_lines(str(path))
    values = st.none() | st.booleans() | st.integers() | st.floats() | anything | st.just([]) | st.just({})
    for record in saved:
        for key in data.draw(st.lists(st.sampled_from([*record, "x"]), max_size=1)):
            record[key] = data.draw(values)
    order = data.draw(st.lists(st.sampled_from(range(len(saved))), max_size=6))
    text = "".join(f"{json.dumps(saved[place])}\n" for place in order).encode()
    cut = data.draw(st.integers(0, len(text)))
    path.write_bytes(text[:cut] + data.draw(st.binary(max_size=9)) + text[cut:])
    chat = conversation()
    for command in ("load", "replay"):
        lines = chat.feed(f"/{command} {path}")
        assert lines
        assert safe(lines)
        assert safe(chat.feed("/history") + chat.feed("/probs") + chat.feed("/retry"))


@pytest.mark.parametrize("name", [f"{'a' * 300}/talk.jsonl", "a" * 300, "none/talk.jsonl", "talk.jsonl/more"])
def test_a_place_that_cannot_be_ends_no_chat(name: str, in_tmp: Path) -> None:
    chat_lines("talk.jsonl")
    chat = conversation()
    chat.feed("hello")
    (answer,) = chat.feed(f"/save {name}")
    assert "name too long" in answer or "its folder does not exist" in answer
    assert chat.feed("/save later.jsonl") == ["(saved 2 utterances to later.jsonl)"]


def test_an_empty_file_is_replaced_and_keeps_its_permissions(in_tmp: Path) -> None:
    Path("talk.jsonl").touch(mode=0o600)
    chat = conversation()
    for utterances in (2, 4):
        chat.feed("hello")
        assert chat.feed("/save talk.jsonl") == [f"(saved {utterances} utterances to talk.jsonl)"]
        assert Path("talk.jsonl").stat().st_mode & 0o777 == 0o600
