"""Tables: CSV, rankings and data sets, by their columns."""

import csv
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dialog.corpora.columns import ReadOptions
from dialog.corpora.corpus import load_dialogs
from dialog.corpora.readers import TSV_COLUMNS
from dialog.corpora.sources import detect_format, read_source
from dialog.utterance import Utterance
from lm.errors import DataError
from lm.text.lines import InputLog
from tests.support.foreign_formats import read, refusal, said, write


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


@pytest.mark.parametrize("delimiter", [";", ",", "\t", "^"])
def test_the_first_line_of_excel_names_the_delimiter(delimiter: str, tmp_path: Path) -> None:
    rows = [
        f"sep={delimiter}",
        *(delimiter.join(row) for row in (TSV_COLUMNS[:3], "1Ax", "1By")),
    ]
    assert said(read(write(tmp_path, "x.csv", "\r\n".join(rows)))[0]) == [["A: x", "B: y"]]
    bad = write(tmp_path, "y.csv", "\n".join([*rows, "1"]))
    assert "y.csv:5: wrong number of columns" in refusal(bad)
    assert "no dialog in the source" in refusal(write(tmp_path, "z.csv", rows[0]))
    quoted = write(tmp_path, "q.csv", "\n".join([f'"{rows[0]}"', *rows[1:]]))
    assert said(read(quoted)[0]) == [["A: x", "B: y"]]


@pytest.mark.parametrize("first", ["sep=", "sep=;;", '"sep="', "SEP=\\t", "sep=;;;"])
def test_a_first_line_of_excel_without_one_delimiter_is_refused(first: str, tmp_path: Path) -> None:
    source = write(tmp_path, "x.csv", f"{first}\ndialog;speaker;text\n1;A;x\n1;B;y\n")
    assert "x.csv:1: " in (message := refusal(source))
    assert message.endswith(" names no single delimiter; write one character after sep=, or remove the line")


def test_csv_columns_that_are_named(tmp_path: Path) -> None:
    source = write(tmp_path, "x.csv", "a,b,c,text\n1,A,hello,no\n1,B,hi,no\n")
    options = {"dialog_column": "a", "speaker_column": "b", "text_column": "c"}
    assert said(read(source, **options)[0]) == [["A: hello", "B: hi"]]


@pytest.mark.parametrize("kind", ["dialog", "speaker", "text", "act"])
@pytest.mark.parametrize("table", ["pairs.csv", "turns.csv", "lists.parquet", "stored"])
def test_a_named_column_that_no_table_has_is_refused(kind: str, table: str, tmp_path: Path) -> None:
    """Structures in a list have columns of their own, and one of several files is enough."""
    datasets.disable_progress_bars()
    items = [{"writer": name, "text": text, "mood": "calm"} for name, text in ("Ax", "By")]
    lists = pa.Table.from_pylist([{"talk": items, "answer": 1}])
    write(tmp_path, "pairs.csv", "question,answer\nx,y\n")
    write(tmp_path, "turns.csv", "dialog,speaker,text,answer\n1,A,x,y\n1,B,x,y\n")
    pq.write_table(lists, tmp_path / "lists.parquet")
    datasets.Dataset(lists).save_to_disk(tmp_path / "stored")
    format = "datasets" if table == "stored" else "auto"
    message = refusal(str(tmp_path / table), format=format, **{f"{kind}_column": "anser"})
    assert f"{table}: no column anser; name one with `dialog prepare … --{kind}-column`: " in message
    assert message.endswith("answer; did you mean answer?")
    if format == "datasets" or table == "lists.parquet":
        named = {"text_column": "talk", "speaker_column": "writer", "act_column": "mood"}
        (dialog,), _ = read(str(tmp_path / table), format=format, **named)
        assert dialog.utterances == (Utterance("A", "x", "calm"), Utterance("B", "y", "calm"))


