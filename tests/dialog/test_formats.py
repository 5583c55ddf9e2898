"""Other people's formats: told by their content, read to the last message, refused with file and line."""

import re
from pathlib import Path

import pytest

from dialog.corpora.columns import ReadOptions
from dialog.corpora.corpus import load_dialogs
from dialog.corpora.detection import DETECTORS
from dialog.corpora.formats import DETECTED, FORMATS, PAGE, beginning_of_dialogs
from dialog.corpora.replies import ReplyLink, in_reply_order
from dialog.corpora.sources import TEXT_READERS, detect_format, read_source
from lm.errors import DataError
from lm.text.lines import InputLog
from tests.support.foreign_formats import read, refusal, said, write
from tests.support.format_page import ROOT, page_examples


def test_every_text_format_has_a_detector_a_reader_and_a_line_of_help() -> None:
    others = {"parquet", "swda", "pickle"}  # told by their first bytes
    assert set(DETECTORS) | others == set(DETECTED)
    assert set(TEXT_READERS) | {"csv"} == set(DETECTORS)
    assert all(len(about) <= 64 for about in FORMATS.values()), "a line of the help at 80 columns"


@pytest.mark.parametrize(("format", "example"), page_examples())
def test_the_examples_of_the_page_are_what_it_says(format: str, example: str, tmp_path: Path) -> None:
    source = write(tmp_path, "x.txt", example)
    assert detect_format(Path(source), InputLog()) == format
    assert sum(len(dialog.utterances) for dialog in load_dialogs(source)) >= 2


def test_the_page_has_every_format() -> None:
    headings = re.findall(r"^### (.*)", (ROOT / PAGE).read_text(encoding="utf-8"), flags=re.MULTILINE)
    named = {name for heading in headings for name in heading.split(", ")}
    assert named | {"pickle", "auto", "prepared"} == set(FORMATS)


