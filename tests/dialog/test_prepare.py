"""Preparing a corpus: the stored form, the report, no-op and rebuild, and never half a result."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dialog.corpora import prepare as module
from dialog.corpora.columns import ReadOptions
from dialog.corpora.corpus import Dialog, Utterance, load_dialogs
from dialog.corpora.prepare import PrepareOptions, prepare
from dialog.corpora.prepared import read_split, write_split
from lm.disk import new_folder
from lm.disk.filelock import FileLock
from lm.errors import ConfigError, DataError, StorageError
from lm.text import prepared_folder as folders
from lm.text.prepared_folder import OutputFolder, Prepared

DEFAULTS = PrepareOptions()
NOUNS = ("beans", "leeks", "snow", "the river", "my brother's van", "crème brûlée")


def corpus(dialogs: int, bad: bool = False) -> str:
    """TSV of invented dialogs; with one dialog of one utterance and one line of two columns where ``bad``."""
    rng = random.Random(dialogs)
    lines = []
    for number in range(dialogs):
        for turn in range(rng.randint(2, 5)):
            text = f"i like {rng.choice(NOUNS)}" if turn % 2 else f"what about {rng.choice(NOUNS)}, then?"
            lines.append(f"d{number}\t{'AB'[turn % 2]}\t{text}\ts{turn}")
    if bad:
        lines[1:1] = ["lonely\tA\tanyone there\tq", "two\tcolumns"]
    return "\n".join(lines) + "\n"


def source_file(folder: Path, text: str) -> str:
    path = folder / "talk.tsv"
    path.write_text(text, encoding="utf-8")
    return str(path)


def contents(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def everything(out: Path) -> list[Dialog]:
    return [dialog for split in ("train", "valid", "test") for dialog in load_dialogs(str(out / split))]


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
    first = contents(out)
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    second = again()
    assert second.unchanged
    assert second.report == json.loads((out / "report.json").read_text())
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == stamps

    assert not again(PrepareOptions(seed=5)).unchanged
    assert again(PrepareOptions(seed=5)).unchanged
    assert not again().unchanged
    assert contents(out) == first, "the same input and options give the same bytes"

    source_file(tmp_path, corpus(30).replace("beans", "peas", 1))
    assert not again().unchanged
    assert contents(out) != first
    source_file(tmp_path, corpus(30))
    again()
    for path in (out / "train/data-00000-of-00001.arrow", out / "report.json"):
        path.write_bytes(b"damaged")
        assert not again().unchanged
    (out / "test/state.json").unlink()
    assert not again().unchanged
    assert contents(out) == first
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
        DataError, match=r"2 dialogs are too few to split, at least 3 .* column of dialogs .* folder"
    ):
        prepare(source, tmp_path / "out")
    with pytest.raises(DataError, match="1 dialog is too few to split, at least 3"):
        prepare(source_file(tmp_path, corpus(1)), tmp_path / "out")
    (tmp_path / "one.csv").write_text("dialog,speaker,text\n1,A,x\n1,B,y\n", encoding="utf-8")
    with pytest.raises(DataError, match="a new value in the column of dialogs begins a dialog, so add more"):
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


@pytest.mark.parametrize("name", ["state.json", "data-00000-of-00001.arrow"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"ARROW1 and then nothing", b"half"])
def test_damaged_prepared_splits_are_named(name: str, content: bytes | None, tmp_path: Path) -> None:
    folder = tmp_path / "split"
    write_split(folder, load_dialogs(source_file(tmp_path, corpus(3))))
    path = folder / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:700] if content == b"half" and name != "state.json" else content)
    with pytest.raises(DataError, match=r"split: .*run `dialog prepare` again"):
        load_dialogs(str(folder))


def test_every_damage_of_a_prepared_split_is_noticed(tmp_path: Path) -> None:
    """Flipped bits anywhere, zeroed and cut files, and an edit that reads as well as what was written."""
    prepare(source_file(tmp_path, corpus(9)), tmp_path / "out")
    folder, rng = tmp_path / "out/train", random.Random(1)
    whole = load_dialogs(str(folder))
    edited = [replace(dialog, topic="weather") for dialog in whole]
    write_split(tmp_path / "edited", edited)
    refused = 0
    for path in sorted(folder.iterdir()):
        original = path.read_bytes()
        places = [rng.randrange(8 * len(original)) for _ in range(40)]
        damages = [_flipped(original, place) for place in places]
        damages += [original[: len(original) // 2], original + b"\0", bytes(len(original))]
        if path.suffix == ".arrow":
            damages.append((tmp_path / "edited" / path.name).read_bytes())
        for damaged in damages:
            path.write_bytes(damaged)
            with pytest.raises(DataError, match="out/train") as error:
                load_dialogs(str(folder))
            assert str(error.value).isprintable()
            refused += 1
        path.write_bytes(original)
    assert refused >= 120
    assert load_dialogs(str(folder)) == whole


def _flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("name", ["dataset_info.json", "state.json", "data-00000-of-00001.arrow"])
@pytest.mark.parametrize("with_manifest", [True, False])
def test_pipes_and_huge_files_in_a_prepared_split_are_refused_at_once(
    name: str, with_manifest: bool, tmp_path: Path
) -> None:
    prepare(source_file(tmp_path, corpus(9)), tmp_path / "out")
    path = tmp_path / "out/train" / name
    if not with_manifest:
        (tmp_path / "out/manifest.json").unlink()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match="out/train"):
        load_dialogs(str(path.parent))
    path.unlink()
    path.touch()
    os.truncate(path, 10**8)
    if with_manifest or name != "dataset_info.json":
        with pytest.raises(DataError, match="out/train"):
            load_dialogs(str(path.parent))


def test_a_split_that_was_copied_alone_is_read(tmp_path: Path) -> None:
    prepare(source_file(tmp_path, corpus(9)), tmp_path / "out")
    whole = load_dialogs(str(tmp_path / "out/train"))
    shutil.copytree(tmp_path / "out/train", tmp_path / "alone/train")
    assert load_dialogs(str(tmp_path / "alone/train")) == whole
    (tmp_path / "alone/manifest.json").write_text('{"of": "something else"}')
    assert load_dialogs(str(tmp_path / "alone/train")) == whole
    (tmp_path / "alone/manifest.json").write_text('{"format": 1, "outputs"')
    with pytest.raises(DataError, match=r"manifest\.json: damaged; prepare the corpus again"):
        load_dialogs(str(tmp_path / "alone/train"))


def test_foreign_folders_and_files_are_never_replaced(tmp_path: Path) -> None:
    source = source_file(tmp_path, corpus(9))
    foreign = tmp_path / "out"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("precious")
    typed = {"format": 1, "source": "x", "options": {}, "inputs": {}, "outputs": {}}
    wrong = [json.dumps(typed | {key: value}) for key, value in (("options", None), ("inputs", []))]
    for stored in (None, "{}", "[1]", *wrong):
        if stored:
            (foreign / "manifest.json").write_text(stored)
        with pytest.raises(StorageError, match="was not written by `dialog prepare`"):
            prepare(source, foreign)
    with pytest.raises(StorageError, match="was not written by `dialog prepare`"):
        prepare(source, Path(source))
    assert (foreign / "thesis.tex").read_text() == "precious"
    (tmp_path / "empty").mkdir()
    assert not prepare(source, tmp_path / "empty").unchanged
    with pytest.raises(StorageError):
        prepare(source, Path(source) / "below")


def test_two_at_a_time_are_told_apart(tmp_path: Path) -> None:
    source = source_file(tmp_path, corpus(9))
    with (
        FileLock(tmp_path / ".out.lock"),
        pytest.raises(StorageError, match="another `dialog prepare` is writing it"),
    ):
        prepare(source, tmp_path / "out")
    (tmp_path / ".out.tmp").mkdir()
    (tmp_path / ".out.tmp/rest").write_text("of a killed process")
    prepare(source, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "talk.tsv"]


@pytest.mark.parametrize("call", ["write_split", "_json", "sha256_file", "sync", "publish_folder"])
@pytest.mark.parametrize("number", [1, 3])
def test_failures_leave_the_old_result(
    call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up at some step: the old result stays as it was."""
    source, out = source_file(tmp_path, corpus(20)), tmp_path / "out"
    prepare(source, out)
    before = contents(out)
    source_file(tmp_path, corpus(21))
    places = {"write_split": module, "sync": new_folder, "publish_folder": new_folder}
    place = places.get(call, folders)
    original, calls = getattr(place, call), 0

    def failing(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= number:
            raise OSError(28, "No space left on device")
        return original(*arguments, **options)

    monkeypatch.setattr(place, call, failing)
    failed = False
    try:
        prepare(source, out)
    except (StorageError, OSError):
        failed = True
    monkeypatch.undo()
    assert failed or number == 3
    if failed:
        assert contents(out) == before
    assert not (tmp_path / ".out.tmp").exists()
    prepare(source, out)
    prepare(source, tmp_path / "fresh")
    assert everything(out) == everything(tmp_path / "fresh")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "out", "talk.tsv"]


