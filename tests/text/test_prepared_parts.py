"""Corpora prepared in parts: the bytes of one process, whatever cuts the input, and whatever goes wrong."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm.errors import ConfigError, DataError, HighrankError, OutOfMemory, StorageError, WorkerError
from lm.language.corpora.prepare import PrepareOptions, preparation, prepare
from lm.language.corpora.sources import ReadOptions
from lm.parallel.workers import in_workers
from lm.text.parts import FileRange, PartOf, part_of
from lm.text.prepared_folder import Prepared
from lm.text.prepared_parts import join_parts, prepare_as_asked, prepare_part
from tests.support.outcomes import files_below
from tests.support.tiny_text import folder_of, standard, text
from tests.support.worker_tasks import run

DEFAULTS = PrepareOptions()
PIECES = st.sampled_from(
    ["a", "bb ccc", "é", "中 文", "\u2028", "\r", "\n", "\r\n", "\n\n", " ", "\ufeff", "<unk>"]
)
CONTENT = st.lists(PIECES, max_size=30).map("".join)


def in_parts(source: str, out: Path, count: int, options: PrepareOptions = DEFAULTS) -> Prepared:
    """The parts in any order, each by a command of its own, and joined."""
    order = random.Random(count).sample(range(1, count + 1), count)
    for index in order:
        prepare_part(preparation(source, options), out, PartOf(index, count))
    return join_parts(preparation(source, options), out)


@given(CONTENT, CONTENT, st.integers(0, 400), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_every_line_is_in_one_part_with_its_number(
    tmp_path_factory: pytest.TempPathFactory, first: str, second: str, start: int, count: int
) -> None:
    """Of two slices of files, of which the first may begin anywhere at a line."""
    folder = tmp_path_factory.mktemp("cut")
    slices = []
    for name, content in (("first", first), ("second", second)):
        data = f"x{content}".encode()
        (folder / name).write_bytes(data)
        slices.append(FileRange(folder / name, 0, len(data)).cut(min(start, len(data) - 1), len(data)))
    parts = [part_of({"train": slices}, PartOf(index, count))["train"] for index in range(1, count + 1)]
    joined = {(piece.path, at) for part in parts for piece in part for at in range(piece.start, piece.stop)}
    assert joined == {(piece.path, at) for piece in slices for at in range(piece.start, piece.stop)}
    assert len(joined) == sum(piece.size for part in parts for piece in part), "nothing twice"
    for piece in (piece for part in parts for piece in part):
        data = piece.path.read_bytes()
        assert piece.start in (0, slices[0].start) or data[piece.start - 1 : piece.start] == b"\n"
        assert piece.first == 1 + data[: piece.start].count(b"\n")


@given(CONTENT, CONTENT, CONTENT, st.integers(1, 4), st.sampled_from(["train", "train+valid+test"]))
@settings(max_examples=10, deadline=None)
def test_parts_give_the_bytes_of_one_process(
    tmp_path_factory: pytest.TempPathFactory, train: str, valid: str, test: str, count: int, words: str
) -> None:
    base = tmp_path_factory.mktemp("any")
    given = {"train__txt": f"a b\n{train}", "valid__txt": f"c\n{valid}", "test__txt": f"a\r\n{test}"}
    source = folder_of(base / "in", **given)
    options = PrepareOptions(
        vocabulary=words,  # type: ignore[arg-type]
        blank_lines="keep" if len(valid) % 2 else "drop",
        shard_tokens=7,
    )
    prepare(source, base / "whole", options)
    in_parts(source, base / "out", count, options)
    assert files_below(base / "out") == files_below(base / "whole")
    assert sorted(path.name for path in base.iterdir()) == ["in", "out", "whole"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("book", PrepareOptions(on_bad_line="skip")),
        ("enwik8", DEFAULTS),
        ("text8", DEFAULTS),
        ("book", PrepareOptions(tokenizer="bpe", vocab_size=40, on_bad_line="skip")),
        ("reverse-copy", PrepareOptions(ReadOptions(length=2, vocab=5))),
        ("datasets", PrepareOptions(ReadOptions(format="datasets"))),
    ],
)
def test_every_kind_of_source_is_cut(
    name: str, options: PrepareOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad lines on both sides of a cut, a text without line ends, made-up lines, rows of a dataset."""
    monkeypatch.setattr("lm.language.corpora.sources._COPIES", (50, 10, 10))
    source = name if name == "reverse-copy" else str(tmp_path / name)
    if name == "datasets":
        import datasets

        datasets.disable_progress_bars()
        rows = [{"text": f"row {n}\nof {n % 7}"} for n in range(90)]
        datasets.Dataset.from_list(rows).save_to_disk(source)
    elif name == "book":
        lines = [line.encode() for line in text(200).split("\n")]
        lines[40:40] = lines[99:99] = [b"nul \0", b"\xff", b"an <eos>"]
        Path(source).write_bytes(b"\n".join(lines))
    elif name != "reverse-copy":
        Path(source).write_bytes(random.Random(1).randbytes(2000).replace(b"\n", b" ") + "œ".encode() * 99)
    prepare(source, tmp_path / "whole", options)
    for count in (2, 3, 4):
        in_parts(source, tmp_path / "out", count, options)
        assert files_below(tmp_path / "out") == files_below(tmp_path / "whole")
        (tmp_path / "out").rename(tmp_path / f"done-{count}")
    if options.on_bad_line == "skip" and options.tokenizer == "auto":
        dropped = (tmp_path / "whole/dropped.jsonl").read_text().splitlines()
        assert [json.loads(line)["line"] for line in dropped] == [41, 42, 43, 100, 101, 102]


