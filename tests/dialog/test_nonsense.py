"""Sources that were probably read in the wrong format."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dialog.corpora.corpus import load_dialogs
from dialog.corpora.nonsense import nonsense
from dialog.utterance import Dialog, Utterance
from lm.errors import DataError
from tests.support.command_lines import Outcome


def talk(*texts: str, speakers: str = "AB") -> list[Dialog]:
    return [
        Dialog("d", "", tuple(Utterance(speakers[n % len(speakers)], text) for n, text in enumerate(texts)))
    ]


@pytest.mark.parametrize(
    ("dialogs", "reason"),
    [
        (talk(*(str(n) for n in range(20))), "nearly every text is a number, such as `0`"),
        (
            talk(*(f"0{n % 9 + 1}/04/2024, 09:00 - Anna: hello" for n in range(20))),
            "begins with a date or time",
        ),
        (talk(*(f"[12:3{n % 9}] hello {n}" for n in range(20))), "begins with a date or time"),
        (
            talk(*(f"words {n}" for n in range(20)), speakers="abcdefghijklmnopqrst"),
            "its own speaker, such as `a`",
        ),
        (talk(*(["yes", "no way"] * 10)), "all texts together have 3 different words, such as `yes`"),
        (talk("it\x92s late", "so \x93what\x94"), r"control characters in `it\x92s late`"),
    ],
)
def test_what_is_likely_nonsense_is_refused_unless_forced(
    dialogs: list[Dialog], reason: str, in_tmp: Path, dialog: Callable[..., Outcome]
) -> None:
    assert reason in (nonsense(dialogs) or "")
    rows = [
        {"dialog": f"d{copy}", "speaker": f"{u.speaker}{copy}", "text": u.text}
        for copy in range(3)
        for one in dialogs
        for u in one.utterances
    ]
    Path("x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, _, err = dialog("prepare", "x.jsonl", "--out", "p")
    assert code == DataError.exit_code
    assert reason.split("`")[0] in err
    assert "`dialog prepare … --format`" in err
    assert "--force there" in err
    assert not Path("p").exists()
    assert dialog("prepare", "x.jsonl", "--out", "p", "--force")[0] == 0
    assert len(load_dialogs("p/train")) == 1


@pytest.mark.parametrize(
    "dialogs",
    [
        talk("1", "2"),
        talk(*(["yes", "no"] * 9)),
        talk(*(f"{n} bottles of water and a glass" for n in range(30))),
        talk(*(f"at 12:30 the train of line {n} leaves" for n in range(30))),
        talk("caf\u00e9", "na\u00efve", "it\u2019s"),
        talk(*(f"你好吗{n}号" for n in range(30))),
    ],
)
def test_short_and_ordinary_corpora_are_no_nonsense(dialogs: list[Dialog]) -> None:
    assert nonsense(dialogs) is None


@pytest.mark.timeout(20)
def test_long_rows_of_digits_take_no_time() -> None:
    said = tuple(Utterance(speaker, "1 " * 20_000 + "a") for speaker in "AB" * 20)
    assert "nearly every text is a number" not in (nonsense([Dialog("x", "", said)]) or "")
