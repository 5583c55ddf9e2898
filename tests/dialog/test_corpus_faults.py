"""Bad input to the readers of dialogs: named with its place, skipped where that is asked for, any bytes."""

import json
import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dialog.corpora.columns import ReadOptions
from dialog.corpora.corpus import load_dialogs
from dialog.corpora.sources import read_source
from dialog.utterance import Dialog
from lm.errors import ConfigError, DataError
from lm.text.lines import MAX_LINE, InputLog
from tests.support.bad_corpora import CURATED, GOOD
from tests.support.corpus_files import (
    FILES,
    HOSTILE,
    TURNS,
    refusal,
    said,
    write,
)
from tests.support.format_page import page_examples


@pytest.mark.parametrize(("name", "content", "message"), CURATED)
def test_bad_input_is_named_with_its_place(
    name: str, content: str | bytes, message: str, tmp_path: Path
) -> None:
    found = refusal(write(tmp_path, name, content))
    assert re.search(message, found), found
    assert "; " in found, "a remedy"


@pytest.mark.parametrize(
    "column",
    [
        pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xe9")),
        pa.array([2**62, 0], pa.timestamp("us")),
    ],
    ids=["latin-1", "years"],
)
def test_a_value_that_python_cannot_hold_is_named_with_its_file(column: pa.Array, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"speaker": ["A", "B"], "text": ["hello", "hi"], "more": column}), path)
    assert re.search(r"x\.parquet: a value cannot be read \(.*; write it again", refusal(str(path)))


def test_a_file_name_that_is_no_utf8_gives_ids_that_are(tmp_path: Path) -> None:
    for name in (b"caf\xe9.jsonl", b"caf\xe9.txt"):
        path = tmp_path / os.fsdecode(name)
        path.write_text("A: hello\nB: hi\n" if name.endswith(b"txt") else f"{json.dumps(['hello', 'hi'])}\n")
        (dialogs,) = read_source(str(path), ReadOptions(), InputLog()).values()
        assert [dialog.id for dialog in dialogs] == ["caf\\udce9:0"]


@pytest.mark.parametrize(("good", "skips"), [(9, True), (0, False)])
def test_skipping_is_advised_for_a_first_object_without_the_keys_if_others_have_them(
    good: int, skips: bool, tmp_path: Path
) -> None:
    content = '{"version": 1}\n' * 2 + '{"dialog": "d", "speaker": "A", "text": "x"}\n' * good
    with pytest.raises(DataError, match=r"x.jsonl:1: no key dialog .* text") as caught:
        read_source(write(tmp_path, "x.jsonl", content), ReadOptions(format="turns"), InputLog())
    assert str(caught.value).endswith("--on-bad-line skip`") == skips


def test_a_source_that_is_skipped_whole_is_refused_with_the_first_reason(tmp_path: Path) -> None:
    source = write(tmp_path, "x.jsonl", '{"dialog": "d", "speaker": "A", "words": "x"}\n' * 3)
    with pytest.raises(DataError) as caught:
        read_source(source, ReadOptions(format="turns"), InputLog("skip"))
    assert str(caught.value) == (
        f"{source}: no dialog in the source after 3 dropped pieces, the first in line 1: no key text"
        " (found: dialog, speaker, words); check its format"
    )


@pytest.mark.parametrize(("name", "content"), [(n, c) for n, c, m in CURATED if "x.jsonl:2" in m])
def test_skipping_leaves_out_the_bad_line_and_lists_it(
    name: str, content: str | bytes, tmp_path: Path
) -> None:
    log = InputLog("skip")
    source = write(tmp_path, name, content)
    dialogs = read_source(source, ReadOptions(), log)[""]
    assert said(dialogs[0]) in ([(s, t) for s, t, _ in TURNS],)
    assert len(dialogs) == 1
    assert {(piece.file, piece.line) for piece in log.dropped} == {(source, 2)}
    assert all(piece.reason and len(piece.excerpt) <= 80 for piece in log.dropped)


