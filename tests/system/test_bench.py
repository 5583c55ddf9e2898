"""The benchmark's own arithmetic; what it measures is for a quiet machine."""

import importlib
import io
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from rich.console import Console

from lm.errors import ConfigError
from tests.support.peak_memory import MEASURABLE, measured

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "scripts"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    import bench

    return bench


def test_variants_take_turns_in_changing_order(bench: ModuleType) -> None:
    from benchmarks.timing import Case, Variant, measure

    calls: list[str] = []
    case = Case("letters", [Variant(name, lambda name=name: lambda: calls.append(name)) for name in "abc"])
    timings = measure(case, rounds=3)
    assert "".join(calls) == "abc" + "abc" + "cba" + "abc", "the first time warms up"
    assert [timing.name for timing in timings] == ["a", "b", "c"]
    assert all(len(timing.seconds) == 3 for timing in timings)


def test_ratios_are_to_the_floor_and_to_the_first_variant(bench: ModuleType) -> None:
    from benchmarks.timing import Case, Timing

    options = bench.argparse.Namespace(memory=False)
    timings = [Timing("naive", None, [4.0, 4.0, 4.0]), Timing("ours", 1.0, [1.0, 2.0, 9.0])]
    records = bench._records("head", Case("small", (), ("tokens", 10)), timings, options)
    assert records[1]["speed_up"] == 2
    assert records[1]["tokens a second"] == 5
    where = f"{bench._processor()}, {torch.get_num_threads()} threads, malloc tuned: head: small: ours"
    assert bench._ratios(records, "tuned") == {
        f"{where}, over its floor": 2.0,
        f"{where}, over the first": 0.5,
    }
    table = bench._table(Case("small", ()), records)
    assert [column.head for column in table.columns()][:3] == ["variant", "seconds", "spread"]
    text = io.StringIO()
    Console(file=text, width=60).print(table)
    assert "…" not in text.getvalue(), "numbers and heads are whole in a narrow terminal"
    assert table.rows[1]["speed up"] == 2


def test_an_interrupted_benchmark_keeps_what_it_has_measured(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.timing import Case, Ceiling, Timing

    def measure(case: Case, rounds: int) -> list[Timing]:
        if case.name == "second":
            raise KeyboardInterrupt
        return [Timing("only", None, [1.0, 2.0, 3.0])]

    kept, cases = tmp_path / "bench.json", [Case(name, ()) for name in ("first", "second", "third")]
    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "ceilings", lambda: Ceiling(1.0, 1.0, 1.0))
    monkeypatch.setitem(bench.SUBJECTS, "load", bench.argparse.Namespace(cases=lambda ceiling: cases))
    monkeypatch.setattr(bench, "STORED", tmp_path / "ratios.json")
    monkeypatch.setattr(sys, "argv", ["bench.py", "load", "--json", str(kept), "--store"])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 130
    assert [record["case"] for record in json.loads(kept.read_text())["records"]] == ["first"]
    assert "interrupted" in capsys.readouterr().out
    assert not bench.STORED.exists()


def test_the_check_names_what_got_slower(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ratios.json").write_text(json.dumps({"kept": 1.0, "slower": 1.0}))
    monkeypatch.setattr(bench, "STORED", tmp_path / "ratios.json")
    console = Console(file=sys.stdout, width=200)
    assert bench._check({"kept": 1.1, "new": 9.0}, console) == 0
    assert bench._check({"kept": 0.5, "slower": 1.2}, console) == 1
    assert "slower: slower: 1.2 where 1.0 is stored" in capsys.readouterr().out
    assert bench._check({"new": 9.0}, console) == 1
    assert "nothing to compare" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["head", "--rounds", "1"], "at least 2"),
        (["head", "--without", "naive", "--check"], "leave out --without"),
        (["scaling", "--picture", "x.svg"], "--memory"),
        (["head", "--memory", "--picture", "x.svg"], "scaling"),
    ],
)
def test_what_would_fail_at_the_end_is_refused_at_the_start(
    arguments: list[str],
    reason: str,
    bench: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.py", *arguments])
    with pytest.raises(SystemExit):
        bench._options()
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["head"], "add scale"),
        (["scale", "--only", "million"], "leave out --only"),
        (["scale", "--without", "2 threads"], "leave out --only and --without"),
        (["scale"], "exchange.json: is a folder"),
    ],
)
def test_published_numbers_are_replaced_as_a_whole_or_not_at_all(
    arguments: list[str],
    reason: str,
    bench: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "scale.json").write_text("published")
    (tmp_path / "exchange.json").mkdir()
    monkeypatch.setattr(sys, "argv", ["bench.py", *arguments, "--results", str(tmp_path)])
    monkeypatch.setattr(bench, "ceilings", lambda: pytest.fail("it has begun to measure"))
    monkeypatch.setattr(bench, "measure", lambda *_: [])
    with pytest.raises(SystemExit):
        bench.main()
    assert reason in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "scale.json").read_text() == "published"


def test_all_that_scale_measures_is_published(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.timing import Case, Ceiling, Timing

    def measure(case: Case, rounds: int) -> list[Timing]:
        return [Timing(variant.name, None, [1.0] * rounds) for variant in case.variants]

    monkeypatch.setattr(sys, "argv", ["bench.py", "scale", "--results", str(tmp_path)])
    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "ceilings", lambda: Ceiling(1.0, 1.0, 1.0))
    bench.main()
    labels = [
        entry["label"]
        for name in ("scale", "exchange")
        for entry in json.loads((tmp_path / f"{name}.json").read_text())["entries"]
    ]
    assert labels == [case.name for case in bench.scale.cases(bench.UNKNOWN)]


