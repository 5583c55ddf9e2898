"""Reading conversations: every format, every kind of bad input, and what must never happen with any bytes."""

import json
import os
import pickle
import re
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dialog.corpus import Dialog, Utterance, load_dialogs, train_codec
from dialog.sources import ReadOptions, detect_format, read_source
from dialog.swda import clean
from lm.errors import ConfigError, DataError
from lm.lines import MAX_LINE, InputLog

TURNS = (
    ("A", "do you keep bees", "qy"),
    ("B", "two hives", "sd"),
    ("B", "behind the barn", "sd"),
    ("A", "oh", "b"),
)
OTHER = (("A", "is it raining", "qy"), ("B", "not yet", "sd"))
HOSTILE = "\x1b[31mred\x07"


def zhao(turns: tuple[tuple[str, str, str], ...], **more: Any) -> str:
    return json.dumps({**more, "topic": ' "BEES"', "utts": [[s, t, [a, [0.1, 0.2]]] for s, t, a in turns]})


def rows(name: str, turns: tuple[tuple[str, str, str], ...]) -> list[dict[str, str]]:
    return [{"dialog": name, "speaker": s, "text": t, "act": a} for s, t, a in turns]


def tsv(row: dict[str, str]) -> str:
    return "\t".join(row.values())


ROWS = [*rows("first", TURNS), *rows("second", OTHER)]
FILES = {
    "zhao": ("c.jsonl", f"{zhao(TURNS)}\n\n{zhao(OTHER)}\n"),
    "dialogs": (
        "c.jsonl",
        "\n".join(
            json.dumps({"id": i, "utterances": rows(i, t)}) for i, t in (("first", TURNS), ("second", OTHER))
        ),
    ),
    "turns": ("c.jsonl", "\n".join(map(json.dumps, ROWS))),
    "tsv": ("c.tsv", "\n".join(map(tsv, ROWS))),
    "text": (
        "c.txt",
        "A: do you keep bees\nB: two hives\nB: behind the barn\nA: oh\n\n\nA: is it raining\nB: not yet",
    ),
    "pipes": ("first.txt", "A|do you keep bees|qy\nB|two hives|sd\nB|behind the barn|sd\nA|oh|b\n"),
}