def test_overlong_lines_are_named_skipped_and_never_held_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    with path.open("wb") as file:
        file.write(b"d\tA\thello\n")
        file.seek(MAX_LINE * 6, os.SEEK_CUR)  # a hole: 100 MB of NULs without a newline
        file.write(b"\nd\tB\thi\n")
    assert "x.tsv:2: longer than 16 MiB" in refusal(str(path))
    assert said(load_dialogs(str(path), on_bad_line="skip")[0]) == [("A", "hello"), ("B", "hi")]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(str(tmp_path / "pipe"))
    assert "not a regular file" in refusal("/dev/zero")
    assert "no such file" in refusal(str(tmp_path / "nothing"))
    assert "no such file" in refusal(str(tmp_path / HOSTILE))
    assert "no such file" in refusal("a\0b")
    (tmp_path / "folder").mkdir()
    assert "no known files in the folder" in refusal(str(tmp_path / "folder"))
    (tmp_path / "folder" / "config.json").write_text('{"config": {}}', encoding="utf-8")
    assert "folder: a run, not conversations; `dialog runs" in refusal(str(tmp_path / "folder"))
    (tmp_path / "ptb" / "train").mkdir(parents=True)
    manifest = {"command": "lm prepare", "inputs": {}, "outputs": {}}
    (tmp_path / "ptb" / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    message = refusal(str(tmp_path / "ptb"))
    assert "ptb: a corpus of `lm prepare`, not conversations; train on it with `lm train CONFIG" in message
    assert message.endswith("; or name conversations, as in docs/data.md")
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    assert refusal(str(tmp_path / "loop.txt"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_files_without_permission_are_named(tmp_path: Path) -> None:
    source = write(tmp_path, "x.jsonl", GOOD)
    os.chmod(source, 0)
    assert "cannot be read" in refusal(source)


def test_bad_lines_name_the_command_that_can_skip_them(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, "x.jsonl", GOOD + "{\n"))
    assert message.endswith(", or leave it out with `dialog prepare … --on-bad-line skip`")


def test_bad_options_are_usage_errors(tmp_path: Path) -> None:
    source = write(tmp_path, "x.jsonl", GOOD)
    with pytest.raises(ConfigError, match="--format xml"):
        read_source(source, ReadOptions(format="xml"), InputLog())
    with pytest.raises(ConfigError, match="--on-bad-line"):
        load_dialogs(source, on_bad_line="ignore")
    with pytest.raises(DataError, match="smalltalk:train"):
        load_dialogs("smalltalk:all")


SAMPLES = [content.encode() for _, content in FILES.values()]


SAMPLES += [example.encode() for _, example in page_examples()]


SUFFIXES = ["jsonl", "json", "tsv", "csv", "txt", "log", "srt", "utt.csv"]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good file with some stretches cut, copied or overwritten."""
    data = bytearray(draw(st.sampled_from(SAMPLES)))
    for _ in range(draw(st.integers(1, 4))):
        start, length = draw(st.integers(0, len(data))), draw(st.integers(0, 12))
        data[start : start + length] = draw(
            st.binary(max_size=8) | st.sampled_from([b"\n", b"\t", b'"', b"\n\n"])
        )
    return bytes(data)


@given(data=st.binary(max_size=80) | damaged(), suffix=st.sampled_from(SUFFIXES))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_give_sound_dialogs_or_a_data_error(data: bytes, suffix: str, tmp_path: Path) -> None:
    if data.startswith(b"\x80"):
        return  # a pickle; its reading process is tested below
    source = write(tmp_path, f"x.{suffix}", data)
    found: dict[str, list[Dialog]] = {}
    messages: list[str] = []
    for policy in ("error", "skip"):
        try:
            found[policy] = load_dialogs(source, on_bad_line=policy)
        except DataError as error:
            messages.append(str(error))
    assert all(message.isprintable() for message in messages)
    for dialogs in found.values():
        assert dialogs
        for dialog in dialogs:
            assert len(dialog.utterances) >= 2
            for utterance in dialog.utterances:
                assert utterance.speaker.strip()
                assert utterance.text == utterance.text.strip() != ""
                assert "\n" not in utterance.text or suffix == "utt.csv" or b"\\n" in data
                f"{dialog.id}{dialog.topic}{utterance}".encode()
    if "error" in found:
        assert found["skip"] == found["error"], "skipping changes nothing where nothing is bad"