def test_a_named_column_may_be_in_one_of_several_tables(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", "dialog,speaker,text,da\n1,A,x,q\n1,B,y,s\n")
    write(tmp_path, "test.csv", "dialog,speaker,text\n1,A,x\n1,B,y\n")
    splits = read_source(str(tmp_path), ReadOptions(act_column="da"), InputLog())
    acts = {split: [one.act for one in dialogs[0].utterances] for split, dialogs in splits.items()}
    assert acts == {"train": ["q", "s"], "test": ["", ""]}


@pytest.mark.parametrize(
    ("header", "times"),
    [
        (
            "Date",
            [
                "2024-04-13T09:00:00.1230000+00:00",
                "2024-04-13T09:01:00.0000000+00:00",
                "2024-04-13T19:00:00Z",
            ],
        ),
        ("sent_at", ["13/04/2024 09:00", "13/04/2024 09:01", "13/04/2024 19:00"]),
        ("timestamp", ["4/13/24, 9:00 AM", "4/13/24, 9:01 AM", "4/13/24, 7:00 PM"]),
        ("Date;Time", ["2024-04-13;09:00", "2024-04-13;09:01", "2024-04-13;19:00"]),
        ("ts", ["1712998800.5", "1712998860", "1713034800"]),
        ("Created At", ["1712998800000", "1712998860000", "1713034800000"]),
        ("timestamp", ["20240413090000", "20240413090100", "20240413190000"]),
        (
            "Date;Time",
            ["2024-04-13 00:00:00;09:00", "2024-04-13 00:00:00;09:01", "2024-04-13 00:00:00;19:00"],
        ),
    ],
)
def test_a_table_with_times_needs_no_dialogs(header: str, times: list[str], tmp_path: Path) -> None:
    first, second, late = times
    lines = [
        f"{late};Bob;so",
        f"{first};Anna;hi",
        f"{second};Anna;",
        f"{late};Anna;late",
        f"{second};Bob;hello",
    ]
    source = write(tmp_path, "x.csv", f"{header};Author;Content\n" + "\n".join(lines) + "\n")
    dialogs, log = read(source)
    assert said(dialogs) == [["Anna: hi", "Bob: hello"], ["Bob: so", "Anna: late"]]
    assert [(piece.line, piece.reason) for piece in log.dropped] == [(4, "message without text")]


@pytest.mark.parametrize("room", ["room", "Channel", "thread_ts", "in_response_to_tweet_id"])
def test_a_table_that_tells_conversations_apart_needs_their_column(room: str, tmp_path: Path) -> None:
    source = write(tmp_path, "x.csv", f"{room},time,user,text\nred,9:00,A,hi\nblue,9:00,B,yo\n")
    assert "no column dialog; name one" in refusal(source)


@pytest.mark.parametrize("value", ["45395.375", "12", "1e30", "2024-04-13 25:00"])
def test_a_number_that_is_no_time_is_named(value: str, tmp_path: Path) -> None:
    source = write(tmp_path, "x.csv", f"time,user,text\n{value},A,hi\n{value},B,yo\n")
    assert f"x.csv:2: no time in time ('{value}')" in refusal(source)


def test_a_row_without_a_script_may_come_first(tmp_path: Path) -> None:
    source = write(tmp_path, "x.csv", f'no,dialogue\n1,\n2,"{SCRIPT}"\n')
    assert "x.csv:2: dialogue has no list of utterances" in refusal(source)


def test_what_is_no_time_is_named(tmp_path: Path) -> None:
    source = write(tmp_path, "x.csv", "time,author,content\n9:00,A,hi\nsoon,B,hello\n")
    assert "x.csv:3: no time in time ('soon'); write times as in 2024-04-13 09:00, or add" in refusal(source)
    assert "no column room" in refusal(source, dialog_column="room")
    rows = [{"time": datetime(2024, 4, 13, hour), "who": "AB"[hour % 2], "text": "x"} for hour in (8, 9)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    assert said(read(str(tmp_path / "x.parquet"))[0]) == [["A: x", "B: x"]]


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


def test_pairs_of_one_conversation_are_one_dialog(tmp_path: Path) -> None:
    table = "{},prompt,response\n1,a,b\n2,e,f\n1,c,d\n"
    joined = [["user: a", "assistant: b", "user: c", "assistant: d"], ["user: e", "assistant: f"]]
    assert said(read(write(tmp_path, "x.csv", table.format("conversation_id")))[0]) == joined
    assert said(read(write(tmp_path, "y.csv", table.format("who")), dialog_column="who")[0]) == joined
    assert len(read(write(tmp_path, "z.csv", table.format("number")))[0]) == 3


@pytest.mark.parametrize("names", [("user", "role"), ("role", "user_id"), ("name", "role")])
def test_the_side_of_a_row_is_its_speaker(names: tuple[str, str], tmp_path: Path) -> None:
    """``user`` and ``name`` may be the account that holds a chat with an assistant."""
    rows = [
        {"chat": "1", "text": text, **dict.fromkeys(names, "x"), "role": who} for text, who in ("ap", "bq")
    ]
    source = write(tmp_path, "x.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert said(read(source)[0]) == [["p: a", "q: b"]]


SCRIPT = "Tom: hi\nare you there?\nLea: hello"


@pytest.mark.parametrize(
    ("column", "options"), [("dialogue", {}), ("transcript", {"text_column": "transcript"})]
)
def test_a_column_may_have_the_script_of_a_dialog(
    column: str, options: dict[str, str], tmp_path: Path
) -> None:
    rows = [
        {"id": "9", column: SCRIPT, "summary": "Tom: a\nLea: b"},
        {"id": "10", column: SCRIPT, "summary": ""},
    ]
    with (tmp_path / "x.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    for name in ("x.csv", "x.parquet"):
        dialogs, _ = read(str(tmp_path / name), **options)
        assert said(dialogs) == [["Tom: hi are you there?", "Lea: hello"]] * 2
        assert len({dialog.id for dialog in dialogs}) == 2


def test_a_row_without_its_script_is_named(tmp_path: Path) -> None:
    source = write(tmp_path, "x.csv", f'no,dialogue\n1,"{SCRIPT}"\n2,nothing\n')
    assert "x.csv:5: dialogue has no list of utterances, and no lines `A: text`" in refusal(source)


def test_a_text_beside_a_speaker_is_no_script(tmp_path: Path) -> None:
    content = f'dialog,speaker,text\n1,A,"{SCRIPT}"\n1,B,yes\n'
    assert said(read(write(tmp_path, "x.csv", content))[0]) == [[f"A: {' '.join(SCRIPT.split())}", "B: yes"]]


def test_data_sets_with_usual_columns(tmp_path: Path) -> None:
    datasets.disable_progress_bars()
    for rows, expected in (
        (
            [{"dialog": ["hello", "hi", "bye"], "act": [1, 2, 2], "emotion": [0, 0, 0]}],
            ["A: hello", "B: hi", "A: bye"],
        ),
        (
            [
                {
                    "messages": [
                        {"role": "system", "content": "be brief"},
                        {"role": "user", "content": "x"},
                        {"role": "bot", "content": None},
                        {"role": "bot", "content": "y"},
                    ]
                }
            ],
            ["user: x", "bot: y"],
        ),
        ([{"prompt": "x", "response": "y"}], ["user: x", "assistant: y"]),
        ([{"id": "7.json", "turns": {"speaker": [0, 1], "utterance": ["x", "y"]}}], ["0: x", "1: y"]),
        ([{"dialogue": ["x", "y"], "speakers": ["Tom", "Lea"]}], ["Tom: x", "Lea: y"]),
        ([{"conv_id": "h", "speaker_idx": n, "utterance": "xy"[n]} for n in (0, 1)], ["0: x", "1: y"]),
        (
            [{"conv_id": "h", "speaker_idx": 0, "name": "TL"[n], "utterance": "xy"[n]} for n in (0, 1)],
            ["T: x", "L: y"],
        ),
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


def test_headers_of_pairs_have_any_case(tmp_path: Path) -> None:
    path = tmp_path / "faq.csv"
    path.write_text("Question,Answer\nis it raining,not any more\n")
    (dialog,) = load_dialogs(str(path))
    assert [one.text for one in dialog.utterances] == ["is it raining", "not any more"]
    path.write_text("Instruction,Input,Output\nTranslate,bonjour,hello\n")
    (dialog,) = load_dialogs(str(path))
    assert [one.text for one in dialog.utterances] == ["Translate bonjour", "hello"]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "chat.csv"
    path.write_text("dialog,speaker,text,text\n1,A,hello,hi\n1,B,so,well\n")
    with pytest.raises(DataError, match=r"chat\.csv:1: two columns are named text; rename one of them"):
        load_dialogs(str(path))
    path.write_text("dialog,speaker,text,note,note,,\n1,A,hello,,,,\n1,B,so,,,,\n")
    assert len(load_dialogs(str(path))) == 1


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M", "%d/%m/%Y %H:%M", "%Y-%m-%d"])
def test_a_table_with_the_newest_first_is_turned_round(form: str, tmp_path: Path) -> None:
    """Also among messages of one time; and the order of day and month is found as in the other direction."""
    times = [datetime(2024, 3, 11, 23, 59), datetime(2024, 3, 12, 0, 4)] * 2
    times += [datetime(2024, 4, 1, 23, 59), datetime(2024, 4, 2, 0, 5)]
    times.sort()
    rows = [f"{time.strftime(form)},{'AB'[n % 2]},{n}" for n, time in enumerate(times)]
    found = []
    for order in (rows, rows[::-1]):
        source = write(tmp_path, "x.csv", "\n".join(["date,author,text", *order]) + "\n")
        found.append(said(read(source)[0]))
    assert found[0] == found[1]
    assert found[0][0][:2] == ["A: 0", "B: 1"]
    assert form == "%Y-%m-%d" or found[0] == [["A: 0", "B: 1", "A: 2", "B: 3"], ["A: 4", "B: 5"]]


@pytest.mark.parametrize(
    "value", ["0001-01-01", "1850-01-01 10:00", "3000-01-01T00:00:00", "01/01/1850 9:00"]
)
def test_a_time_that_no_message_has_is_named(value: str, tmp_path: Path) -> None:
    source = write(tmp_path, "x.csv", f"time,user,text\n2024-04-13 09:00,A,hi\n{value},B,yo\n")
    assert f"x.csv:3: no time in time ('{value}')" in refusal(source)


def test_an_open_quote_costs_its_own_line(tmp_path: Path) -> None:
    lines = [f"d,{'AB'[n % 2]},text {n}" for n in range(40)]
    lines[4] = 'd,A,"open'
    source = write(tmp_path, "x.csv", "\n".join(["dialog,speaker,text", *lines]) + "\n")
    assert "x.csv:6: not CSV" in refusal(source)
    log = InputLog("skip")
    (dialogs,) = read_source(source, ReadOptions(), log).values()
    assert len(dialogs[0].utterances) == 39
    assert [piece.line for piece in log.dropped] == [6]


def test_the_first_row_of_a_table_may_lack_its_list(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["1", "2"], "dialog": [None, ["a", "b"]]}), tmp_path / "x.parquet")
    assert "x.parquet:1: dialog has no list of utterances" in refusal(str(tmp_path / "x.parquet"))
    (dialogs,) = read_source(str(tmp_path / "x.parquet"), ReadOptions(), InputLog("skip")).values()
    assert said(dialogs) == [["A: a", "B: b"]]


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
@pytest.mark.parametrize("speakers", [["Ann"], ["Ann", "Bob", "Ann"]])
def test_fields_of_different_lengths_are_refused(ending: str, speakers: list[str], tmp_path: Path) -> None:
    rows = [{"utterances": {"speaker": who, "text": ["hi", "yo"]}} for who in (["Ann", "Bob"], speakers)]
    path = tmp_path / f"x.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert f"x.{ending}:2: an item of utterances" in refusal(str(path))