def write(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def said(dialog: Dialog) -> list[tuple[str, str]]:
    return [(utterance.speaker, utterance.text) for utterance in dialog.utterances]


def refusal(source: str, **options: Any) -> str:
    """The message of the DataError that reading a source ends with."""
    with pytest.raises(DataError) as caught:
        load_dialogs(source, **options)
    message = str(caught.value)
    assert message.isprintable(), "one line without control characters"
    return message


@pytest.mark.parametrize("format", FILES)
def test_every_text_format_is_recognised_and_read(format: str, tmp_path: Path) -> None:
    name, content = FILES[format]
    source = write(tmp_path, name, content)
    assert detect_format(Path(source), InputLog()) == format
    dialogs = load_dialogs(source)
    assert said(dialogs[0]) == [(speaker, text) for speaker, text, _ in TURNS]
    if format != "pipes":  # one dialog a file
        assert said(dialogs[1]) == [(speaker, text) for speaker, text, _ in OTHER]
        assert len(dialogs) == 2
    if format != "text":
        assert [utterance.act for utterance in dialogs[0].utterances] == ["qy", "sd", "sd", "b"]
    expected = {"zhao": ["c:0", "c:1"], "text": ["c:0", "c:1"], "pipes": ["first"]}
    assert [dialog.id for dialog in dialogs] == expected.get(format, ["first", "second"])
    assert read_source(source, ReadOptions(format=format), InputLog()) == {"": dialogs}


def test_zhaos_layout_keeps_topics_as_they_stand_and_reads_its_variants(tmp_path: Path) -> None:
    short = json.dumps({"utts": [["A", "hello"], ["B", "hi", None], ["A", "bye", [None, 1]]]})
    first, second = load_dialogs(write(tmp_path, "x.jsonl", f"{zhao(TURNS, id='sw7')}\n{short}\n"))
    assert (first.id, first.topic) == ("sw7", ' "BEES"')
    assert (second.id, second.topic) == ("x:1", "")
    assert second.utterances == (Utterance("A", "hello"), Utterance("B", "hi"), Utterance("A", "bye"))


def test_only_newlines_end_a_line(tmp_path: Path) -> None:
    """U+2028, U+0085, form feeds and lone CR are part of the text; a CRLF file reads like an LF file."""
    odd = "one\u2028two\x85three\x0cfour\rfive\x1csix"
    plain = load_dialogs(write(tmp_path, "a.tsv", f"d\tA\t{odd}\nd\tB\tyes\n"))
    assert said(plain[0]) == [("A", odd), ("B", "yes")]
    assert load_dialogs(write(tmp_path, "a.tsv", f"\ufeffd\tA\t{odd}\r\nd\tB\tyes\r\n")) == plain
    assert load_dialogs(write(tmp_path, "a.tsv", f"d\tA\t{odd}\nd\tB\tyes")) == plain


def test_a_tsv_header_orders_the_columns(tmp_path: Path) -> None:
    source = write(tmp_path, "x.tsv", "Text\tact\tSpeaker\tDialog\nhello\tg\tA\t1\nhi\tg\tB\t1\n")
    assert load_dialogs(source) == [
        Dialog("1", "", (Utterance("A", "hello", "g"), Utterance("B", "hi", "g")))
    ]


def test_turns_of_a_dialog_need_not_stand_together(tmp_path: Path) -> None:
    mixed = [ROWS[0], ROWS[4], *ROWS[1:4], ROWS[5]]
    together = load_dialogs(write(tmp_path, "a.tsv", "\n".join(map(tsv, ROWS))))
    assert load_dialogs(write(tmp_path, "b.tsv", "\n".join(map(tsv, mixed)))) == together


def test_plain_text_without_speakers_alternates_and_a_skipped_line_moves_nobody(tmp_path: Path) -> None:
    lines = [b"hello there", b"hi", b"bad \xff line", b"see you", b"bye", b"", b"new one", b"yes"]
    source = write(tmp_path, "x.txt", b"\n".join(lines))
    dialogs = load_dialogs(source, on_bad_line="skip")
    assert said(dialogs[0]) == [("A", "hello there"), ("B", "hi"), ("B", "see you"), ("A", "bye")]
    assert said(dialogs[1]) == [("A", "new one"), ("B", "yes")]


def test_a_folder_of_pipe_files_is_a_dialog_a_file(tmp_path: Path) -> None:
    for name in ("sw2", "sw1"):
        write(tmp_path, f"{name}.txt", "A|well | or not|sv\nB|right|b\n")
    dialogs = load_dialogs(str(tmp_path))
    assert [dialog.id for dialog in dialogs] == ["sw1", "sw2"]
    assert dialogs[0].utterances[0] == Utterance("A", "well | or not", "sv")


def test_split_sources_are_split_and_must_be_named(tmp_path: Path) -> None:
    for name, turns in (("train", TURNS), ("dev", OTHER), ("test", OTHER)):
        write(tmp_path, f"{name}.jsonl", zhao(turns))
    write(tmp_path, "notes.json", "[]")
    splits = read_source(str(tmp_path), ReadOptions(), InputLog())
    assert list(splits) == ["train", "valid", "test"]
    assert said(splits["train"][0])[0] == ("A", "do you keep bees")
    assert "train, valid, test" in refusal(str(tmp_path))
    write(tmp_path, "valid.jsonl", zhao(OTHER))
    assert "both are the split valid" in refusal(str(tmp_path))
    (tmp_path / "dev.jsonl").unlink()
    write(tmp_path, "test.jsonl", FILES["turns"][1])
    assert "the format is turns" in refusal(str(tmp_path))


# --- bad input ---------------------------------------------------------------------------------------------

GOOD = f"{zhao(TURNS)}\n"
CURATED = [  # name, content, what the message says
    ("x.jsonl", "", "empty"),
    ("x.jsonl", "\n \n\n", "no line of text"),
    ("x.jsonl", "\ufeff", "no line of text"),
    ("x.txt", "\n\n", "no line of text"),
    ("x.jsonl", GOOD.encode() + b'{"utts": "\xff\xfe"}\n', r"x.jsonl:2:11: not UTF-8 \(byte 0xff\); .*iconv"),
    ("x.jsonl", ("é" + GOOD).encode("latin-1"), r"x.jsonl:1:1: not UTF-8 \(byte 0xe9\)"),
    ("x.txt", "héé hé\n".encode() + b"h\xc3", r"x.txt:2:2: not UTF-8"),
    ("x.jsonl", GOOD.encode("utf-16"), "UTF-16.*iconv"),
    ("x.jsonl", b"\x1f\x8b\x08\x00rest", "gunzip"),
    ("x.jsonl", GOOD + "a\0b\n", r"x.jsonl:2:2: NUL byte"),
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
    ("x.jsonl", GOOD + '{"utts": [["A", "x\\u0000"], ["B", "x"]]}\n', "x.jsonl:2: text holds a NUL"),
    ("x.jsonl", GOOD + '{"utts": [["A", "x\\ud800"], ["B", "x"]]}\n', "x.jsonl:2: text holds .* surrogate"),
    ("x.jsonl", GOOD + '{"id": [], "utts": [["A", "x"], ["B", "x"]]}\n', "x.jsonl:2: dialog id is not"),
    ("x.jsonl", GOOD + '{"topic": 1.5, "utts": [["A", "x"], ["B", "x"]]}\n', "x.jsonl:2: topic is not"),
    ("x.jsonl", GOOD + '{"utts": []}\n', "x.jsonl:2: a dialog without utterances"),
    ("x.jsonl", GOOD + '{"utts": [["A", "x"]]}\n', "x.jsonl:2: a dialog of one utterance"),
    ("x.jsonl", zhao(TURNS, id="a") + "\n" + zhao(OTHER, id="a"), "x.jsonl:2: a dialog id that occurs twice"),
    ("x.jsonl", GOOD + f'{{"{HOSTILE}": 1}}\n'.replace("\x1b", "\\u001b"), r"x.jsonl:2"),
    ("x.jsonl", '{"sentences": ["a", "b"]}\n', "format not recognised.*zhao.*tsv"),
    ("x.json", "[{}]", "format not recognised"),
    ("x.md", "# Notes\nabout things\n", "format not recognised"),
    ("x.tsv", "d\tA\thello\nd\tB\n", r"x.tsv:2: wrong number of columns \(2 found\); expected 3"),
    ("x.tsv", "d\tA\thello\tg\nd\tB\thi\tg\tmore\n", r"x.tsv:2: wrong number of columns \(5 found\)"),
    ("x.tsv", "dialog\tspeaker\ttext\n", "no dialog in the source"),
    ("x.tsv", "d\tA\thello\ne\tB\thi\n", "x.tsv:1: a dialog of one utterance"),
    ("x.tsv", f"d\tA\t \nd\tB\t{HOSTILE}\n", "x.tsv:1: empty utterance"),
    ("x.txt", "A: hello\nB: hi\nwell\n", "x.txt:3: no speaker"),
    ("x.txt", "A: hello\nB:\n", "x.txt:2: empty utterance"),
    ("x.txt", "hello\n\nhi\nyes\n", "x.txt:1: a dialog of one utterance"),
    ("x.txt", "A|hello|g\nB|hi\n", r"x.txt:2: not of the form speaker\|text\|act"),
    ("x.utt.csv", "a,b\n1,2\n", "x.utt.csv:1: no column conversation_no"),
    ("x.zip", b"PK\x03\x04 and then nothing", "x.zip"),
    ("x.parquet", b"PAR1 and then nothing", "x.parquet: not a readable parquet file"),
    ("x.pkl", b"\x80\x04 and then nothing", "x.pkl: refused"),
]


@pytest.mark.parametrize(("name", "content", "message"), CURATED)
def test_bad_input_is_named_with_its_place(
    name: str, content: str | bytes, message: str, tmp_path: Path
) -> None:
    found = refusal(write(tmp_path, name, content))
    assert re.search(message, found), found
    assert "; " in found, "a remedy"


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
    assert "folder without known content" in refusal(str(tmp_path / "folder"))
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


# --- any bytes ---------------------------------------------------------------------------------------------

SAMPLES = [content.encode() for _, content in FILES.values()]


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


@given(data=st.binary(max_size=80) | damaged(), suffix=st.sampled_from(["jsonl", "tsv", "txt", "utt.csv"]))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


# --- the SwDA release --------------------------------------------------------------------------------------

HEADER = (
    "swda_filename,ptb_basename,conversation_no,transcript_index,act_tag,caller,"
    "utterance_index,subutterance_index,text,pos"
)
SWDA = [
    ("qw", "A", "{F Uh, } {D well, } how's the [ gar-, + garden? ] /"),
    ("sd", "B", "It's, <laughter> ((pretty)) dry, --"),
    ("b", "A", "Uh-huh. /"),
    ("+", "B", "dry this year # I think. / *listen again"),
    ("x", "A", "<<sighing>>."),
    ("sd", "A", "[ [ We, + we, ] + we ] used the Smiths' and/or T V. -/"),
    ("%", "B", "<talking>  {F Um, } -/"),
    ("sd^e", "B", 'He said, ""twenty-five - or so"".'),
]


def swda_table(rows: list[tuple[str, str, str]] = SWDA, number: int = 4325) -> str:
    lines = [f'f,p,{number},{n},{act},{caller},1,1,"{text}",x' for n, (act, caller, text) in enumerate(rows)]
    return "\n".join([HEADER, *lines]) + "\n"


@pytest.mark.parametrize("layout", ["folder", "zip", "file"])
def test_the_swda_release_is_cleaned_joined_and_listed(layout: str, tmp_path: Path) -> None:
    name = "swda/sw00utt/sw_0001_4325.utt.csv"
    metadata = "conversation_no,topic_description\n4325,GARDENING\n"
    write(tmp_path, name, swda_table())
    source = str(tmp_path / name)
    if layout != "file":
        write(tmp_path, "swda/swda-metadata.csv", metadata)
        source = str(tmp_path / "swda")
    if layout == "zip":
        source = str(tmp_path / "swda.zip")
        with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, swda_table())
            archive.writestr("__MACOSX/sw.utt.csv", b"\0")
            archive.writestr("swda/swda-metadata.csv", metadata)
    log = InputLog()
    (dialog,) = read_source(source, ReadOptions(), log)[""]
    assert (dialog.id, dialog.topic) == ("sw4325", "" if layout == "file" else "GARDENING")
    assert dialog.utterances == (
        Utterance("A", "well how's the gar garden", "qw"),
        Utterance("B", "it's pretty dry this year i think", "sd"),
        Utterance("A", "uh-huh", "b"),
        Utterance("A", "we used the smiths' and/or t v", "sd"),
        Utterance("B", "he said twenty-five or so", "sd^e"),
    )
    assert [(piece.line, piece.reason) for piece in log.dropped] == [
        (6, "non-verbal"),
        (8, "empty without its markup"),
    ]


