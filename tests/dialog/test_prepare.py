"""Preparing a corpus: the stored form, the report, no-op and rebuild."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dialog.corpora.columns import ReadOptions
from dialog.corpora.corpus import load_dialogs
from dialog.corpora.prepare import PrepareOptions, prepare
from dialog.corpora.prepared import read_split, write_split
from dialog.utterance import Dialog, Utterance
from lm.errors import ConfigError, DataError
from lm.text.prepared_folder import Prepared
from tests.support.outcomes import files_below
from tests.support.talk_source import corpus, everything, source_file

DEFAULTS = PrepareOptions()


def test_prepared_splits_partition_the_source(tmp_path: Path) -> None:
    source = source_file(tmp_path, corpus(40))
    result = prepare(source, tmp_path / "out", PrepareOptions(valid_fraction=0.1, test_fraction=0.2))
    assert [counts["dialogs"] for counts in result.report["splits"].values()] == [28, 4, 8]
    original = load_dialogs(source)
    assert sorted(everything(tmp_path / "out"), key=original.index) == original
    for split in ("train", "valid", "test"):
        places = [original.index(dialog) for dialog in load_dialogs(str(tmp_path / "out" / split))]
        assert places == sorted(places), "the order of the source is kept"
    other = prepare(source, tmp_path / "other", PrepareOptions(seed=2, valid_fraction=0.1, test_fraction=0.2))
    assert other.report["splits"]["test"]["dialogs"] == 8
    assert load_dialogs(str(tmp_path / "other/test")) != load_dialogs(str(tmp_path / "out/test"))


def test_the_stored_form_is_what_datasets_reads(tmp_path: Path) -> None:
    import datasets

    dialogs = load_dialogs(source_file(tmp_path, corpus(12)))
    dialogs.append(Dialog("ü", ' "T"', (Utterance("A", "\u2028x\x1b"), Utterance("B", "y" * 5000))))
    write_split(tmp_path / "split", dialogs)
    assert read_split(tmp_path / "split") == dialogs
    assert load_dialogs(str(tmp_path / "split")) == dialogs
    rows = list(datasets.load_from_disk(tmp_path / "split"))
    read = [Dialog(r["id"], r["topic"], tuple(Utterance(**u) for u in r["utterances"])) for r in rows]
    assert read == dialogs


def test_the_report_counts_by_hand(tmp_path: Path) -> None:
    """train: 'a b a' and 'b'; with 5 places, three are for the marks and two for a and b."""
    (tmp_path / "train.txt").write_text("a b a\nb c\n", encoding="utf-8")
    (tmp_path / "valid.txt").write_text("A: a z\nB: b\n\nA: z\nB: a\n", encoding="utf-8")
    (tmp_path / "test.txt").write_text("a\nb\nz z z\n", encoding="utf-8")
    report = prepare(str(tmp_path), tmp_path / "out", PrepareOptions(vocab_size=5)).report
    splits = report["splits"]
    assert (report["format"], report["vocabulary_size"], report["dropped"]) == ("text", 7, {})
    assert {name: counts["tokens"] for name, counts in splits.items()} == {"train": 5, "valid": 5, "test": 5}
    assert [counts["unknown_tokens"] for counts in splits.values()] == [1, 2, 3]
    assert splits["valid"]["oov_rate"] == 0.4
    assert [counts["contexts"] for counts in splits.values()] == [1, 2, 2]
    assert splits["test"]["length_histogram"] == {"1": 2, "3": 1}
    assert splits["valid"]["topics"] == {"": 2}
    stored = json.loads((tmp_path / "out/report.json").read_text(encoding="utf-8"))
    assert stored == report


def test_what_is_left_out_is_counted_and_listed(tmp_path: Path) -> None:
    source = source_file(tmp_path, corpus(9, bad=True))
    with pytest.raises(DataError, match=r"talk.tsv:3: wrong number of columns"):
        prepare(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    report = prepare(source, tmp_path / "out", PrepareOptions(on_bad_line="skip")).report
    assert report["dropped"] == {"wrong number of columns": 1, "dialog of one utterance": 1}
    listed = [json.loads(line) for line in (tmp_path / "out/dropped.jsonl").read_text().splitlines()]
    assert {(item["file"], item["line"]) for item in listed} == {(source, 2), (source, 3)}
    assert Counter(item["reason"] for item in listed) == report["dropped"]
    clean = source_file(tmp_path, corpus(9))
    prepare(clean, tmp_path / "clean")
    assert everything(tmp_path / "clean") == everything(tmp_path / "out")


def test_again_is_a_no_op_and_anything_else_a_rebuild(tmp_path: Path) -> None:
    source, out = source_file(tmp_path, corpus(30)), tmp_path / "out"

    def again(options: PrepareOptions = DEFAULTS) -> Prepared:
        return prepare(source, out, options)

    assert not again().unchanged
    first = files_below(out)
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    second = again()
    assert second.unchanged
    assert second.report == json.loads((out / "report.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == stamps

    assert not again(PrepareOptions(seed=5)).unchanged
    assert again(PrepareOptions(seed=5)).unchanged
    assert not again().unchanged
    assert files_below(out) == first, "the same input and options give the same bytes"

    source_file(tmp_path, corpus(30).replace("beans", "peas", 1))
    assert not again().unchanged
    assert files_below(out) != first
    source_file(tmp_path, corpus(30))
    again()
    for path in (out / "train/data-00000-of-00001.arrow", out / "report.json"):
        path.write_bytes(b"damaged")
        assert not again().unchanged
    (out / "test/state.json").unlink()
    assert not again().unchanged
    assert files_below(out) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "talk.tsv"], "nothing is left behind"


def test_given_splits_are_kept_and_missing_ones_drawn(tmp_path: Path) -> None:
    given = load_dialogs(source_file(tmp_path, corpus(30)))
    (tmp_path / "in").mkdir()
    (tmp_path / "in/train.tsv").write_text(corpus(30), encoding="utf-8")
    (tmp_path / "in/test.tsv").write_text(corpus(5), encoding="utf-8")
    prepare(str(tmp_path / "in"), tmp_path / "out", PrepareOptions(valid_fraction=0.2))
    assert load_dialogs(str(tmp_path / "out/test")) == load_dialogs(str(tmp_path / "in/test.tsv"))
    drawn = load_dialogs(str(tmp_path / "out/valid"))
    assert len(drawn) == 6
    assert sorted([*drawn, *load_dialogs(str(tmp_path / "out/train"))], key=given.index) == given
    report = prepare(str(tmp_path / "in"), tmp_path / "two", PrepareOptions(valid_fraction=0)).report
    assert list(report["splits"]) == ["train", "test"]
    (tmp_path / "in/train.tsv").unlink()
    with pytest.raises(DataError, match="no train split"):
        prepare(str(tmp_path / "in"), tmp_path / "out")


def test_every_option_reaches_the_reader(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"talk": ["hello", "hi"], "da": ["g", "g"]}] * 4
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    read = ReadOptions(format="parquet", text_column="talk", act_column="da")
    options = PrepareOptions(read, tokenizer="char", valid_fraction=0.25, test_fraction=0.25)
    report = prepare(str(tmp_path / "x.parquet"), tmp_path / "out", options).report
    assert report["splits"]["train"]["tokens"] == 14
    assert load_dialogs(str(tmp_path / "out/valid"))[0].utterances[0] == Utterance("A", "hello", "g")


def test_a_stored_dataset_is_known_by_what_it_holds(tmp_path: Path) -> None:
    import datasets

    def store(text: str) -> None:
        rows = [{"dialog": d, "speaker": s, "text": text} for d in "abcdef" for s in "AB"]
        datasets.disable_progress_bars()
        datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "stored")

    options = PrepareOptions(ReadOptions(format="datasets"))
    unchanged = []
    for text in ("one", None, "two"):
        if text:
            store(text)
        unchanged.append(prepare(str(tmp_path / "stored"), tmp_path / "out", options).unchanged)
    assert unchanged == [False, True, False]


@pytest.mark.parametrize(
    "options",
    [{"valid_fraction": 1.0}, {"test_fraction": -0.1}, {"valid_fraction": 0.6, "test_fraction": 0.5}],
)
def test_impossible_fractions_are_usage_errors(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="fraction"):
        PrepareOptions(**options)


def test_too_few_dialogs_and_prepared_sources_are_refused(tmp_path: Path) -> None:
    source = source_file(tmp_path, corpus(2))
    with pytest.raises(
        DataError, match=r"2 dialogs are too few to split; at least 3 .* column of dialogs .* folder"
    ):
        prepare(source, tmp_path / "out")
    with pytest.raises(DataError, match="1 dialog is too few to split; at least 3"):
        prepare(source_file(tmp_path, corpus(1)), tmp_path / "out")
    (tmp_path / "one.csv").write_text("dialog,speaker,text\n1,A,x\n1,B,y\n", encoding="utf-8")
    with pytest.raises(DataError, match="or without one a long pause, begins a dialog, so add more"):
        prepare(str(tmp_path / "one.csv"), tmp_path / "out")
    with pytest.raises(DataError, match="at least 2 are needed"):
        prepare(source_file(tmp_path, corpus(1)), tmp_path / "out", PrepareOptions(valid_fraction=0))
    prepare(source_file(tmp_path, corpus(9)), tmp_path / "out")
    for folder in ("out", "out/train"):
        with pytest.raises(DataError, match="already prepared"):
            prepare(str(tmp_path / folder), tmp_path / "again")


def test_the_chat_of_the_tutorial_is_prepared_as_printed(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/tutorial.md").read_text(encoding="utf-8")
    (tmp_path / "chat.txt").write_text(page.split("```text\n")[1].split("```")[0], encoding="utf-8")
    prepare(str(tmp_path / "chat.txt"), tmp_path / "out")
    assert len(everything(tmp_path / "out")) == 3


@pytest.mark.corpora
def test_switchboard_takes_seconds_and_gives_the_published_counts(corpora: Path, tmp_path: Path) -> None:
    report = prepare(str(corpora / "swda"), tmp_path / "out").report
    splits = report["splits"]
    assert [counts["dialogs"] for counts in splits.values()] == [1080, 60, 62]
    assert [counts["contexts"] for counts in splits.values()] == [114_856, 5165, 5481]
    assert [counts["tokens"] for counts in splits.values()] == [1_447_148, 68_213, 74_240]
    assert [round(100 * counts["oov_rate"], 2) for counts in splits.values()] == [0.78, 1.30, 1.32]
    assert (report["vocabulary_size"], report["dropped"]) == (10_002, {})
    for split in splits:
        assert load_dialogs(str(tmp_path / "out" / split)) == load_dialogs(
            str(corpora / f"swda/{split}.jsonl")
        )
