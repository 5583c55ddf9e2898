"""Other people's formats: told by their content, read to the last message, refused with file and line."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from dialog.corpora.columns import ReadOptions
from dialog.corpora.corpus import Dialog, load_dialogs
from dialog.corpora.formats import DETECTED, FORMATS, PAGE
from dialog.corpora.layouts import DETECTORS
from dialog.corpora.sources import TEXT_READERS, detect_format, read_source
from lm.errors import DataError
from lm.text.lines import InputLog

ROOT = Path(__file__).parents[2]
NARROW = "\u202f"  # the blank before AM and PM on iOS
MARK = "\u200e"


def write(folder: Path, name: str, content: str) -> str:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return str(path)


def read(source: str, **options: Any) -> tuple[list[Dialog], InputLog]:
    log = InputLog()
    (dialogs,) = read_source(source, ReadOptions(**options), log).values()
    return dialogs, log


def said(dialogs: list[Dialog]) -> list[list[str]]:
    return [[f"{u.speaker}: {u.text}" for u in dialog.utterances] for dialog in dialogs]


def refusal(source: str, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        read(source, **options)
    message = str(caught.value)
    assert message.isprintable()
    assert "; " in message, "a remedy"
    return message


# --- the table of formats, the page ------------------------------------------------------------------------


def test_every_text_format_has_a_detector_a_reader_and_a_line_of_help() -> None:
    others = {"parquet", "swda", "pickle"}  # told by their first bytes
    assert set(DETECTORS) | others == set(DETECTED)
    assert set(TEXT_READERS) | {"csv"} == set(DETECTORS)
    assert all(len(about) <= 64 for about in FORMATS.values()), "a line of the help at 80 columns"


def page_examples() -> list[tuple[str, str]]:
    sections = re.split(r"^### ", (ROOT / PAGE).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return [
        (section.split("\n")[0], example)
        for section in sections
        for example in re.findall(r"^```\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    ]


@pytest.mark.parametrize(("format", "example"), page_examples())
def test_the_examples_of_the_page_are_what_it_says(format: str, example: str, tmp_path: Path) -> None:
    source = write(tmp_path, "x.txt", example)
    assert detect_format(Path(source), InputLog()) == format
    assert sum(len(dialog.utterances) for dialog in load_dialogs(source)) >= 2


def test_the_page_has_every_format() -> None:
    headings = re.findall(r"^### (.*)", (ROOT / PAGE).read_text(encoding="utf-8"), flags=re.MULTILINE)
    named = {name for heading in headings for name in heading.split(", ")}
    assert named | {"pickle", "auto", "prepared"} == set(FORMATS)


# --- WhatsApp ----------------------------------------------------------------------------------------------

CHAT = [
    ("Anna Müller", "13", "21:00", "good evening: all"),
    ("Bob", "13", "21:05", "hi\n\nare you 😀"),
    ("Anna Müller", "13", "23:59", "yes"),
    ("Bob", "14", "00:10", "fine"),
]
EXPECTED = [["Anna Müller: good evening: all", "Bob: hi are you 😀", "Anna Müller: yes", "Bob: fine"]]


def clock(time: str, half: bool) -> str:
    hour, minute = time.split(":")
    if not half:
        return time
    return f"{(int(hour) + 11) % 12 + 1}:{minute}{NARROW}{'PM' if int(hour) >= 12 else 'AM'}"


@pytest.mark.parametrize(
    ("form", "half"),
    [
        ("{d}/04/2024, {t} - ", False),
        ("{d}/4/24, {t} - ", False),
        ("4/{d}/24, {t} - ", True),
        ("{d}.04.24, {t} - ", False),
        ("{d}.04.2024, {t} – ", False),
        ("2024-04-{d}, {t} - ", False),
        ("2024/04/{d} {t} - ", False),
        ("{d}-04-2024 {t} - ", False),
        ("[{d}/04/2024, {t}:07] ", False),
        ("[{d}.04.24, {t}:07] ", False),
        ("[4/{d}/24, {t}] ", True),
        ("[2024-04-{d}, {t}:07] ", False),
        (f"{MARK}[{{d}}/04/2024, {{t}}:07] ", False),
        ("{d}/04/2024 à {t} - ", False),
        ("{d}.4.2024 klo {t} - ", False),
        ("{d}.04.2024 г., {t} - ", False),
        ("2024. 4. {d}. {t} - ", False),
        ("\u200f{d}/4/2024، {t} - ", False),
    ],
)
def test_whatsapp_in_all_common_locales(form: str, half: bool, tmp_path: Path) -> None:
    lines = [f"{form.format(d=day, t=clock(time, half))}{name}: {text}" for name, day, time, text in CHAT]
    source = write(tmp_path, "chat.txt", "\n".join(lines) + "\n")
    assert detect_format(Path(source), InputLog()) == "whatsapp"
    dialogs, log = read(source)
    assert said(dialogs) == EXPECTED
    assert (dialogs[0].id, log.dropped) == ("chat:0", [])


@pytest.mark.parametrize(
    ("morning", "evening"),
    [
        ("[2024/4/13 上午9:00:07] ", "[2024/4/13 下午9:01:07] "),
        ("2024/4/13 午前9:00 - ", "2024/4/13 午後9:01 - "),
        ("2024. 4. 13. 오전 9:00 - ", "2024. 4. 13. 오후 9:01 - "),
        ("13/4/2024، 9:00 ص - ", "13/4/2024، 9:01 م - "),
        ("13/4/24, 9:00 π.μ. - ", "13/4/24, 9:01 μ.μ. - "),
        ("13/4/24, 9:00 a. m. - ", "13/4/24, 9:01 p. m. - "),
    ],
)
def test_whatsapp_knows_the_halves_of_the_day(morning: str, evening: str, tmp_path: Path) -> None:
    lines = [f"{morning}A: x", f"{morning}B: y", f"{evening}A: z", f"{evening}B: w"]
    source = write(tmp_path, "chat.txt", "\n".join(lines))
    assert detect_format(Path(source), InputLog()) == "whatsapp"
    assert said(read(source)[0]) == [["A: x", "B: y"], ["A: z", "B: w"]], "twelve hours apart"


def test_whatsapp_leaves_out_notices_and_media(tmp_path: Path) -> None:
    lines = [
        "13/04/2024, 09:00 - Messages and calls are end-to-end encrypted.",
        "Tap to learn more.",
        "13/04/2024, 09:00 - Anna created group “Garden”",
        "13/04/2024, 09:01 - Anna: <Media omitted>",
        "13/04/2024, 09:01 - Anna: <Medien ausgeschlossen>",
        "13/04/2024, 09:01 - Anna: IMG-1.jpg (file attached)",
        "13/04/2024, 09:01 - Anna: This message was deleted",
        "13/04/2024, 09:01 - Anna: ",
        f"[13/04/2024, 09:02:00] Garden: {MARK}Messages and calls are end-to-end encrypted.",
        f"{MARK}[13/04/2024, 09:02:00] ~{NARROW}Bob: {MARK}image omitted",
        f"[13/04/2024, 09:03:00] ~{NARROW}Bob: beans {MARK}<This message was edited>",
        "13/04/2024, 09:04 - Anna: leeks <This message was edited>",
    ]
    dialogs, log = read(write(tmp_path, "chat.txt", "\n".join(lines)))
    assert said(dialogs) == [["Bob: beans", "Anna: leeks"]]
    assert {piece.reason for piece in log.dropped} == {"notice or media"}
    assert [piece.line for piece in log.dropped] == [1, 3, 4, 5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize(
    "text",
    ["see you at 9.30 (I think)", "I use node.js (server side)", "null", "<stern look>", "<br> is a tag"],
)
def test_whatsapp_keeps_messages_that_resemble_media(text: str, tmp_path: Path) -> None:
    lines = [f"13/04/2024, 09:00 - Anna: {text}", "13/04/2024, 09:01 - Bob: yes"]
    dialogs, log = read(write(tmp_path, "chat.txt", "\n".join(lines)))
    assert (said(dialogs), log.dropped) == ([[f"Anna: {text}", "Bob: yes"]], [])


@pytest.mark.parametrize(
    "text",
    [
        "<Médias omis>",
        "<Multimedia omitido>",
        "Annual report.pdf (file attached)",
        "IMG-1.jpg (Datei angehängt)",
        f"{MARK}IMG-1.jpg (in a language that no list has)",
        "<adjunto: 00000012-PHOTO-2024-04-13.jpg>",
        "GIF omitted",
        "Diese Nachricht wurde gelöscht.",
    ],
)
def test_whatsapp_knows_placeholders_in_other_languages(text: str, tmp_path: Path) -> None:
    lines = [f"13/04/2024, 09:0{n} - {'AB'[n % 2]}: {said}" for n, said in enumerate(("x", text, "y", "z"))]
    dialogs, log = read(write(tmp_path, "chat.txt", "\n".join(lines)))
    assert said(dialogs) == [["A: x", "A: y", "B: z"]]
    assert [piece.line for piece in log.dropped] == [2]


def test_a_pause_begins_a_dialog_and_what_stands_alone_is_left_out(tmp_path: Path) -> None:
    times = [
        "01/04/2024, 09:00",
        "01/04/2024, 15:00",
        "01/04/2024, 21:01",
        "02/04/2024, 09:00",
        "02/04/2024, 09:01",
    ]
    lines = [f"{time} - {'AB'[n % 2]}: text {n}" for n, time in enumerate(times)]
    dialogs, log = read(write(tmp_path, "chat.txt", "\n".join(lines)))
    assert said(dialogs) == [["A: text 0", "B: text 1"], ["B: text 3", "A: text 4"]]
    assert [dialog.id for dialog in dialogs] == ["chat:0", "chat:1"]
    assert [(piece.line, piece.reason) for piece in log.dropped] == [
        (3, "single message between long pauses")
    ]


def test_day_and_month_are_told_by_the_time_that_does_not_run_backwards(tmp_path: Path) -> None:
    def lengths(*stamps: str) -> list[int]:
        lines = [f"{stamp} - A: x" for stamp in stamps]
        return [len(d.utterances) for d in read(write(tmp_path, "c.txt", "\n".join(lines)))[0]]

    night = ("02/01/24, 23:00", "02/02/24, 01:00")  # one night of February, or a month apart
    assert lengths("01/31/24, 23:30", *night) == [2], "month first: there is no month 31"
    assert lengths("01/12/24, 23:30", *night) == [2], "not the first of December"
    assert lengths("12/31/23, 11:30 PM", "1/1/24, 12:10 AM", "1/1/24, 12:20 AM") == [3], "past midnight"
    assert lengths("1/2/24, 11:30 PM", "1/3/24, 12:10 AM") == [2], "AM and PM stand beside mm/dd"
    assert lengths("1/2/24, 23:30", "2/2/24, 0:10") == [2], "dd/mm otherwise"


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
        ("c.txt", "13/04/2024, 09:00 - A: x\n", "no dialog in the source after 1 dropped pieces"),
        ("c.log", "12:34 <a> x\n" * 30 + "what is this\n", r"c.log:31: not a line of an IRC log"),
        ("c.log", "12:34 <a> x\n25:34 <b> x\n", r"c.log:2: no such date or time \(25:34\); "),
        ("c.srt", "1\n00:00:01,000 --> 00:00:02,000\nhello\n\nworld\n", r"c.srt:5: not part of a subtitle"),
        ("c.srt", "1\n00:00:01,000 --> 00:00:02,000\n[music]\n", "no dialog in the source"),
        ("c.csv", "a,b,c\n1,2,3\n", "no column text; set --text-column to one of a, b, c"),
        (
            "c.csv",
            "Anna,hi\nBob,yes\n",
            "Anna, hi; or, if line 1 is no header, write one above, as in dialog,",
        ),
        ("c.csv", "text,b\nx,y\n", "no column dialog; set --dialog-column to one of text, b"),
        ("c.csv", "dialog,text\nx,y\n", "no column speaker; set --speaker-column to one of dialog, text"),
        ("c.csv", "dialog,speaker,text\n1,A,x\n1,B\n", r"c.csv:3: wrong number of columns \(2 found\)"),
        ("c.csv", 'dialog,speaker,text\n1,A,x\n1,B,"y\nz\n', r"c.csv:3: not CSV"),
        ("c.csv", "dialog,speaker,text\n1,A,x\n2,B,y\n", r"c.csv:2: dialog of one utterance"),
        ("c.csv", "dialog,speaker,text\n1,A,\n1,B,y\n", r"c.csv:2: empty utterance"),
        ("c.csv", "dialog,speaker,text\n", "no dialog in the source"),
        ("c.csv", "question,answer\nwhy,\n", r"c.csv:2: empty utterance"),
        ("c.tsv", "a\tb\t1\n" * 30 + "a\tb\t2\n", r"c.tsv:31: label is neither 0 nor 1"),
        ("c.tsv", "a\tb\t0\n", "no dialog in the source after 1 dropped pieces"),
        ("c.tsv", "a\tb\t1\na\tb\n", r"c.tsv:2: wrong number of columns"),
        ("c.jsonl", '{"question": "x", "answer": 1.5}\n', r"c.jsonl:1: text is not a string"),
        ("c.jsonl", '{"question": "x", "answer": "y"}\n{"a": 1}\n', r"c.jsonl:2: no question and answer"),
        ("c.jsonl", '{"question": "x", "answer": ""}\n', r"c.jsonl:1: empty utterance"),
        ("c.jsonl", '{"messages": [{"role": "user", "content": "x"}]}\n', r"c.jsonl:1: dialog of one"),
        ("c.jsonl", '{"messages": [{"content": "x"}]}\n', r"c.jsonl:1: message without a role"),
        ("c.jsonl", '{"messages": {"content": "x"}}\n', r"c.jsonl:1: no list of messages"),
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


# --- IRC, subtitles ----------------------------------------------------------------------------------------

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
        "12:37 <tim>",
        "23:50 <tim> late",
        "00:10 <lea> so it is",
    ]
    dialogs, log = read(write(tmp_path, "garden.log", "\n".join(lines)))
    assert said(dialogs) == [["tom: hi", "lea: /me waves"], ["tim: late", "lea: so it is"]]
    assert [piece.line for piece in log.dropped] == [1, 2, 3, 4, 7, 8, 9, 10]


@pytest.mark.parametrize(
    ("times", "dialogs"),
    [
        ("10:01 10:00 10:02", 1),
        ("02:59 02:00 02:30", 1),
        ("23:50 23:58 00:10 00:12", 1),
        ("19:59 20:00 09:00 09:01", 2),
        ("10:00 10:05 09:00 09:01", 2),
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


def test_subtitles_without_upper_case_have_an_utterance_a_cue(tmp_path: Path) -> None:
    cues = ((1, "where is it ?"), (3, "<i>behind\nthe barn</i>"), (5, "when ?"))
    text = "\n\n".join(f"{at}\n00:00:0{at},000 --> 00:00:0{at},900\n{text}" for at, text in cues)
    dialogs, _ = read(write(tmp_path, "film.srt", text))
    assert said(dialogs) == [["A: where is it ?", "B: behind the barn", "A: when ?"]]


def test_a_folder_of_subtitles_or_logs_is_a_corpus(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path, f"{name}.log", f"<a> {name}\n<b> yes\n")
    assert [dialog.id for dialog in load_dialogs(str(tmp_path))] == ["one:0", "two:0"]


# --- tables ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("quote", ['"', "'"])
def test_csv_dialects_and_fields_of_several_lines(delimiter: str, quote: str, tmp_path: Path) -> None:
    def row(*fields: str) -> str:
        return delimiter.join(f"{quote}{field.replace(quote, 2 * quote)}{quote}" for field in fields)

    rows = [
        row("Conversation ID", "time", "Author", "Message"),
        row("7", "1", "Anna", f"hello, {quote}you{quote};\nand | you"),
        row("7", "2", "Bob", "hi"),
    ]
    dialogs, _ = read(write(tmp_path, "x.csv", "\n".join(rows) + "\n"))
    assert dialogs[0].id == "7"
    assert said(dialogs) == [[f"Anna: hello, {quote}you{quote}; and | you", "Bob: hi"]]


@pytest.mark.parametrize(
    "dialog", ["dialog", "thread_id", "Conversation", "session-id", "ticket", "conversationId"]
)
@pytest.mark.parametrize("text", ["text", "Body", "content", "utterance"])
def test_csv_columns_of_usual_names(dialog: str, text: str, tmp_path: Path) -> None:
    content = f"{dialog},sender,{text}\n1,A,hello\n1,B,hi\n"
    assert said(read(write(tmp_path, "x.csv", content))[0]) == [["A: hello", "B: hi"]]
    assert said(read(write(tmp_path, "x.txt", content))[0]) == [["A: hello", "B: hi"]], "by its header"


def test_csv_columns_that_are_named(tmp_path: Path) -> None:
    source = write(tmp_path, "x.csv", "a,b,c,text\n1,A,hello,no\n1,B,hi,no\n")
    options = {"dialog_column": "a", "speaker_column": "b", "text_column": "c"}
    assert said(read(source, **options)[0]) == [["A: hello", "B: hi"]]


def test_csv_of_questions_and_of_rankings(tmp_path: Path) -> None:
    pairs = write(tmp_path, "x.csv", 'question,answer\n"why, then?",so\n')
    assert said(read(pairs)[0]) == [["user: why, then?", "assistant: so"]]
    ranking = write(tmp_path, "y.csv", 'Context,Utterance,Label\n"a, b __eot__",c,1\na,d,0\n')
    assert said(read(ranking)[0]) == [["A: a, b", "B: c"]]


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_a_ranking_without_a_header_keeps_its_first_row(delimiter: str, suffix: str, tmp_path: Path) -> None:
    rows = [("a", "b", "1"), ("c", "d", "0"), ("e", "f", "1")]
    content = "".join(f"{delimiter.join(row)}\n" for row in rows)
    source = write(tmp_path, f"y.{suffix}", content)
    format = "csv" if suffix == "csv" or delimiter != "\t" else "ranking"
    assert said(read(source, format=format)[0]) == [["A: a", "B: b"], ["A: e", "B: f"]]
    bad = write(tmp_path, f"z.{suffix}", content + delimiter.join("xyz"))
    assert f"z.{suffix}:4: label" in refusal(bad, format=format)


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


def test_a_field_of_csv_may_have_so_many_characters(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    for more in (0, 1):
        source = write(tmp_path, "x.csv", f"dialog,speaker,text\n1,A,hi\n1,B,{'x' * (limit + more)}\n")
        if more:
            assert f"x.csv:3: field too long; at most {limit:,} characters" in refusal(source)
        else:
            assert len(read(source)[0][0].utterances[1].text) == limit


def test_a_ranking_gives_its_true_responses(tmp_path: Path) -> None:
    context = "how do i __eou__ install it __eou__ __eot__ use apt __eou__ __eot__"
    rows = [
        "context\tresponse\tlabel",
        f"{context}\tthanks __eou__\t1",
        f"{context}\tit rains\t0",
        "one\ttwo\t1",
    ]
    for text in ("\n".join(rows), "\n".join(rows[1:])):
        source = write(tmp_path, "ubuntu.tsv", text)
        assert detect_format(Path(source), InputLog()) == "ranking"
        dialogs, log = read(source)
        assert said(dialogs) == [
            ["A: how do i", "A: install it", "B: use apt", "A: thanks"],
            ["A: one", "B: two"],
        ]
        assert [piece.reason for piece in log.dropped] == ["response with label 0"]


def test_data_sets_with_usual_columns(tmp_path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    for rows, expected in (
        (
            [{"dialog": ["hello", "hi", "bye"], "act": [1, 2, 2], "emotion": [0, 0, 0]}],
            ["A: hello", "B: hi", "A: bye"],
        ),
        (
            [{"messages": [{"role": "user", "content": "x"}, {"role": "bot", "content": "y"}]}],
            ["user: x", "bot: y"],
        ),
        ([{"prompt": "x", "response": "y"}], ["user: x", "assistant: y"]),
        (
            [{"conv_id": 1, "who": "A", "utterance": "x"}, {"conv_id": 1, "who": "B", "utterance": "y"}],
            ["A: x", "B: y"],
        ),
    ):
        datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "stored")
        for source, format in ((f"hf:{tmp_path / 'stored'}", "auto"), (str(tmp_path / "stored"), "datasets")):
            assert said(read(source, format=format)[0]) == [expected]


def test_the_hub_is_asked_for_nothing_but_its_own_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no such folder" in refusal(str(tmp_path / "nothing"), format="datasets")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("socket.create_connection", _unreachable)
    message = refusal("hf:nobody/nothing")
    assert "cannot reach http://127.0.0.1:9" in message
    assert "HF_HUB_OFFLINE=1" in message
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "hf:nobody/nothing: cannot load it" in refusal("hf:nobody/nothing")


def _unreachable(*arguments: Any, **options: Any) -> None:
    raise OSError("Network is unreachable")


# --- JSON --------------------------------------------------------------------------------------------------


def test_chats_with_assistants(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "so"}, {"type": "image_url", "image_url": {"url": "x"}}]
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "why\nthen"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": parts},
    ]
    shared = {"id": "c7", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    for indent, ending in ((None, "jsonl"), (1, "json")):
        for value, id, expected in (
            ({"messages": messages}, "x:0", ["user: why then", "assistant: so"]),
            (shared, "c7", ["human: a", "gpt: b"]),
        ):
            text = json.dumps(value) if indent is None else json.dumps([value], indent=indent)
            source = write(tmp_path, f"x.{ending}", text)
            assert detect_format(Path(source), InputLog()) == "messages"
            dialogs, _ = read(source)
            assert (dialogs[0].id, said(dialogs)) == (id, [expected])
    _, log = read(write(tmp_path, "x.jsonl", json.dumps({"messages": messages})))
    assert [piece.reason for piece in log.dropped] == [
        "system or tool message",
        "message without text",
        "system or tool message",
    ]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("question", "answer"),
        ("prompt", "completion"),
        ("prompt", "response"),
        ("instruction", "output"),
        ("input", "output"),
    ],
)
def test_questions_and_answers(question: str, answer: str, tmp_path: Path) -> None:
    rows = [{question: f"why {n}?", answer: f"so {n}"} for n in range(3)]
    for text in ("\n".join(map(json.dumps, rows)), json.dumps(rows, indent=2)):
        source = write(tmp_path, "x.json", text)
        assert detect_format(Path(source), InputLog()) == "pairs"
        assert said(read(source)[0]) == [[f"user: why {n}?", f"assistant: so {n}"] for n in range(3)]


def test_the_input_of_an_instruction_is_part_of_it(tmp_path: Path) -> None:
    row = {"instruction": "translate", "input": "hello", "output": "hallo"}
    assert said(read(write(tmp_path, "x.jsonl", json.dumps(row)))[0]) == [
        ["user: translate hello", "assistant: hallo"]
    ]


def telegram(*texts: Any) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [
        {"id": n, "type": "message", "date": f"2024-04-13T09:0{n}:00", "from": "AB"[n % 2], "text": text}
        for n, text in enumerate(texts)
    ]
    messages.insert(
        1, {"id": 99, "type": "service", "date": "2024-04-13T09:00:00", "action": "phone_call", "text": ""}
    )
    return {"name": "B", "type": "personal_chat", "id": 1, "messages": messages}


@pytest.mark.parametrize("indent", [None, 1])
def test_telegram_of_one_chat_and_of_all(indent: int | None, tmp_path: Path) -> None:
    one = telegram("hi", ["see ", {"type": "link", "text": "x"}, "!"], "", 'the "messages": [1] of\nyours')
    expected = ["A: hi", "B: see x!", 'B: the "messages": [1] of yours']
    dialogs, log = read(write(tmp_path, "result.json", json.dumps(one, indent=indent)))
    assert said(dialogs) == [expected]
    assert [piece.reason for piece in log.dropped] == ["notice or media"] * 2
    whole = {"about": "x", "chats": {"about": "y", "list": [one, telegram("yes", "no")]}}
    dialogs, _ = read(write(tmp_path, "result.json", json.dumps(whole, indent=indent)))
    assert said(dialogs) == [expected, ["A: yes", "B: no"]]
    assert [dialog.id for dialog in dialogs] == ["result:0", "result:1"]


def test_telegram_times_with_a_zone_and_without(tmp_path: Path) -> None:
    one = telegram("hi", "you")
    one["messages"][-1]["date"] += "+02:00"
    assert said(read(write(tmp_path, "result.json", json.dumps(one)))[0]) == [["A: hi", "B: you"]]


def test_the_lines_of_a_document_are_those_of_its_items(tmp_path: Path) -> None:
    one = telegram("hi", "you")
    one["messages"][-1]["date"] = "never"
    text = json.dumps(one, indent=1)
    line = text[: text.index('"never"')].count("\n") + 1
    found = refusal(write(tmp_path, "result.json", text))
    assert f"result.json:{line - 3}: no date" in found, "where the message begins"