def test_a_bad_line_of_a_part_is_named_by_its_number_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"a b\r\n" * 70 + b"nul \0\n" + b"c\n" * 50)
    message = r"in\.txt:71:5: NUL byte"
    for part in (PartOf(1, 1), PartOf(2, 2), PartOf(3, 3)):
        with pytest.raises(DataError, match=message):
            prepare_part(preparation(str(tmp_path / "in.txt"), DEFAULTS), tmp_path / "out", part)
    for index in (1, 2):
        prepare_part(preparation(str(tmp_path / "in.txt"), DEFAULTS), tmp_path / "out", PartOf(index, 3))
    with pytest.raises(DataError, match=message):
        prepare(str(tmp_path / "in.txt"), tmp_path / "out", processes=2)
    assert not (tmp_path / "out").exists()


def test_parts_that_cannot_be_joined_are_named(tmp_path: Path) -> None:
    source, out = standard(tmp_path / "in", 60), tmp_path / "out"

    def part(
        index: int, count: int = 3, options: PrepareOptions = DEFAULTS, source: str = source
    ) -> Prepared:
        return prepare_part(preparation(source, options), out, PartOf(index, count))

    def refused(message: str, kind: type[HighrankError]) -> None:
        with pytest.raises(kind, match=message):
            join_parts(preparation(source, DEFAULTS), out)
        assert not out.exists()

    refused(r"out.parts: holds no part; run the same command with --part 1/N", StorageError)
    part(1), part(3)
    refused(r"lacks the part 2/3; run the same command with --part 2/3 instead of --join", StorageError)
    part(2, options=PrepareOptions(lowercase=True))
    refused(
        r"2-of-3: made with --lowercase True, here --lowercase is False; join with the options of the parts,",
        ConfigError,
    )
    part(2, options=PrepareOptions(vocab_size=7))
    refused(r"2-of-3: made with --vocab-size 7, here --vocab-size is 0", ConfigError)
    assert not part(2).unchanged
    assert part(2).unchanged
    for name in ("train.ids", "words.json", "report.json"):
        original = (tmp_path / "out.parts/2-of-3" / name).read_bytes()
        (tmp_path / "out.parts/2-of-3" / name).write_bytes(original[:-2])
        refused(r"2-of-3: incomplete, damaged", StorageError)
        (tmp_path / "out.parts/2-of-3" / name).write_bytes(original)
    stray = tmp_path / "out.parts/3-of-3/notes.txt"
    stray.write_text("mine")
    refused(r"3-of-3/notes.txt: not written by `lm prepare --part` and would be lost; move it", StorageError)
    stray.unlink()
    part(2, 4)
    refused(r"out.parts: holds parts of 3 and of 4; remove those of all but one", StorageError)
    (tmp_path / "out.parts/2-of-4").rename(tmp_path / "elsewhere")
    with Path(source, "train.txt").open("r+") as file:
        file.write("X")
    refused(r"1-of-3: made from another version of .*in; run .* --part 1/3", DataError)
    standard(tmp_path / "in", 60)
    join_parts(preparation(source, DEFAULTS), out)
    assert join_parts(preparation(source, DEFAULTS), out).unchanged
    prepare(source, tmp_path / "whole")
    assert files_below(out) == files_below(tmp_path / "whole")


def test_only_what_was_joined_is_removed(tmp_path: Path) -> None:
    """Not parts of other options or of another corpus, nor other files, also after a cut removal."""
    source, other, out = standard(tmp_path / "in", 60), standard(tmp_path / "other", 50), tmp_path / "out"
    lowered = PrepareOptions(lowercase=True)
    parts = tmp_path / "out.parts"

    def part(index: int, count: int, options: PrepareOptions = DEFAULTS, source: str = source) -> None:
        prepare_part(preparation(source, options), out, PartOf(index, count))

    part(1, 2), part(2, 2)
    (parts / "notes.txt").write_text("mine")
    join_parts(preparation(source, DEFAULTS), out)
    assert [path.name for path in parts.iterdir()] == ["notes.txt"]
    part(1, 3), part(2, 3, lowered), part(3, 3, DEFAULTS, other)
    (parts / "4-of-4").mkdir()
    (parts / "4-of-4/book.txt").write_text("mine")
    assert join_parts(preparation(source, DEFAULTS), out).unchanged
    assert sorted(path.name for path in parts.iterdir()) == ["2-of-3", "3-of-3", "4-of-4", "notes.txt"]