def test_every_format_that_is_read_says_how_a_dialog_begins() -> None:
    rules = {name: beginning_of_dialogs(name) for name in FORMATS.keys() - {"auto", "prepared"}}
    assert {name for name, rule in rules.items() if "column" in rule} == {
        *("turns", "csv", "tsv", "parquet", "datasets")
    }
    assert rules["pickle"] == rules["zhao"] == "each object is a dialog"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "c.txt",
            "13/04/2024, 09:00 - A: x\n13/14/2024, 09:00 - B: y\n13/04/2024, 09:00 - B: y",
            r"c.txt:2: no such date or time \(13/14/2024, 09:00\); correct",
        ),
        (
            "c.txt",
            "13/04/2024, 25:00 - A: x\n13/04/2024, 09:00 - B: y",
            r"c.txt:1: no such date or time \(13/04/2024, 25:00\); ",
        ),
        (
            "c.txt",
            "[13/04/24, 25:00:01] A: x\n[13/04/24, 09:00:01] B: y",
            r"no such date or time \(13/04/24, 25:00:01\)",
        ),
        (
            "c.txt",
            "13/04/2024, 09:00 - A: x\n",
            "no dialog in the source after one dropped piece in line 1: ",
        ),
        ("c.log", "12:34 <a> x\n" * 30 + "what is this\n", r"c.log:31: not a line of an IRC log"),
        ("c.log", "12:34 <a> x\n25:34 <b> x\n", r"c.log:2: no such date or time \(25:34\); "),
        ("c.log", "12:34 <a> x\n25:34 <@b> x\n", r"c.log:2: no such date or time \(25:34\); "),
        ("c.log", "[12:34] <a> x\n[2:61 PM] <+b> x\n", r"c.log:2: no such date or time \(2:61 PM\); "),
        ("c.srt", "1\n00:00:01,000 --> 00:00:02,000\nhello\n\nworld\n", r"c.srt:5: not part of a subtitle"),
        ("c.srt", "1\n00:00:01,000 --> 00:00:02,000\n[music]\n", "no dialog in the source"),
        ("c.vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\nhello\n", "WebVTT; convert them to SRT"),
        (
            "c.csv",
            "a,b,c\n1,2,3\n",
            "no column text; name one with `dialog prepare … --text-column`: a,",
        ),
        (
            "c.csv",
            "Anna,hi\nBob,yes\n",
            "Anna, hi; or, if line 1 is no header, write one above, as in dialog,",
        ),
        (
            "c.csv",
            "text,b\nx,y\n",
            "no column dialog; name one with `dialog prepare … --dialog-column`: t",
        ),
        ("c.csv", "dialog,text\nx,y\n", "`dialog prepare … --speaker-column`: dialog, text"),
        ("c.csv", "dialog,speaker,text\n1,A,x\n1,B\n", r"c.csv:3: wrong number of columns \(2 found\)"),
        ("c.csv", 'dialog,speaker,text\n1,A,x\n1,B,"y\nz\n', r"c.csv:3: not CSV"),
        ("c.csv", "dialog,speaker,text\n1,A,x\n2,B,y\n", r"c.csv:2: dialog of one utterance"),
        ("c.csv", "dialog,speaker,text\n1,A,\n1,B,y\n", r"c.csv:2: empty utterance"),
        ("c.csv", "dialog,speaker,text\n", "no dialog in the source"),
        ("c.csv", "question,answer\nwhy,\n", r"c.csv:2: empty utterance"),
        ("c.tsv", "a\tb\t1\n" * 30 + "a\tb\t2\n", r"c.tsv:31: label is neither 0 nor 1"),
        ("c.tsv", "a\tb\t0\n", "no dialog in the source after one dropped piece in line 1: "),
        ("c.tsv", "a\tb\t1\na\tb\n", r"c.tsv:2: wrong number of columns"),
        ("c.jsonl", '{"question": "x", "answer": 1.5}\n', r"c.jsonl:1: text is not a string"),
        ("c.jsonl", '{"question": "x", "answer": "y"}\n{"a": 1}\n', r"c.jsonl:2: no question and answer"),
        ("c.jsonl", '{"conv": 1, "a": 2}\n', r"format not recognised \(keys a, conv\); convert it"),
        ("c.jsonl", '{"question": "x", "answer": ""}\n', r"c.jsonl:1: empty utterance"),
        ("c.jsonl", '{"messages": [{"role": "user", "content": "x"}]}\n', r"c.jsonl:1: dialog of one"),
        (
            "c.jsonl",
            '{"messages": [{"role": "user", "content": "x"}, {"content": "y"}]}\n',
            r"c.jsonl:1: an item of messages has no speaker \({'content': 'y'}\); give it the keys",
        ),
        (
            "c.jsonl",
            '{"messages": {"content": "x"}}\n',
            r"no list of utterances \(found: messages",
        ),
        ("c.jsonl", '{"dialog": ["x", ["y"]]}\n', r"c.jsonl:1: an item of dialog is not an utterance"),
        ("c.jsonl", '{"dialog": ["x", "y"], "speaker": ["A"]}\n', r"c.jsonl:1: lists of different lengths"),
        (
            "c.jsonl",
            '{"dialog": ["x", "y"], "turns": ["a", "b"]}\n',
            r'no list of utterances .*; give every object one list, as in {"utterances": \[…\]}',
        ),
        (
            "c.jsonl",
            '{"conv_id": 1, "message": "x"}\n',
            r"no key speaker \(found: conv_id, message\)",
        ),
        ("c.json", '[\n{"question": "x", "answer": "y"},\n{"question": 1\n', r"c.json:3: not JSON"),
        ("c.json", '[{"question": "x", "answer": "y"}] more', r"c.json:1: text after the end of the array"),
        ("c.json", '{\n"messages": [\n{"date": "2024-04-13"}', r"c.json:3: not JSON"),
        ("c.json", '{\n"messages": [\n1, {"date": 1}]}', r"c.json:3: message is not an object"),
        ("c.json", '{\n"messages": [\n{"from": "A", "text": "x", "date": "never"}]}', "c.json:3: no date"),
        (
            "c.json",
            '{\n"messages": [\n{"text": "x", "date": "2024-04-13"}, {"text": "y", "date": "2024-04-13"}]}',
            "c.json:3: speaker is not",
        ),
        ("c.md", "# Notes\nabout things\n", "format not recognised; convert it to a format in docs/data"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(name: str, content: str, message: str, tmp_path: Path) -> None:
    found = refusal(write(tmp_path, name, content))
    assert re.search(message, found), found


TALK = [("lea", "my beans do not climb"), ("tom", "strings?"), ("lea", "<3 thanks")]


@pytest.mark.parametrize(
    "form",
    [
        "[12:3{n}] <{who}> {text}",
        "[12:3{n}:59] <{who}> {text}",
        "12:3{n} <{who}> {text}",
        "2004-11-23 12:3{n} <{who}> {text}",
        "[2004-11-23 12:3{n}:00] <{who}> {text}",
        "2004-11-23T12:3{n}:00 <{who}> {text}",
        "12:3{n} <@{who}> {text}",
        "12:3{n} < {who}> {text}",
        "<{who}> {text}",
        "12:3{n}:01 PM <+{who}> {text}",
    ],
)
def test_irc_logs_of_common_programs(form: str, tmp_path: Path) -> None:
    lines = [form.format(n=n, who=who, text=text) for n, (who, text) in enumerate(TALK)]
    source = write(tmp_path, "garden.log", "\n".join(lines))
    assert detect_format(Path(source), InputLog()) == "irc"
    dialogs, log = read(source)
    assert said(dialogs) == [[f"{who}: {text}" for who, text in TALK]]
    assert not log.dropped


@pytest.mark.parametrize("text", ['{"message": "x"}', '{"turns": ["x"]}', '{"utterances": ["x"]}'])
def test_irc_may_quote_json(text: str, tmp_path: Path) -> None:
    source = write(tmp_path, "c.log", f"[12:34] <lea> {text}\n[12:35] <tom> ok\n")
    assert detect_format(Path(source), InputLog()) == "irc"
    assert said(read(source)[0]) == [[f"lea: {text}", "tom: ok"]]


def test_irc_events_actions_and_nights(tmp_path: Path) -> None:
    lines = [
        "--- Log opened Tue Nov 23 2004",
        "12:34 -!- tom [t@host] has joined #garden",
        "=== lea [l@h] has joined",
        "[12:34] *** Joins: eve",
        "12:34 <tom> hi",
        "12:35  * lea waves",
        "[12:36] * eve (e@h) has quit (bye)",
        "[12:36] * tom is now known as tim",
        "[12:36] * tim sets mode: +o lea",
        "[12:36] * lea has left #garden",
        "[12:36] * ann joined #garden",
        "[12:36] * tim sets ban on *!*@x",
        "[12:36] * ann left the channel",
        "[12:36] * lea left the kettle on",
        "12:37 <tim>",
        "23:50 <tim> late",
        "00:10 <lea> so it is",
    ]
    dialogs, log = read(write(tmp_path, "garden.log", "\n".join(lines)))
    assert said(dialogs) == [
        ["tom: hi", "lea: /me waves", "lea: /me left the kettle on"],
        ["tim: late", "lea: so it is"],
    ]
    assert [piece.line for piece in log.dropped] == [1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13, 15]


def test_a_noted_change_of_the_day_of_irc_counts_once(tmp_path: Path) -> None:
    quiet = ["10:00 <a> x", "10:05 <b> y", "--- Day changed Wed Nov 24 2004", "11:00 <a> z", "11:01 <b> w"]
    night = ["23:50 <a> x", "23:55 <b> y", "--- Day changed Wed Nov 24 2004", "00:10 <a> z", "00:11 <b> w"]
    assert [len(read(write(tmp_path, "c.log", "\n".join(lines)))[0]) for lines in (quiet, night)] == [2, 1]


@pytest.mark.parametrize(
    ("times", "dialogs"),
    [
        ("10:01 10:00 10:02", 1),
        ("02:59 02:00 02:30", 1),
        ("23:50 23:58 00:10 00:12", 1),
        ("19:59 20:00 09:00 09:01", 2),
        ("10:00 10:05 09:00 09:01", 2),
        ("23:58 23:59 00:00 23:59 00:01 00:02", 1),
    ],
)
def test_a_late_line_of_irc_begins_no_day(times: str, dialogs: int, tmp_path: Path) -> None:
    """Neither does the end of summer time; a night or a day of silence does."""
    lines = [f"[{time}] <{'ab'[n % 2]}> text {n}" for n, time in enumerate(times.split())]
    assert len(read(write(tmp_path, "c.log", "\n".join(lines)))[0]) == dialogs


def test_subtitles(tmp_path: Path) -> None:
    cues = [
        ("00:00:01,000", "<i>Where is</i>\n{\\an8}the ladder?"),
        ("00:00:03,000", "- Behind the barn.\n- Since"),
        ("00:00:05,000", "when, may I ask? (laughs)"),
        ("00:00:07,500", "[wind]\nNo answer."),
        ("00:01:05,000", "♪"),
        ("00:01:09,000", "Later."),
        ("00:01:12,000", "JA."),
        ("01:00:00,000", "Alone."),
    ]
    text = "\n\n".join(f"{n}\n{at} --> {at} X1:0\n{said}" for n, (at, said) in enumerate(cues, 1))
    dialogs, log = read(write(tmp_path, "film.srt", text))
    assert said(dialogs) == [
        ["A: Where is the ladder?", "B: Behind the barn.", "A: Since when, may I ask?", "B: No answer."],
        ["A: Later.", "B: JA."],
    ]
    assert {piece.reason for piece in log.dropped} == {"sound", "single message between long pauses"}


def test_a_sentence_of_several_subtitles_has_the_time_of_its_last(tmp_path: Path) -> None:
    cues = ((0, "Hello."), (5, "We went"), (14, "out to"), (23, "fish."), (25, "And?"))
    text = "\n\n".join(f"{at}\n00:00:{at:02},000 --> 00:00:{at:02},900\n{text}" for at, text in cues)
    dialogs, log = read(write(tmp_path, "film.srt", text))
    assert (said(dialogs), log.dropped) == ([["A: Hello.", "B: We went out to fish.", "A: And?"]], [])


def test_subtitles_without_upper_case_have_an_utterance_a_cue(tmp_path: Path) -> None:
    cues = ((1, "where is it ?"), (3, "<i>behind\nthe barn</i>"), (5, "when ?"))
    text = "\n\n".join(f"{at}\n00:00:0{at},000 --> 00:00:0{at},900\n{text}" for at, text in cues)
    dialogs, _ = read(write(tmp_path, "film.srt", text))
    assert said(dialogs) == [["A: where is it ?", "B: behind the barn", "A: when ?"]]


def test_subtitles_that_mostly_begin_with_small_letters_have_an_utterance_a_cue(tmp_path: Path) -> None:
    """As those that a program has heard, and names in them have capitals."""
    cues = ((1, "und dann sagt Peter"), (3, "er kommt nicht"), (5, "Peter kommt doch"))
    text = "\n\n".join(f"{at}\n00:00:0{at},000 --> 00:00:0{at},900\n{text}" for at, text in cues)
    dialogs, _ = read(write(tmp_path, "film.srt", text))
    assert said(dialogs) == [["A: und dann sagt Peter", "B: er kommt nicht", "A: Peter kommt doch"]]


def test_a_folder_of_subtitles_or_logs_is_a_corpus(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path, f"{name}.log", f"<a> {name}\n<b> yes\n")
    assert [dialog.id for dialog in load_dialogs(str(tmp_path))] == ["one:0", "two:0"]


def test_a_folder_of_logs_may_be_a_split(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        (tmp_path / split).mkdir()
        write(tmp_path / split, f"{split}.log", "<a> x\n<b> yes\n")
    splits = read_source(str(tmp_path), ReadOptions(), InputLog())
    assert {split: [one.id for one in dialogs] for split, dialogs in splits.items()} == {
        "train": ["train:0"], "valid": ["valid:0"]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "row"),
    [
        (
            "x.jsonl",
            '{"id": "7", "utterances": [{"speaker": "A", "text": "x"}, {"speaker": "B", "text": "y"}]}',
        ),
        ("x.jsonl", '{"id": 7, "messages": [{"role": "a", "content": "x"}, {"role": "b", "content": "y"}]}'),
        ("x.jsonl", '{"id": "7", "question": "x", "answer": "y"}'),
        ("x.jsonl", '{"id": "7", "utts": [["A", "x"], ["B", "y"]]}'),
        ("x.csv", "7,x,y"),
    ],
)
def test_an_id_of_two_dialogs_is_refused_in_every_format(name: str, row: str, tmp_path: Path) -> None:
    header = "id,question,answer\n" if name == "x.csv" else ""
    other = row.replace("7", "8")
    source = write(tmp_path, name, f"{header}{row}\n{other}\n")
    assert [dialog.id for dialog in read(source)[0]] == ["7", "8"]
    line = 4 if header else 3
    message = refusal(write(tmp_path, name, f"{header}{row}\n{other}\n{row}\n"))
    assert f"{name}:{line}: repeated dialog id (7, first at line {line - 2})" in message


@pytest.mark.parametrize(
    ("lines", "bad"),
    [("it rains|B: oh|A: yes", 1), ("Ann: hello|how are you|Bob: fine|and you", 2), ("A: hi|so|well|yes", 2)],
)
def test_all_lines_name_a_speaker_if_the_first_or_half_of_them_do(
    tmp_path: Path, lines: str, bad: int
) -> None:
    path = tmp_path / "chat.txt"
    path.write_text(lines.replace("|", "\n") + "\n")
    with pytest.raises(DataError, match=rf"chat\.txt:{bad}: no speaker.*as others have it"):
        load_dialogs(str(path))


def test_a_speaker_has_at_most_five_words(tmp_path: Path) -> None:
    lines = ["Customer Service Representative: hello", "Dr. Anna van der Berg: hi"]
    assert said(read(write(tmp_path, "chat.txt", "\n".join(lines)))[0]) == [lines]
    lines = ["Well, there is one thing: never mind", "hello you", "how are you"]
    (dialog,) = read(write(tmp_path, "chat.txt", "\n".join(lines)))[0]
    assert [one.text for one in dialog.utterances] == lines
    lines = ["what I can say is this: no", "and so I said to them: never"]
    assert said(read(write(tmp_path, "chat.txt", "\n".join(lines)))[0]) == [
        [f"A: {lines[0]}", f"B: {lines[1]}"]
    ]


def test_few_lines_that_look_like_a_speaker_are_text(tmp_path: Path) -> None:
    path = tmp_path / "chat.txt"
    path.write_text("it rains\noh: really\nyes\n\nB: so\nwell\n")
    assert [[one.text for one in dialog.utterances] for dialog in load_dialogs(str(path))] == [
        ["it rains", "oh: really", "yes"],
        ["B: so", "well"],
    ]


def test_turns_that_share_an_id_keep_their_order() -> None:
    links = [ReplyLink("b", "a"), ReplyLink("a", ""), ReplyLink("c", "b")]
    assert [*in_reply_order("xyz", links)] == [*"yxz"]
    assert [*in_reply_order("xyz", [*links[:2], ReplyLink("a", "b")])] == [*"xyz"]
