"""Bad input to the readers of dialogs: named with its place, skipped where that is asked for, any bytes."""

import json
import os
import random
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
from tests.dialog.test_formats import page_examples
from tests.support.corpus_files import (
    FILES,
    HOSTILE,
    OTHER,
    TURNS,
    refusal,
    said,
    write,
    zhao,
)

GOOD = f"{zhao(TURNS)}\n"


CURATED = [  # name, content, what the message says
    ("x.jsonl", "", "empty"),
    ("x.jsonl", "\n \n\n", "no text in the file"),
    ("x.jsonl", "\ufeff", "no text in the file"),
    ("x.txt", "\n\n", "no text in the file"),
    ("x.jsonl", GOOD.encode() + b'{"utts": "\xff\xfe"}\n', r"x.jsonl:2:11: not UTF-8 \(byte 0xff\); .*iconv"),
    ("x.jsonl", ("é" + GOOD).encode("latin-1"), r"x.jsonl:1:1: not UTF-8 \(byte 0xe9\)"),
    ("x.txt", "héé hé\n".encode() + b"h\xc3", r"x.txt:2:2: not UTF-8"),
    ("x.jsonl", GOOD.encode("utf-16"), "UTF-16.*iconv"),
    ("x.jsonl", b"\x1f\x8b\x08\x00rest", "gunzip"),
    ("x.jsonl", GOOD + "a\0b\n", r"x.jsonl:2:2: NUL byte"),
    ("x.txt", random.Random(1).randbytes(9000), r"x.txt: holds binary data, not text; name a text file$"),
    ("x.csv", b"\x89PNG\r\n\x1a\n" + bytes(99), r"x.csv: holds binary data, not text"),
    (
        "x.jsonl",
        GOOD + "a" + "\0" * 5 + "\n",
        r"x.jsonl:2:2: NUL byte.*; choose a text file, or leave it out",
    ),
    ("x.jsonl", GOOD + "\0" * 4096, r"x.jsonl:2:1: NUL byte; choose a text file, or leave it out"),
    ("x.jsonl", GOOD.encode("utf-16-le"), r"x.jsonl: is UTF-16; convert it with `iconv -f UTF-16LE"),
    ("x.jsonl", GOOD.encode("utf-16-be"), r"x.jsonl: is UTF-16; convert it with `iconv -f UTF-16BE"),
    ("x.jsonl", GOOD.encode("utf-32"), r"x.jsonl: is UTF-32; convert it with `iconv -f UTF-32 -t UTF-8`"),
    ("x.jsonl", b"\0\0\xfe\xff" + GOOD.encode("utf-32-be"), r"x.jsonl: is UTF-32; .* -f UTF-32 -t UTF-8`"),
    ("x.jsonl", GOOD.encode("utf-32-le"), r"x.jsonl: is UTF-32; convert it with `iconv -f UTF-32LE"),
    ("x.jsonl", GOOD.encode("utf-32-be"), r"x.jsonl: is UTF-32; convert it with `iconv -f UTF-32BE"),
    ("x.pdf", b"%PDF-1.4\n%\xe2\xe3", r"x.pdf: is a PDF; save its text"),
    ("x.jsonl", '{"speaker": "A", "text": "x"}\n' * 9, r"x.jsonl:1: no key dialog .*; give every .* text$"),
    ("x.jsonl", GOOD + "{oops}\n", r"x.jsonl:2:2: not JSON"),
    ("x.jsonl", GOOD + "[" * 200_000 + "\n", r"x.jsonl:2.*not JSON"),
    ("x.jsonl", GOOD + '{"utts": ' + "9" * 5000 + "}\n", r"x.jsonl:2.*not JSON"),
    ("x.jsonl", GOOD + "[1, 2]\n", r"x.jsonl:2: not a JSON object"),
    ("x.jsonl", GOOD + '{"topic": "t"}\n', r"x.jsonl:2: no key utts.*found: topic"),
    ("x.jsonl", GOOD + '{"utts": {"a": 1}}\n', r"x.jsonl:2: utts is not a list"),
    ("x.jsonl", GOOD + '{"utts": [["A"], ["B", "x"]]}\n', "x.jsonl:2: an item of utts is not an utterance"),
    ("x.jsonl", GOOD + '{"utts": [["A", 1.5], ["B", "x"]]}\n', "x.jsonl:2: text is not a string"),
    ("x.jsonl", GOOD + '{"utts": [["A", ""], ["B", "x"]]}\n', "x.jsonl:2: empty utterance"),
    ("x.jsonl", GOOD + '{"utts": [["A", "x"], [" ", "x"]]}\n', "x.jsonl:2: no speaker"),
    ("x.jsonl", GOOD + '{"utts": [["A", "x\\u0000"], ["B", "x"]]}\n', "x.jsonl:2: text contains a NUL"),
    (
        "x.jsonl",
        GOOD + '{"utts": [["A", "x\\ud800"], ["B", "x"]]}\n',
        "x.jsonl:2: text contains .* surrogate",
    ),
    ("x.jsonl", GOOD + '{"id": [], "utts": [["A", "x"], ["B", "x"]]}\n', "x.jsonl:2: dialog id is not"),
    ("x.jsonl", GOOD + '{"topic": 1.5, "utts": [["A", "x"], ["B", "x"]]}\n', "x.jsonl:2: topic is not"),
    ("x.jsonl", GOOD + '{"utts": []}\n', "x.jsonl:2: dialog without utterances"),
    ("x.jsonl", GOOD + '{"utts": [["A", "x"]]}\n', "x.jsonl:2: dialog of one utterance"),
    ("x.jsonl", zhao(TURNS, id="a") + "\n" + zhao(OTHER, id="a"), "x.jsonl:2: repeated dialog id"),
    ("x.jsonl", GOOD + f'{{"{HOSTILE}": 1}}\n'.replace("\x1b", "\\u001b"), r"x.jsonl:2"),
    ("x.jsonl", '{"sentences": ["a", "b"]}\n', "format not recognised.*zhao.*tsv"),
    ("x.json", "[{}]", "format not recognised"),
    ("x.md", "# Notes\nabout things\n", "format not recognised"),
    ("x.tsv", "d\tA\thello\nd\tB\n", r"x.tsv:2: wrong number of columns \(2 found\); expected 3"),
    ("x.tsv", "d\tA\thello\tg\nd\tB\thi\tg\tmore\n", r"x.tsv:2: wrong number of columns \(5 found\)"),
    ("x.tsv", "dialog\tspeaker\ttext\n", "no dialog in the source"),
    ("x.tsv", "d\tA\thello\ne\tB\thi\n", "x.tsv:1: dialog of one utterance"),
    ("x.tsv", f"d\tA\t \nd\tB\t{HOSTILE}\n", "x.tsv:1: empty utterance"),
    ("x.txt", "A: hello\nB: hi\nwell\n", "x.txt:3: no speaker"),
    ("x.txt", "A: hello\nB:\n", "x.txt:2: empty utterance"),
    ("x.txt", "hello\n\nhi\nyes\n", "x.txt:1: dialog of one utterance"),
    ("x.txt", "A|hello|g\nB|hi\n", r"x.txt:2: not of the form speaker\|text\|act"),
    ("x.utt.csv", "a,b\n1,2\n", "x.utt.csv:1: no column conversation_no"),
    ("x.zip", b"PK\x03\x04 and then nothing", "x.zip"),
    ("x.parquet", b"PAR1 and then nothing", "x.parquet: unreadable parquet file"),
    ("x.pkl", b"\x80\x04 and then nothing", "x.pkl: refused"),
]


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
    (tmp_path / "ptb").mkdir()
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