# In a process of its own, as the benchmark measures: another test's free memory would serve instead.
def scratch() -> tuple[torch.Tensor, None]:
    scratch = torch.ones(64 * 2**18)
    return scratch[:1].repeat(48 * 2**18), None  # more than malloc keeps


def peak_of_64_megabytes(subject: str) -> float:
    """In MB, as a subject of the benchmarks measures it."""
    sys.path.insert(0, str(SCRIPTS))
    from benchmarks import scaling, timing

    if subject == "scaling":
        return float(scaling.peak_megabytes(scratch))
    return float(timing.peak_megabytes(lambda: torch.ones(64 * 2**18).sum()))


@pytest.mark.skipif(not MEASURABLE, reason="no high-water mark to reset")
def test_peak_memory_is_what_a_run_needs_and_does_not_return() -> None:
    for megabytes in measured(peak_of_64_megabytes, ["timing", "scaling"]):
        assert 60 < megabytes < 80


def test_the_picture_of_scaling_repeats_to_the_byte(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.scaling, "SWEEPS", dict(list(bench.scaling.SWEEPS.items())[:2]))
    records = [
        {"subject": "scaling", "case": name, "variant": f"{value:,}", "seconds": value, "peak MB": 2 * value}
        for name, (values, _) in bench.scaling.SWEEPS.items()
        for value in values
    ]
    for name in ("first.svg", "again.svg"):
        bench.scaling.draw(records, tmp_path / name)
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()


def test_every_subject_has_cases_with_names_of_their_own(bench: ModuleType) -> None:
    from benchmarks.timing import Ceiling

    for subject in bench.SUBJECTS.values():
        names = [case.name for case in subject.cases(Ceiling(1e11, 2e11, 5e10))]
        assert names or (subject is bench.cuda and not torch.cuda.is_available())
        assert len(set(names)) == len(names)


def test_texts_and_tasks_of_benchmarks_can_be_made(bench: ModuleType) -> None:
    load, worker = (importlib.import_module(f"benchmarks.{name}") for name in ("load", "scale_worker"))
    for case in load.cases(bench.UNKNOWN):
        for variant in case.variants if case.name.startswith("a text") else ():
            assert callable(variant.prepare())
    for task in (worker.ptb_task, worker.switchboard_task):
        assert next(task(2).epoch(0, 0))


def test_every_sweep_prepares_its_smallest_work(bench: ModuleType) -> None:
    from benchmarks.scaling import SWEEPS

    for values, prepare in SWEEPS.values():
        assert callable(prepare(values[0]))


def test_a_peer_in_another_interpreter_does_an_update_a_call(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import dialog

    log, peer = tmp_path / "log", tmp_path / "python"
    peer.write_text(f"#!/bin/sh\necho $1 $2 $3 >{log}\nread line; echo done; read line; echo sorry\n")
    peer.chmod(0o755)
    monkeypatch.setenv(dialog.PEER, str(peer))
    ours, *_ = dialog.cases(bench.UNKNOWN)
    update = ours.variants[0].prepare()
    update()
    with pytest.raises(RuntimeError, match="does not answer"):
        update()
    script, attention, threads = log.read_text().split()
    assert Path(script) == SCRIPTS / "benchmarks/joeynmt.py"
    assert (attention, threads) == ("luong", str(torch.get_num_threads()))


def test_both_encoder_decoders_read_the_same_conversations(bench: ModuleType) -> None:
    from benchmarks import dialog, joeynmt

    pairs = joeynmt.conversations()
    assert pairs == joeynmt.conversations()
    (name, tokens) = dialog.cases(bench.UNKNOWN)[0].unit
    assert (name, tokens) == ("tokens", sum(len(target) + 1 for _, target in pairs))
    assert len(pairs) == joeynmt.SIZES.responses


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (("x", "", ""), "head, step"),
        (("trunks", "x", ""), "loss of 512 tokens, V = 32,000"),
        (("trunks", "loss of 512 tokens, V = 32,000", "x"), "ours, softmax"),
    ],
)
def test_memory_of_an_unknown_variant_is_refused(
    bench: ModuleType, names: tuple[str, str, str], known: str
) -> None:
    with pytest.raises(ConfigError, match=rf"--memory-of x: choose from .*{known}"):
        bench._memory_here(*names, False)


def test_variants_can_be_left_out(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.timing import Case, Ceiling, Variant

    def cases(_: Ceiling) -> list[Case]:
        return [Case("letters", [Variant(name, lambda: lambda: None) for name in ("a", "b of c")])]

    monkeypatch.setitem(bench.SUBJECTS, "load", bench.argparse.Namespace(cases=cases))
    monkeypatch.setattr(bench, "ceilings", lambda: Ceiling(1e11, 2e11, 5e10))
    kept = tmp_path / "bench.json"
    monkeypatch.setattr(
        sys, "argv", ["bench", "load", "--without", "of", "--rounds", "2", "--json", str(kept)]
    )
    bench.main()
    report = json.loads(kept.read_text())
    assert [record["variant"] for record in report["records"]] == ["a"]
    assert "caches" in report["processor"]