def test_cleaning_is_idempotent_and_leaves_no_markup() -> None:
    for _, _, text in SWDA:
        assert clean(clean(text)) == clean(text)
        assert not set(clean(text)) & set('[]{}()<>#*+,.?"')
    assert clean("<" * 100_000 + "'" * 100_000 + "&" * 100_000) == ""


@pytest.mark.parametrize("name", ["../x.utt.csv", "/x.utt.csv", "a/../../x.utt.csv", "..\\x.utt.csv"])
def test_zips_that_lead_outside_are_refused(name: str, tmp_path: Path) -> None:
    source = tmp_path / "swda.zip"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("sw.utt.csv", swda_table())
        archive.writestr(name, swda_table())
    assert "leads outside" in refusal(str(source))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["swda.zip"]


def test_links_bombs_and_foreign_zips_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "swda.zip"
    link = zipfile.ZipInfo("sw.utt.csv")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    assert "leads outside" in refusal(str(source))
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("sw.utt.csv", bytes(65 << 20))
    assert "larger than 64 MiB" in refusal(str(source))
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "no .utt.csv" in refusal(str(source))
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("sw.utt.csv", swda_table())
    data = source.read_bytes()
    source.write_bytes(data.replace(b"Uh-huh", b"Oh-huh"))  # its CRC no longer fits
    assert "damaged" in refusal(str(source))


