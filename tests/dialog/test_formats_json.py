"""JSON: chats with assistants, questions and answers, lists, scripts and replies."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dialog.corpora.sources import detect_format
from lm.text.lines import InputLog
from tests.support.foreign_formats import read, refusal, said, write


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
    ("value", "format", "id", "expected"),
    [
        ({"dialog": ["hi", "hello"]}, "dialogs", "x:0", ["A: hi", "B: hello"]),
        ({"utterances": ["hi", "hello"], "id": "7"}, "dialogs", "7", ["A: hi", "B: hello"]),
        (
            {"id": 7, "dialog": ["hi", "hello"], "speaker": ["Tom", "Lea"], "act": [1, 2], "user": "u"},
            *("dialogs", "7", ["Tom: hi", "Lea: hello"]),
        ),
        (
            {"turns": [{"who": "Tom", "utterance": "hi"}, {"who": "Lea", "utterance": "hello"}]},
            *("dialogs", "x:0", ["Tom: hi", "Lea: hello"]),
        ),
        (
            {
                "conversation": [
                    {"role": "system", "content": "be brief"},
                    *({"role": r, "content": r} for r in "ab"),
                ]
            },
            *("dialogs", "x:0", ["a: a", "b: b"]),
        ),
        (
            {"messages": [{"author": "Tom", "content": "hi"}, {"author": "Lea", "content": "hello"}]},
            *("messages", "x:0", ["Tom: hi", "Lea: hello"]),
        ),
        (
            {
                "messages": [
                    {"role": "user", "name": "Tom", "content": "hi"},
                    {"role": "bot", "content": "hello"},
                ]
            },
            *("messages", "x:0", ["user: hi", "bot: hello"]),
        ),
    ],
)
def test_lists_of_utterances_have_any_of_the_known_names(
    value: dict[str, Any], format: str, id: str, expected: list[str], tmp_path: Path
) -> None:
    for text in (json.dumps(value), json.dumps([value], indent=1)):
        source = write(tmp_path, "x.json", text)
        assert detect_format(Path(source), InputLog()) == format
        dialogs, _ = read(source)
        assert (dialogs[0].id, said(dialogs)) == (id, [expected])


@pytest.mark.parametrize(
    ("key", "found", "expected"),
    [
        ("dialogue", "Tom: hi\r\nLea: 'tis so: hello\r\n", ["Tom: hi", "Lea: 'tis so: hello"]),
        (
            "conversation",
            "#Person1#: hi\n\n and you?\n#Person2#: ok",
            ["#Person1#: hi and you?", "#Person2#: ok"],
        ),
        ("dialog", ["Tom: hi", "Lea: hello"], ["Tom: hi", "Lea: hello"]),
        ("dialog", ["Tom: hi", "hello"], ["A: Tom: hi", "B: hello"]),
        ("utterances", ["小明：你好", "小红：你好", "小明：嗯"], ["小明: 你好", "小红: 你好", "小明: 嗯"]),
        ("utterances", ["我妈说：今天", "预报说：不"], ["A: 我妈说：今天", "B: 预报说：不"]),  # sentences
        (
            "dialog",
            ["I have one question: where?", "Sure: there"],
            ["A: I have one question: where?", "B: Sure: there"],
        ),
        ("dialog", ["Ingredients:", "Tom: yo"], ["A: Ingredients:", "B: Tom: yo"]),
        (
            "dialogue",
            "Tom: the list:\nmilk: two\nAnd one more thing: eggs\nLea: ok",
            ["Tom: the list: milk: two And one more thing: eggs", "Lea: ok"],
        ),
        ("turns", {"speaker": ["A", "B"], "text": ["a", "b"], "slots": []}, ["A: a", "B: b"]),
        ("turns", {"who": [0, 1], "utterance": ["hi", "hello"], "service": "x"}, ["0: hi", "1: hello"]),
    ],
)
def test_dialogs_are_scripts_or_lists_by_field_too(
    key: str, found: object, expected: list[str], tmp_path: Path
) -> None:
    value = {"id": "7", key: found, "summary": "Note: they greet.\nTom: first"}
    for text in (json.dumps(value), json.dumps([value], indent=1)):
        source = write(tmp_path, "x.json", text)
        assert detect_format(Path(source), InputLog()) == "dialogs"
        dialogs, _ = read(source)
        assert (dialogs[0].id, said(dialogs)) == ("7", [expected])


@pytest.mark.parametrize(
    ("speakers", "first"),
    [
        (["Tom", "Lea", "Tom"], "Tom"),
        (["Tom", "Lea"], "A"),
        ([{"name": "Tom"}, {"name": "Lea"}, {"name": "Ann"}], "A"),
        ([None, None, None], "A"),
    ],
)
def test_a_list_of_speakers_names_each_or_counts_for_nothing(
    speakers: list[Any], first: str, tmp_path: Path
) -> None:
    value = {"dialogue": ["hi", "hello", "so"], "speakers": speakers}
    assert said(read(write(tmp_path, "x.jsonl", json.dumps(value)))[0])[0][0] == f"{first}: hi"


def test_names_in_the_texts_count_before_a_list_of_who_takes_part(tmp_path: Path) -> None:
    value = {"dialog": ["Tom: hi", "Lea: hello"], "speakers": ["Lea", "Tom"]}
    assert said(read(write(tmp_path, "x.jsonl", json.dumps(value)))[0]) == [["Tom: hi", "Lea: hello"]]


@pytest.mark.parametrize(
    "other",
    [{"conversation": "User: x\nBot: y"}, {"dialogue": "title: cats\nlang: en"}, {"turns": {"text": ["x"]}}],
)
def test_a_list_counts_before_what_looks_like_a_script(other: dict[str, Any], tmp_path: Path) -> None:
    value = other | {"messages": CHAT}
    source = write(tmp_path, "x.jsonl", json.dumps(value))
    assert said(read(source)[0]) == [["user: hi", "bot: hello"]]
    pq.write_table(pa.Table.from_pylist([value]), tmp_path / "x.parquet")
    assert said(read(str(tmp_path / "x.parquet"))[0]) == [["user: hi", "bot: hello"]]


@pytest.mark.parametrize(
    "text",
    [
        '[{"text": "hi", "speaker": "A"}, {"text": "hello", "speaker": "B"}]\n["so", "[so]"]\n',
        '[["hi", "hello"], ["so", "[so]"]]',
        '[\n [\n  "hi",\n  "hello"\n ],\n [\n  "so",\n  "[so]"\n ]\n]\n',
        '["hi", "hello"]\n["so", "[so]"]\n',
        '[[{"text": "hi", "speaker": "A"}, {"text": "hello", "speaker": "B"}], ["so", "[so]"]]',
    ],
)
def test_lists_of_utterances_may_stand_alone(text: str, tmp_path: Path) -> None:
    source = write(tmp_path, "x.json", text)
    assert detect_format(Path(source), InputLog()) == "dialogs"
    assert said(read(source)[0]) == [["A: hi", "B: hello"], ["A: so", "B: [so]"]]


def test_texts_beside_a_list_of_speakers_keep_what_they_begin_with(tmp_path: Path) -> None:
    value = {"dialog": ["Note: hi", "Look: there"], "speaker": ["Tom", "Lea"]}
    assert said(read(write(tmp_path, "x.jsonl", json.dumps(value)))[0]) == [
        ["Tom: Note: hi", "Lea: Look: there"]
    ]


CHAT = [{"role": "user", "content": "hi"}, {"role": "bot", "content": "hello"}]
SHARED = [{"from": "user", "value": "hi"}, {"from": "bot", "value": "hello"}]
SPOKEN = [{"speaker": "user", "text": "hi"}, {"speaker": "bot", "text": "hello"}]


@pytest.mark.parametrize(
    "value",
    [
        {"messages": CHAT, "conversation": ["x", "y"]},
        {"messages": CHAT, "turns": [1, 2], "conversations": ["x", "y"]},
        {"conversations": SHARED, "turns": []},
        {"utterances": SPOKEN, "dialog": ["x", "y"], "messages": ["x", "y"]},
        {"dialog": SPOKEN, "turns": [1, 2], "messages": []},
        {"messages": CHAT, "session": "s"},
        {"messages": CHAT, "thread_id": None, "dialog_id": 1.5},
        {"utterances": SPOKEN, "conversation_id": ["x"]},
        {"messages": CHAT, "user": ["u"], "act": ["a"], "topic": ["t"]},
        {"messages": [message | {"name": "x"} for message in CHAT], "name": "y"},
        {"messages": [message | {"text": None, "message": "x"} for message in CHAT]},
    ],
)
def test_other_keys_beside_the_list_of_utterances_do_not_count(value: dict[str, Any], tmp_path: Path) -> None:
    dialogs, log = read(write(tmp_path, "x.jsonl", "\n".join([json.dumps(value)] * 2)))
    assert [dialog.id for dialog in dialogs] == ["x:0", "x:1"]
    assert said(dialogs) == [["user: hi", "bot: hello"]] * 2
    assert not log.dropped


@pytest.mark.parametrize("others", [{"turns": [1]}, {"conversation": []}, {"dialogue": ["x", "y"]}])
def test_turns_and_pairs_may_have_lists_beside_them(others: dict[str, Any], tmp_path: Path) -> None:
    turns = [{"dialog": "1", "speaker": who, "text": "hi"} | others for who in "AB"]
    pairs = [{"question": "why", "answer": "so"} | others]
    for format, rows, expected in (
        ("turns", turns, ["A: hi", "B: hi"]),
        ("pairs", pairs, ["user: why", "assistant: so"]),
    ):
        for text in ("\n".join(map(json.dumps, rows)), json.dumps(rows, indent=1)):
            source = write(tmp_path, "x.json", text)
            assert detect_format(Path(source), InputLog()) == format
            assert said(read(source)[0]) == [expected]


@pytest.mark.parametrize(
    "meta",
    [
        {"prompt": "p", "response": "r"}, {"utts": 3}, {"messages": 3, "date": "today"},
        {"messages": [1], "content": "c"}, {"utterances": ["x", "y"]},
    ],
)  # fmt: skip
def test_keys_of_an_object_in_a_turn_do_not_count(meta: dict[str, Any], tmp_path: Path) -> None:
    turns = [{"dialog": "1", "speaker": who, "text": "hi", "meta": meta} for who in "AB"]
    for text in ("\n".join(map(json.dumps, turns)), json.dumps(turns, indent=1)):
        source = write(tmp_path, "x.json", text)
        assert detect_format(Path(source), InputLog()) == "turns"
        assert said(read(source)[0]) == [["A: hi", "B: hi"]]


def test_a_dialog_id_may_be_null(tmp_path: Path) -> None:
    dialogs, log = read(write(tmp_path, "x.jsonl", '{"id": null, "utterances": ["hi", "ho"]}\n'))
    assert ([dialog.id for dialog in dialogs], log.dropped) == (["x:0"], [])


def test_an_array_on_one_long_line_gets_a_remedy_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lm.text.lines.MAX_LINE", 100)
    source = write(tmp_path, "x.json", json.dumps([{"dialog": ["hi", "hello"]}] * 9))
    assert refusal(source).endswith("write one object a line, as `jq -c '.[]'` does")


def test_a_list_is_found_beside_what_is_no_whole_turn(tmp_path: Path) -> None:
    value = {"conversation_id": 1, "text": "a greeting", "turns": SPOKEN}
    source = write(tmp_path, "x.jsonl", json.dumps(value))
    assert detect_format(Path(source), InputLog()) == "dialogs"
    assert said(read(source)[0]) == [["user: hi", "bot: hello"]]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"messages": [{"role": "system", "content": "be brief"}]},
            "dialog without utterances (after one dropped piece in line 1: system or tool message); a",
        ),
        (
            {"id": "7", "messages": [{"role": role, "content": "x"} for role in ("system", "tool", "user")]},
            "dialog of one utterance (after 2 dropped pieces, the first in line 1: system or tool message)",
        ),
        ({"id": "7", "messages": []}, "dialog without utterances (7); a response"),
        (
            {"utterances": [{"whose": "A", "said": "x"}]},
            "an item of utterances is not an utterance ({'whose': 'A', 'said': 'x'}); "
            "give it the keys speaker and text, or names as in docs/data.md",
        ),
        (
            {"messages": [{"author": {"name": "A"}, "content": "is it raining"}]},
            "speaker is not a string ({'name': 'A'}); correct the utterance",
        ),
        (
            {"id": "7", "topic": 3, "utts": [["A", "x", []]]},
            "an item of utts is not an utterance (['A', 'x', []]); write [speaker, text, [act]]",
        ),
    ],
)
def test_refused_objects_name_the_cause(value: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert f"x.jsonl:1: {message}" in refusal(write(tmp_path, "x.jsonl", json.dumps(value)))


def test_turns_have_the_names_of_columns(tmp_path: Path) -> None:
    rows = [
        {"conversation_id": 17, "author": who, "message": f"hi {who}", "dialog_act": "fp"} for who in "ab"
    ]
    for text in ("\n".join(map(json.dumps, rows)), json.dumps(rows, indent=2)):
        source = write(tmp_path, "x.json", text)
        assert detect_format(Path(source), InputLog()) == "turns"
        dialogs, _ = read(source)
        assert (dialogs[0].id, dialogs[0].utterances[0].act) == ("17", "fp")
        assert said(dialogs) == [["a: hi a", "b: hi b"]]


@pytest.mark.parametrize("ending", ["json", "parquet"])
def test_what_is_not_read_beside_a_question_is_counted(ending: str, tmp_path: Path) -> None:
    pair = {"question": "and then", "answer": "tea"}
    for row, reasons in (
        ({"context": "A page about kettles."}, ["context beside a question"]),
        ({"History": "why? so.", "context": None}, ["history beside a question"]),
        ({"history": [["why", "so"]], "context": []}, ["history beside a question"]),
        (
            {"history": ["why", "so"], "context": ["x"]},
            [f"{k} beside a question" for k in ("history", "context")],
        ),
        ({"history": [], "context": ""}, []),
    ):
        source = str(tmp_path / f"x.{ending}")
        if ending == "json":
            write(tmp_path, "x.json", json.dumps(row | pair))
        else:
            pq.write_table(pa.Table.from_pylist([row | pair]), source)
        dialogs, log = read(source)
        assert said(dialogs) == [["user: and then", "assistant: tea"]]
        assert [piece.reason for piece in log.dropped] == reasons


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


def test_a_reply_follows_what_it_answers(tmp_path: Path) -> None:
    """ConvoKit's corpus of films has the last line of a conversation first."""
    answered = {"L3": "L2", "L2": "L1", "L1": None, "L4": "L1", "L9": "L9", "L8": "L7", "L7": "L8"}
    for order, expected in (
        (("L3", "L2", "L1"), ["L1", "L2", "L3"]),
        (("L2", "L4", "L1", "L3"), ["L1", "L2", "L4", "L3"]),  # no more is moved than must be
        (("L1", "L4", "L2", "L3"), ["L1", "L4", "L2", "L3"]),  # as it was said, in two branches
        (("L2", "L1", "L8", "L9", "L7"), ["L1", "L2", "L9", "L8", "L7"]),  # a circle, and a reply to itself
        (("L3", "L4"), ["L3", "L4"]),  # what they answer is elsewhere
    ):
        rows = [
            {"id": id, "conversation_id": "c", "speaker": id, "text": "x", "reply-to": answered[id]}
            for id in order
        ]
        source = write(tmp_path, "x.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        dialogs, _ = read(source)
        assert [utterance.speaker for utterance in dialogs[0].utterances] == expected
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
        assert read(str(tmp_path / "x.parquet"))[0] == dialogs


def test_what_is_no_link_moves_nothing(tmp_path: Path) -> None:
    def order(*rows: dict[str, Any]) -> list[str]:
        table = [{"dialog": "c", "speaker": "A", "text": str(n)} | row for n, row in enumerate(rows)]
        source = write(tmp_path, "x.jsonl", "".join(json.dumps(row) + "\n" for row in table))
        return [utterance.text for utterance in read(source)[0][0].utterances]

    users = [{"id": f"u{n % 2}", "reply_to": f"u{1 - n % 2}" if n else None} for n in range(4)]
    assert order(*users) == ["0", "1", "2", "3"], "ids of users"
    floats = [{"ID": 3.0, "Reply-To": 2.0}, {"ID": 2, "Reply-To": "1"}, {"ID": "1", "Reply-To": None}]
    assert order(*floats) == ["2", "1", "0"]
    late = [(1, 0), (2, 1), (3, 1), (4, 2), (5, 3), (7, 6), (6, 5), (8, 4)]
    assert order(*({"id": a, "reply_to": b or None} for a, b in late)) == [*"01234657"]


def test_messages_with_roles_of_a_guild_are_messages(tmp_path: Path) -> None:
    value = {"guild": "g", "channel": "c", "messages": CHAT}
    assert detect_format(Path(write(tmp_path, "x.jsonl", json.dumps(value))), InputLog()) == "messages"
    text = write(tmp_path, "x.txt", '["hello"] said [Bob]\nfine then\n')
    assert detect_format(Path(text), InputLog()) == "text"


def test_one_object_may_stand_on_several_lines(tmp_path: Path) -> None:
    value = {"id": "a", "utterances": [{"speaker": "A", "text": "hi"}, {"speaker": "B", "text": "yo"}]}
    for indent in (None, 1):
        source = write(tmp_path, "x.json", json.dumps(value, indent=indent))
        assert said(read(source)[0]) == [["A: hi", "B: yo"]]
