"""WhatsApp: the locales of exported chats, notices and media, pauses, days and months."""

from pathlib import Path

import pytest

from dialog.corpora.sources import detect_format
from lm.text.lines import InputLog
from tests.support.foreign_formats import read, said, write

NARROW = "\u202f"  # the blank before AM and PM on iOS
MARK = "\u200e"

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
        ("{d}\u200f/4\u200f/2024، {t} - ", False),
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
        ("2024/4/13 凌晨3:00 - ", "2024/4/13 中午12:01 - "),
        ("2024/4/13 早上9:00 - ", "2024/4/13 晚上9:01 - "),
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
        "13/04/2024, 09:00 - Anna created group “Garden: beans”",
        "13/04/2024, 09:01 - Anna: <Media omitted>",
        "13/04/2024, 09:01 - Anna: <Medien ausgeschlossen>",
        "13/04/2024, 09:01 - Anna: IMG-1.jpg (file attached)",
        "13/04/2024, 09:01 - Anna: This message was deleted",
        "13/04/2024, 09:01 - Anna: ",
        f"[13/04/2024, 09:02:00] Garden: {MARK}Messages and calls are end-to-end encrypted.",
        f"{MARK}[13/04/2024, 09:02:00] ~{NARROW}Bob: {MARK}image omitted",
        f"[13/04/2024, 09:03:00] ~{NARROW}Bob: beans {MARK}<This message was edited>",
        "13/04/2024, 09:04 - Anna: leeks <This message was edited>",
        '13/04/2024, 09:04 - Anna changed the group name from "Garden" to "Garden: leeks"',
        '13/04/2024, 09:05 - Anna "the gardener" Miller: peas',
        '13/04/2024, 09:05 - Tom 5" Lee: figs',
    ]
    dialogs, log = read(write(tmp_path, "chat.txt", "\n".join(lines)))
    assert said(dialogs) == [
        ["Bob: beans", "Anna: leeks", 'Anna "the gardener" Miller: peas', 'Tom 5" Lee: figs']
    ]
    assert {piece.reason for piece in log.dropped} == {"notice or media"}
    assert [piece.line for piece in log.dropped] == [1, 3, 4, 5, 6, 7, 8, 9, 10, 13]


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
        "<Video note omitted>",
        "<View once voice message omitted>",
        f"report.pdf • {MARK}3 pages {MARK}document omitted",
        "Diese Nachricht wurde gelöscht.",
    ],
)
def test_whatsapp_knows_placeholders_in_other_languages(text: str, tmp_path: Path) -> None:
    lines = [f"13/04/2024, 09:0{n} - {'AB'[n % 2]}: {said}" for n, said in enumerate(("x", text, "y", "z"))]
    dialogs, log = read(write(tmp_path, "chat.txt", "\n".join(lines)))
    assert said(dialogs) == [["A: x", "A: y", "B: z"]]
    assert [piece.line for piece in log.dropped] == [2]


@pytest.mark.parametrize(
    "text",
    [
        "<Media omitted>\nlook at\nthis",
        "IMG-1.jpg (file attached)\nlook at this",
        f"{MARK}IMG-1.jpg (Datei angehängt)\nlook at this",
        f"look at this {MARK}image omitted",
    ],
)
def test_whatsapp_keeps_captions(text: str, tmp_path: Path) -> None:
    lines = [f"13/04/2024, 09:00 - Anna: {text}", "13/04/2024, 09:01 - Bob: yes"]
    dialogs, log = read(write(tmp_path, "chat.txt", "\n".join(lines)))
    assert (said(dialogs), log.dropped) == ([["Anna: look at this", "Bob: yes"]], [])


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