def test_swda_tables_with_broken_rows_are_named(tmp_path: Path) -> None:
    source = write(tmp_path, "x.utt.csv", swda_table() + "f,p,1\n")
    assert "x.utt.csv:10: wrong number of columns" in refusal(source)
    assert len(load_dialogs(source, on_bad_line="skip")[0].utterances) == 5
    assert "x.utt.csv:10: not CSV" in refusal(write(tmp_path, "x.utt.csv", swda_table() + 'f,p,"a'))


# --- Zhao's pickle -----------------------------------------------------------------------------------------


def pickled(value: object, protocol: int = 2) -> bytes:
    return pickle.dumps(value, protocol)


CORPUS = {split: [json.loads(zhao(TURNS)), json.loads(zhao(OTHER))] for split in ("train", "valid", "test")}
PYTHON_2 = (
    b"(dp0\nS'train'\np1\n(lp2\n(dp3\nS'utts'\np4\n(lp5\n(S'A'\np6\nS'hello'\np7\ntp8\na(g6\ng7\ntp9\nasas."
)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_zhaos_pickle_reads_like_his_jsonl(protocol: int, tmp_path: Path) -> None:
    source = write(tmp_path, "corpus.p", pickled(CORPUS, protocol))
    splits = read_source(source, ReadOptions(), InputLog())
    for split in ("train", "valid", "test"):
        lines = "\n".join(map(json.dumps, CORPUS[split]))
        assert splits[split] == load_dialogs(write(tmp_path, f"{split}.jsonl", lines))