def test_a_part_under_another_name_is_refused(tmp_path: Path) -> None:
    source, out = standard(tmp_path / "in", 60), tmp_path / "out"
    prepare_part(preparation(source, DEFAULTS), out, PartOf(1, 2))
    shutil.copytree(tmp_path / "out.parts/1-of-2", tmp_path / "out.parts/2-of-2")
    with pytest.raises(StorageError, match=r"2-of-2: holds the part 1/2, not 2/2; run .* --part 2/2"):
        join_parts(preparation(source, DEFAULTS), out)


def test_of_many_missing_parts_the_first_are_named(tmp_path: Path) -> None:
    source, out = standard(tmp_path / "in", 60), tmp_path / "out"
    prepare_part(preparation(source, DEFAULTS), out, PartOf(2, 1000))
    with pytest.raises(
        StorageError, match=r"lacks the part 1/1000, 3/1000, [\d/, ]* and 991 more; run .* 1/1000"
    ):
        join_parts(preparation(source, DEFAULTS), out)


def test_a_part_of_another_tokenizer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, options = standard(tmp_path / "in", 90), PrepareOptions(tokenizer="unigram", vocab_size=40)
    prepare_part(preparation(source, options), tmp_path / "out", PartOf(1, 2))
    monkeypatch.setattr("lm.language.corpora.survey.SAMPLE", 300)  # as if another machine learned another one
    prepare_part(preparation(source, options), tmp_path / "out", PartOf(2, 2))
    with pytest.raises(
        StorageError, match=r"2-of-2: its tokenizer is not that of 1-of-2; prepare all parts on equal"
    ):
        join_parts(preparation(source, options), tmp_path / "out")


HUGE = pytest.param("1/" + "9" * 5000, id="huge")


@pytest.mark.parametrize(
    "text", ["", "1", "0/2", "3/2", "1/0", "a/b", "-1/2", "1/2/3", "²/3", "1/1000001", HUGE]
)
def test_impossible_parts_are_usage_errors(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--part .*: must be") as refused:
        PartOf.parse(text)
    assert len(str(refused.value)) < 100
    with pytest.raises(ConfigError, match="--part and --join: two ways to prepare"):
        prepare_as_asked(preparation(standard(tmp_path / "in"), DEFAULTS), tmp_path / "out", 1, text, True)


def test_processes_give_the_bytes_of_one(tmp_path: Path) -> None:
    source = standard(tmp_path / "in", 60)
    prepare(source, tmp_path / "whole")
    prepare(source, tmp_path / "out", processes=2)
    assert files_below(tmp_path / "out") == files_below(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out", "whole"]


@pytest.mark.parametrize(
    ("kinds", "error"),
    [
        (("leave", "leave"), None),
        (("refuse", "refuse", "leave"), r"^0: bad; correct it$"),
        (("exhaust", "leave"), r"^out of memory: lower"),
        (("die", "leave"), r"one of 2 processes was killed, .* fewer --processes"),
    ],
)
def test_workers_end_with_the_first_failure(
    kinds: tuple[str, ...], error: str | None, tmp_path: Path
) -> None:
    """No worker loads a heavy library; those after a failure in the order of tasks do not finish."""
    tasks: list[tuple[Any, ...]] = [(kind, Path(str(n)), 0.0) for n, kind in enumerate(kinds)]
    if error is None:
        tasks = [(kind, tmp_path / str(n), 0.0) for n, kind in enumerate(kinds)]
        in_workers(run, tasks)
        assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["", ""]
        return
    tasks[-1] = ("leave", tmp_path / "late", 60.0)
    began = time.monotonic()
    with pytest.raises((DataError, OutOfMemory, WorkerError), match=error):
        in_workers(run, tasks)
    assert time.monotonic() - began < 30
    assert not list(tmp_path.iterdir())


def test_an_internal_error_of_a_worker_is_told_with_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="UnsendableError in a worker: odd") as error:
        in_workers(run, [("err", Path("x"), 0.0)])
    assert "raise UnsendableError(1, 2)" in str(error.value.__cause__)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_a_signal_ends_all_processes(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C reaches the whole group; SIGKILL only the command, whose workers follow it."""
    (tmp_path / "book").write_text(text(500) * 400, encoding="utf-8")
    command = [sys.executable, "-m", "lm", "prepare", "book", "--out", "out", "--processes", "2"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 60
    while len(list(tmp_path.glob(".out.tmp/parts/*/train.ids"))) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    if number is signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, said = process.communicate(timeout=60)
    while time.monotonic() < until:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.02)
    else:
        pytest.fail("workers are left")
    assert not (tmp_path / "out").exists()
    if number is signal.SIGINT:
        assert process.returncode == 75
        assert said == "interrupted; run the same command again to start over\n"
        assert [path.name for path in tmp_path.iterdir()] == ["book"]
