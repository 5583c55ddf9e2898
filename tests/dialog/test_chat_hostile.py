"""Chat under hostile lines, long lines and long conversations."""

import gc
import os
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialog.chat.repl import COMMANDS
from dialog.chat.transcript import one_line, read_transcript
from tests.support.terminal_text import anything, mixtures
from tests.support.toy_chat import chat_lines, conversation, heard, safe

NAMES = (
    "talk.jsonl",
    "notes",
    "run/config.json",
    "run",
    "link",
    "deep.json",
    "none/x",
    "new file",
    "..",
    "~",
)
SETTINGS = (
    "beam=3",
    "nbest=2",
    "bmea=1",
    "temperature=nan",
    "seed=9",
    "method=sample",
    "max_length=-1",
    "=",
    "",
)
names = st.sampled_from(NAMES) | anything.filter(lambda text: "/" not in text)
values = st.lists(st.sampled_from(SETTINGS) | mixtures, max_size=3).map(" ".join)
commands = st.one_of(
    st.tuples(st.sampled_from(("save", "load", "replay")), names),
    st.tuples(st.sampled_from(("set", "sample")), values),
    st.tuples(st.sampled_from([*COMMANDS, "x", ""]), st.just("") | mixtures | st.integers().map(str)),
)
lines_of_input = mixtures | anything | commands.map(lambda pair: f"/{pair[0]} {pair[1]}")


def on_disk() -> dict[str, bytes | None]:
    """Every file and folder below the current one, with what is in it."""
    found = (path for path in Path().rglob("*") if not path.is_symlink())
    return {str(path): path.read_bytes() if path.is_file() else None for path in found}


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(lines_of_input, max_size=12))
def test_no_line_breaks_it_and_nothing_is_touched_but_what_it_saves(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    """Every file afterwards is as it was, or a saved conversation under a name that was given."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("chat"))
        patch.setenv("HOME", os.getcwd())
        chat_lines("talk.jsonl")
        Path("run").mkdir()
        Path("run/config.json").write_text("{}")
        Path("notes").write_text("mine")
        Path("deep.json").write_text("[" * 5000)
        Path("link").symlink_to("notes")
        chat = conversation()
        chat.feed("hello")
        for line in lines:
            before = on_disk()
            assert safe(chat.feed(line))
            after = on_disk()
            changed = {name for name in before | after if before.get(name) != after.get(name)}
            saves = one_line(line)[:5].lower() == "/save"
            assert changed <= ({os.path.normpath(one_line(line)[6:].strip())} if saves else set())
            assert all(read_transcript(Path(name)) for name in changed)
        assert safe(chat.feed("and then"))
        for line in ("/retry", "/probs 50", "/show", "/history", "/undo"):
            assert safe(chat.feed(line))


def test_memory_is_that_of_the_conversation(in_tmp: Path) -> None:
    chat = conversation()
    for turn in range(30):
        chat.feed(f"turn {turn}")
    chat.feed("/save talk.jsonl")
    commands = (
        "/load talk.jsonl",
        "/retry",
        "/replay talk.jsonl",
        "/set beam=3",
        "/save talk.jsonl",
        "/nope",
    )

    def round_trip() -> None:
        for command in commands:
            chat.feed(command)
        heard(chat).clear()

    round_trip()
    tracemalloc.start()
    try:
        round_trip()
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10):
            round_trip()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000


def test_a_megabyte_and_many_turns(in_tmp: Path) -> None:
    chat = conversation()
    assert safe(chat.feed("word \x1b[1m" * 100_000))
    chat.feed("/reset")
    started = time.perf_counter()
    for turn in range(2000):
        assert len(chat.feed(f"turn {turn}")) == 1
    assert time.perf_counter() - started < 10
    assert len(heard(chat)[-1].context) == 9