def test_a_pickle_of_python_2_is_read(tmp_path: Path) -> None:
    (dialog,) = load_dialogs(write(tmp_path, "corpus.p", PYTHON_2))
    assert said(dialog) == [("A", "hello"), ("A", "hello")]


class Gadget:
    """Creates a file when it is unpickled by an ordinary unpickler."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_malicious_pickle_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    data = pickled({"train": [Gadget(canary)]}, 4)
    pickle.loads(data)  # noqa: S301 (proves the gadget works)
    assert canary.exists()
    canary.unlink()
    message = refusal(write(tmp_path, "corpus.p", data))
    assert "refused" in message
    assert "needs no code" in message
    for attack in (
        b"cos\nsystem\n(S'touch " + bytes(canary) + b"'\ntR.",
        b"(S'touch " + bytes(canary) + b"'\nios\nsystem\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R.",
        b"\x80\x02Pid\n.",
        b"\x80\x02\x82\x01.",
    ):
        assert "refused" in refusal(write(tmp_path, "corpus.p", attack))
    assert not canary.exists()


def test_reading_a_pickle_imports_nothing_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("open('executed', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    assert "not a dictionary" in refusal(write(tmp_path, "corpus.p", pickle.dumps([1])))
    assert not (tmp_path / "executed").exists()


def test_pickles_of_another_layout_and_bombs_are_refused(tmp_path: Path) -> None:
    dialog = {"utts": [["A", "x" * 1000]] * 1000}
    laughs: list[Any] = ["ha"]
    for _ in range(40):
        laughs = [laughs] * 10
    wrong: list[object] = [[], {"train": {}}, {"train": [1]}, {"other": []}, {"train": [{"utts": [laughs]}]}]
    for value in (*wrong, {"train": [dialog] * 1000}):
        assert "refused" in refusal(write(tmp_path, "corpus.p", pickled(value)))
    memo = b"\x80\x02}r\xff\xff\xff\x7f."  # a memo of 2³¹ entries
    assert "memory" in refusal(write(tmp_path, "corpus.p", memo))


@given(data=st.binary(max_size=40), cut=st.integers(0, 60))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_pickles_are_refused(data: bytes, cut: int, tmp_path: Path) -> None:
    good = pickled(CORPUS)
    source = write(tmp_path, "corpus.p", good[:cut] + data + good[cut + len(data) : -1])
    assert refusal(source)


# --- tables ------------------------------------------------------------------------------------------------


def test_parquet_of_turns_and_of_whole_dialogs(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = str(tmp_path / "x.parquet")
    pq.write_table(pa.Table.from_pylist(ROWS), source)
    first, second = load_dialogs(source)
    assert (first.id, said(first)) == ("first", [(s, t) for s, t, _ in TURNS])
    assert first.utterances[0].act == "qy"
    assert said(second) == [(s, t) for s, t, _ in OTHER]

    lists = [
        {"talk": ["hello", "hi", "bye"], "act": [1, 2, 2], "unused": 1.0},
        {"talk": ["yes", "no"], "act": [0, 0]},
    ]
    pq.write_table(pa.Table.from_pylist(lists), source)
    dialogs = read_source(source, ReadOptions(text_column="talk"), InputLog())[""]
    assert said(dialogs[0]) == [("A", "hello"), ("B", "hi"), ("A", "bye")]
    assert [utterance.act for utterance in dialogs[0].utterances] == ["1", "2", "2"]
    assert dialogs[1].id == "x:1"
    assert "no column text; name one of talk, act, unused by --text-column" in refusal(source)

    structures = [{"id": 5, "turns": [{"speaker": "X", "text": "hello"}, {"speaker": "Y", "text": "hi"}]}]
    pq.write_table(pa.Table.from_pylist(structures), source)
    options = ReadOptions(text_column="turns", dialog_column="id")
    assert read_source(source, options, InputLog())[""] == [
        Dialog("5", "", (Utterance("X", "hello"), Utterance("Y", "hi")))
    ]

    pq.write_table(pa.table({"text": ["a"], "who": ["A"]}), source)
    assert "no column dialog; name one of text" in refusal(source)
    pq.write_table(pa.table({"text": [["a", "b"]], "speaker": [["A"]]}), source)
    assert "x.parquet:1: lists of different lengths" in refusal(source)
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), source)
    assert "no dialog" in refusal(source)


def test_datasets_are_read_with_their_splits(tmp_path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    parts = {name: datasets.Dataset.from_list(ROWS) for name in ("train", "validation", "extra")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "stored")
    log = InputLog()
    splits = read_source(str(tmp_path / "stored"), ReadOptions(format="datasets"), log)
    assert list(splits) == ["train", "valid"]
    assert said(splits["valid"][1]) == [(s, t) for s, t, _ in OTHER]
    assert [piece.reason for piece in log.dropped] == ["a split that is not train, valid or test"]
    with pytest.raises(DataError, match="cannot load it"):
        read_source(str(tmp_path / "nothing"), ReadOptions(format="datasets"), InputLog())


# --- built in, vocabulary ----------------------------------------------------------------------------------


def test_the_built_in_corpus_is_named_like_a_file() -> None:
    dialogs = load_dialogs("smalltalk:valid")
    assert all(len(dialog.utterances) >= 2 for dialog in dialogs)


def test_the_codec_counts_frames_of_utterances_and_openings(tmp_path: Path) -> None:
    codec = train_codec(load_dialogs(write(tmp_path, *FILES["zhao"])), "wordpunct", vocab_size=100)
    counts = dict(zip(codec.vocabulary.tokens, codec.vocabulary.counts, strict=True))
    assert (counts["<s>"], counts["</s>"], counts["<d>"]) == (8, 8, 2)
    assert codec.decode(codec.encode("two hives behind the barn")) == "two hives behind the barn"


@pytest.mark.corpora
def test_zhaos_files_give_the_published_counts(corpora: Path) -> None:
    splits = read_source(str(corpora / "swda"), ReadOptions(), InputLog())
    assert [len(dialogs) for dialogs in splits.values()] == [1080, 60, 62]
    contexts = {name: sum(len(d.utterances) - 1 for d in dialogs) for name, dialogs in splits.items()}
    assert (contexts["valid"], contexts["test"]) == (5165, 5481)
    codec = train_codec(splits["train"], "wordpunct", vocab_size=10_000)
    assert len(codec.vocabulary) == 10_002
    rates = []
    for dialogs in splits.values():
        ids = [index for dialog in dialogs for u in dialog.utterances for index in codec.encode(u.text)]
        rates.append(round(100 * ids.count(codec.vocabulary.unk) / len(ids), 2))
    assert rates == [0.78, 1.30, 1.32]