PROGRAM = """
import sys
from pathlib import Path
import datasets, pyarrow
from dialog.corpora.prepare import prepare
print("ready", flush=True)
prepare(sys.argv[1], Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_killed_at_any_moment_the_output_is_absent_or_complete(tmp_path: Path) -> None:
    source, out = source_file(tmp_path, corpus(3000)), tmp_path / "out"
    prepare(source, tmp_path / "whole")
    whole = everything(tmp_path / "whole")
    rng, absent = random.Random(1), 0
    for _ in range(15):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, source, str(out)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.random() * 0.6)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if out.exists():
            assert everything(out) == whole
            (out / "manifest.json").write_text(
                (out / "manifest.json").read_text().replace('"seed": 1', '"seed": 9')
            )
        else:
            absent += 1
    assert absent > 0, "no kill came early enough to test anything"
    prepare(source, out)
    assert everything(out) == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "talk.tsv", "whole"]


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


def test_who_comes_second_looks_again_at_what_is_there(tmp_path: Path) -> None:
    """Both looked at an empty place; by the time the second has it for itself, there is something."""
    first, second = (OutputFolder(tmp_path / "out", "dialog prepare") for _ in range(2))
    wanted = {"format": 1, "source": "a", "options": {}, "inputs": {"a": 1}}
    assert second.current(wanted) is None
    with first.alone():
        first.require_replaceable(wanted)
        with first.building() as building:
            first.finish(building, wanted, {"dialogs": 1}, [])
    other = wanted | {"source": "b", "inputs": {"b": 2}}
    with second.alone():
        assert second.current(wanted) is not None
        with pytest.raises(StorageError, match="holds the result of `dialog prepare a`"):
            second.require_replaceable(other)
    (tmp_path / "out/thesis.tex").write_text("precious")
    with second.alone(), pytest.raises(StorageError, match=r"thesis\.tex"):
        second.require_replaceable(wanted | {"options": {"seed": 2}})


def test_a_result_that_was_moved_aside_comes_back(tmp_path: Path) -> None:
    """A process that was killed between its two renames has left nothing in the result's place."""
    source, out = source_file(tmp_path, corpus(9)), tmp_path / "out"
    prepare(source, out)
    before = contents(out)
    out.rename(tmp_path / ".out.old")
    (tmp_path / ".out.tmp").mkdir()
    assert prepare(source, out).unchanged
    assert contents(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "talk.tsv"]
