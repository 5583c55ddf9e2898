"""Exports of messengers as JSON: Telegram and Discord."""

import json
from pathlib import Path
from typing import Any

import pytest

from dialog.corpora.sources import detect_format
from lm.text.lines import InputLog
from tests.support.foreign_formats import read, refusal, said, write


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
    text = json.dumps({"chats": {"list": [telegram("yes", "no"), one, telegram("a", "b")]}}, indent=1)
    line = text[: text.index('"never"')].count("\n") + 1
    assert f"result.json:{line - 3}: no date" in refusal(write(tmp_path, "result.json", text))


def test_two_speakers_of_one_name_in_telegram_stay_two(tmp_path: Path) -> None:
    chat = telegram("hi", "hello", "so")
    for message, (name, id) in zip(
        (one for one in chat["messages"] if one["type"] == "message"),
        (("Alex", "user1"), ("Alex", "user2"), ("Bob", "user3")),
        strict=True,
    ):
        message |= {"from": name, "from_id": id}
    dialogs, _ = read(write(tmp_path, "result.json", json.dumps(chat)))
    assert said(dialogs) == [["Alex (user1): hi", "Alex (user2): hello", "Bob: so"]]


def discord(*said: tuple[str, str, str], kind: str = "Default") -> dict[str, Any]:
    messages = [
        {
            "id": f"{n}",
            "type": kind,
            "timestamp": time,
            "content": text,
            "author": {"id": f"u{name}", "name": name},
        }
        for n, (time, name, text) in enumerate(said)
    ]
    return {"guild": {"id": "1"}, "channel": {"id": "2", "topic": ""}, "messages": messages}


@pytest.mark.parametrize("indent", [None, 2])
def test_a_channel_of_discord(indent: int | None, tmp_path: Path) -> None:
    zone = "+00:00"
    chat = discord(
        (f"2024-04-13T19:00:00.1234567{zone}", "tom", "late"),  # the newest first
        (f"2024-04-13T19:00:00{zone}", "lea", "you\nthere?"),
        (f"2024-04-13T09:00:01{zone}", "lea", "bye"),
        (f"2024-04-13T09:00:00{zone}", "tom", "hi"),
        (f"2024-04-13T09:00:00{zone}", "tom", ""),
    )
    chat["messages"][0]["type"] = "Reply"
    chat["messages"] += discord((f"2024-04-13T09:00:00{zone}", "bot", "joined"), kind="GuildMemberJoin")[
        "messages"
    ]
    source = write(tmp_path, "beans.json", json.dumps(chat, indent=indent))
    assert detect_format(Path(source), InputLog()) == "discord"
    dialogs, log = read(source)
    assert said(dialogs) == [["tom: hi", "lea: bye"], ["lea: you there?", "tom: late"]]
    assert [dialog.id for dialog in dialogs] == ["beans:0", "beans:1"]
    assert [piece.excerpt for piece in log.dropped] == ["media", "GuildMemberJoin"]
    chat["messages"][3]["author"]["id"] = "u7"
    dialogs, _ = read(write(tmp_path, "beans.json", json.dumps(chat, indent=indent)))
    assert said(dialogs)[0] == ["tom (u7): hi", "lea: bye"]
    for time in (None, "9999-12-31T23:59:59-05:00"):
        chat["messages"][3]["timestamp"] = time
        found = refusal(write(tmp_path, "beans.json", json.dumps(chat, indent=indent)))
        assert f"no date ({json.dumps(time)})" in found


def test_a_clock_that_is_set_back_moves_nothing_in_telegram(tmp_path: Path) -> None:
    chat = telegram("one", "two", "three")
    for message, time in zip(chat["messages"], ("02:50", "02:51", "02:58", "02:01"), strict=True):
        message["date"] = f"2024-10-27T{time}:00"
    dialogs, _ = read(write(tmp_path, "result.json", json.dumps(chat)))
    assert [utterance.text for utterance in dialogs[0].utterances] == ["one", "two", "three"]


def test_zones_count_in_discord(tmp_path: Path) -> None:
    times = ("2024-10-27T02:58:00+02:00", "2024-10-27T02:59:00+02:00", "2024-10-27T02:01:00+01:00")
    chat = discord(*((time, "tom", str(n)) for n, time in enumerate(times)))
    dialogs, _ = read(write(tmp_path, "x.json", json.dumps(chat)))
    assert [utterance.text for utterance in dialogs[0].utterances] == ["0", "1", "2"]
