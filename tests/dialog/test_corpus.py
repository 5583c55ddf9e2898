"""Reading conversations: text formats, splits, and counts of the vocabulary."""

import json
from pathlib import Path

import pytest

from dialog.corpora.columns import ReadOptions
from dialog.corpora.corpus import load_dialogs, train_codec
from dialog.corpora.sources import detect_format, read_source
from dialog.smalltalk.process import SPLIT_SIZES, generate_dialogs
from dialog.utterance import Dialog, Utterance
from lm.text.lines import InputLog
from tests.support.corpus_files import (
    FILES,
    OTHER,
    ROWS,
    TURNS,
    refusal,
    said,
    tsv,
    write,
    zhao,
)
from tests.support.signals import signal_at


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


@pytest.mark.parametrize("format", FILES)
def test_a_signal_ends_the_reading_within_a_file(format: str, tmp_path: Path) -> None:
    source = write(tmp_path, *FILES[format])
    load_dialogs(source)
    with pytest.raises(KeyboardInterrupt), signal_at(2, "read_lines"):
        load_dialogs(source)


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


@pytest.mark.parametrize(
    ("field", "text"),
    [('"She said ""hi"", twice"', 'She said "hi", twice'), ('"hi" she said', '"hi" she said'), ('"', '"')],
)
def test_a_field_of_tsv_loses_the_quotes_of_a_spreadsheet(field: str, text: str, tmp_path: Path) -> None:
    (dialog,) = load_dialogs(write(tmp_path, "a.tsv", f"d\tA\t{field}\nd\tB\tyes\n"))
    assert [one.text for one in dialog.utterances] == [text, "yes"]


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


@pytest.mark.parametrize("form", ["{}: {}", "{}：{}", "{} ： {}"])
def test_speakers_of_plain_text_may_have_a_full_width_colon(form: str, tmp_path: Path) -> None:
    turns = [("小明", "你好吗"), ("Lea", "他说：很好, ok: 12:30")]
    lines = "\n".join(form.format(*turn) for turn in turns)
    assert said(load_dialogs(write(tmp_path, "x.txt", lines))[0]) == turns
    assert said(load_dialogs(write(tmp_path, "x", lines))[0]) == turns, "by its content"


@pytest.mark.parametrize(
    "lines",
    [
        ["今天几点：十点", "好的"],
        ["会议10：30开始", "好的"],
        ["会议10：30开始", "明天9：15开始", "后天8：00开始"],
        ["他说：好", "好的", "她说：不好", "为什么"],
    ],
)
def test_a_full_width_colon_in_a_sentence_marks_no_speaker(lines: list[str], tmp_path: Path) -> None:
    expected = [("AB"[n % 2], line) for n, line in enumerate(lines)]
    assert said(load_dialogs(write(tmp_path, "x.txt", "\n".join(lines)))[0]) == expected


def test_full_width_colons_of_over_half_of_the_lines_mark_speakers(tmp_path: Path) -> None:
    source = write(tmp_path, "x.txt", "小明：你好\n好的\n小红：你好")
    assert "x.txt:2: no speaker" in refusal(source)
    assert said(load_dialogs(source, on_bad_line="skip")[0]) == [("小明", "你好"), ("小红", "你好")]


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
    assert "are the split valid" in refusal(str(tmp_path))
    (tmp_path / "dev.jsonl").unlink()
    write(tmp_path, "test.jsonl", FILES["turns"][1])
    assert "format is turns" in refusal(str(tmp_path))


def test_the_files_of_a_split_have_one_format(tmp_path: Path) -> None:
    """DailyDialog's folders have acts and emotions beside the texts."""
    for split in ("train", "validation", "test"):
        write(tmp_path, f"{split}/dialogues_{split}.txt", "is it wet ? __eou__ no . __eou__\n" * 3)
        write(tmp_path, f"{split}/dialogues_act_{split}.txt", "2 1\n" * 3)
    message = "dialogues_train.txt: format is eou, but dialogues_act_train.txt is text; convert all files"
    assert message in refusal(str(tmp_path))
    for path in tmp_path.glob("*/*_act_*"):
        path.unlink()
    splits = read_source(str(tmp_path), ReadOptions(), InputLog())
    assert [said(dialogs[2]) for dialogs in splits.values()] == [[("A", "is it wet ?"), ("B", "no .")]] * 3


def test_the_built_in_corpus_is_named_like_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPLIT_SIZES, "valid", 3)
    dialogs = load_dialogs("smalltalk:valid")
    assert dialogs == generate_dialogs("valid")
    assert len(dialogs) == 3


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
