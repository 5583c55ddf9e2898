"""The first cases of the fault matrix, whose rest ``make nightly`` runs; its lists are up to date."""

import ast
import json
import os
import re
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lm.errors import StorageError
from lm.language.corpora.prepare import PrepareOptions, prepare
from lm.runs.check import check_run
from lm.text.prepared_folder import Prepared
from tests.matrix.mutants.mutant import Mutant
from tests.matrix.row import dice
from tests.matrix.sabotage import MUTANTS
from tests.matrix.table import ROWS
from tests.support.crash_process import ROOT
from tests.support.outcomes import outcome
from tests.support.power import Disk, Recorder
from tests.support.tiny_lm import text_of
from tests.support.tiny_task import train

BY_NAME = {row.name: row for row in ROWS}
CHANGE = {  # cases for every change; rows that are not here have tests of their own, with as many
    "C1": 10, "C2": 200, "E2": 40, "F": 30, "G2": 100, "H": 100, "J1": 15,
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGE)
def test_the_first_cases_of_a_row(name: str, tmp_path: Path) -> None:
    lab = BY_NAME[name].lab
    assert lab is not None
    with lab(tmp_path) as case:
        found = sum(case(dice(name, 1, index), index) for index in range(CHANGE[name]))
    assert found >= CHANGE[name] // 2


def test_every_row_has_cases_or_says_why_not() -> None:
    assert [row.name for row in ROWS] == sorted(row.name for row in ROWS)
    for row in ROWS:
        assert row.lab or row.limit.startswith("not applicable: ")
    shown = re.findall(r"^\| ([A-Z]\d?) \|", (ROOT / "docs/reliability.md").read_text(encoding="utf-8"), re.M)
    assert shown == [row.name for row in ROWS], "the table of docs/reliability.md"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.about)
def test_every_mutant_still_finds_its_place_and_its_test(mutant: Mutant, tmp_path: Path) -> None:
    copy = tmp_path / mutant.file
    copy.parent.mkdir(parents=True)
    shutil.copy(ROOT / mutant.file, copy)
    mutant.spoil(tmp_path)
    ast.parse(copy.read_text(encoding="utf-8"))
    file, _, test = mutant.test.partition("::")
    assert f"\ndef {test}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")


def test_answers_that_arrive_together_are_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import nightly

    monkeypatch.setattr(nightly, "HUNG", 0.01)
    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo\nthr")
    lines = nightly.lines_of(reading)
    assert [next(lines), next(lines)] == [b"one", b"two"]
    os.write(writing, b"ee\nfour")
    assert list(lines) == [b"three"]
    os.close(writing)
    os.close(reading)


def test_a_failure_after_a_torn_line_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import nightly

    results = tmp_path / "results.jsonl"
    nightly.forget_failures(results, ["A1"], 1)
    whole = {"row": "A1", "seed": 1, "index": 2, "cases": 1, "seconds": 0.0, "failure": ""}
    failed = whole | {"index": 3, "failure": "AssertionError"}
    results.write_text(f'{json.dumps(whole)}\n{{"row": "A1", "se', encoding="utf-8")
    nightly.cut_torn_line(results)
    with results.open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(failed)}\n")
    assert nightly.tallies(results, 1, 1)["A1"].failures == ["A1 3: AssertionError"]
    nightly.forget_failures(results, ["A1"], 1)
    assert nightly.kept_results(results) == [whole]


def test_a_row_without_faults_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a row that breaks nothing any more does not pass."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import nightly

    tally = nightly.Tally(nightly.BY_NAME["E1"], demanded=10)
    for index in range(tally.most):
        assert not tally.short
        tally.add({"index": index, "cases": 0, "seconds": 0.0, "failure": ""})
    assert (tally.open, tally.short) == (False, True)
    tally.add({"index": 0, "cases": 10, "seconds": 0.0, "failure": ""})
    assert not tally.short


def test_only_failures_of_the_rows_and_the_seed_asked_for_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import nightly

    results = tmp_path / "results.jsonl"
    failed = {"index": 3, "cases": 1, "seconds": 0.0, "failure": "AssertionError"}
    cases = [{"row": row, "seed": seed, **failed} for row in ("A1", "C1", "E1") for seed in (1, 2)]
    results.write_text("".join(f"{json.dumps(case)}\n" for case in cases), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [
        "nightly.py", "--dir", str(tmp_path), "--rows", "A1", "C1", "--again", "--minutes", "0",
    ])  # fmt: skip
    assert nightly.main() == 75
    assert nightly.kept_results(results) == [cases[1], cases[3], *cases[4:]]


def test_results_outlive_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import nightly

    results = tmp_path / "results.jsonl"
    case = {"row": "A1", "seed": 1, "index": 2, "cases": 1, "seconds": 0.0, "failure": ""}
    results.write_text(f"{json.dumps(case)}\n" * 20, encoding="utf-8")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StorageError, match="results"):
            nightly.forget_failures(results, ["A1"], 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert nightly.kept_results(results) == [case] * 20


def test_there_are_thirty_mutants() -> None:
    assert len({mutant.about for mutant in MUTANTS}) == len(MUTANTS) >= 30


def recorded(place: Path, action: Callable[[], object]) -> Disk:
    """The disk under a whole action in a folder that is empty before."""
    place.mkdir()
    recorder = Recorder(place)
    with recorder.recording():
        action()
    empty = place.with_name("empty")
    empty.mkdir()
    return Disk(empty, recorder.changes)


def test_power_fails_while_a_corpus_is_prepared(tmp_path: Path) -> None:
    """What is there is whole; the same command then makes what it always makes."""
    (tmp_path / "text.txt").write_text(text_of(30, 1), encoding="utf-8")

    def make(place: Path) -> Prepared:
        return prepare(str(tmp_path / "text.txt"), place / "out", PrepareOptions())

    disk = recorded(tmp_path / "whole", lambda: make(tmp_path / "whole"))
    wanted = contents(tmp_path / "whole")
    assert len(disk) > 30
    for number in range(60):
        rng, place = dice("A3", 1, number), tmp_path / f"state-{number}"
        disk.state(len(disk) - number % 12 if number % 2 else rng.randint(0, len(disk)), place, rng, 0.3)
        if (place / "out").exists():
            assert make(place).unchanged, "half a corpus"
        make(place)
        assert contents(place) == wanted
        shutil.rmtree(place)


def test_power_fails_while_a_run_is_trained(tmp_path: Path) -> None:
    """From its first folder on: nothing that was saved is lost, and it ends bit for bit as it would have."""
    settings = {"max_steps": 6, "checkpoint_every": 2, "validate_every": 3}
    disk = recorded(tmp_path / "whole", lambda: train(tmp_path / "whole" / "run", settings))
    wanted = outcome(tmp_path / "whole" / "run")
    published = [
        number
        for number, change in enumerate(disk.changes)
        if re.fullmatch(r"run/checkpoints/step-\d+", change.target)
    ]
    assert len(published) > 3
    for number in range(40):
        rng, place = dice("A3", 2, number), tmp_path / f"state-{number}"
        length = rng.randint(0, len(disk))
        disk.state(length, place, rng, rng.choice((0.0, 0.3, 0.7)))
        commits = sum(at < length for at in published)
        if commits > 1:
            assert not check_run(place / "run").problems
        train(place / "run", settings)
        assert outcome(place / "run") == wanted
        shutil.rmtree(place)


def contents(place: Path) -> dict[str, bytes]:
    """Every file that is not a lock."""
    files = (path for path in place.rglob("*") if path.is_file() and not path.name.endswith(".lock"))
    return {str(path.relative_to(place)): path.read_bytes() for path in files}
