"""Comparison of language models: a paired bootstrap over blocks, of comparable evaluations only."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lm.errors import ConfigError, DataError, StorageError
from lm.language.compare import compare
from lm.language.evaluate import evaluate
from lm.language.report import FAMILY
from lm.language.tables import comparison_tables
from lm.report.page import report_of
from lm.results import as_json
from lm.runs.checkpoint import CheckpointStore
from tests.support.kept_records import keep_record
from tests.support.tiny_lm import cells, write_run


def keep_run(run: Path, seed: int = 1, better: float = 0.0, units: int = 40, **facts: Any) -> Path:
    """An evaluation with made-up sums; ``better`` nats a token below the common ones."""
    common, own = np.random.default_rng(0), np.random.default_rng(seed)
    tokens = np.array([1000] * (units - 1) + [137])
    nll = tokens * (common.normal(4, 0.5, units) + own.normal(0, 0.02, units) - better)
    result = {
        **{"head": "mos", "components": 3, "parameters": 1234, "checkpoint": "best", "seed": seed},
        **{
            "method": "static",
            "compat": "none",
            "tokens": int(tokens.sum()),
            "nll": nll.sum() / tokens.sum(),
        },
        **{"perplexity": float(np.exp(nll.sum() / tokens.sum())), "vocabulary_sha256": "v"},
        "data": {"sha256": "d" * 64},
    } | facts
    contexts = {"nll": nll.tolist(), "tokens": tokens.tolist()}
    if "mc_dropout" in facts:
        contexts["mc_dropout"] = (nll - 0.2 * tokens * (seed == 2)).tolist()
    keep_record(run, "test", result, contexts)
    return run


def p_of(*runs: Path) -> float:
    p: float = compare(runs, resamples=2000).runs[1].p["perplexity"]
    return p


def test_p_values_are_those_of_a_paired_bootstrap_over_blocks(tmp_path: Path) -> None:
    first, other = keep_run(tmp_path / "a"), keep_run(tmp_path / "b", seed=2, better=0.002)
    rng, units = np.random.default_rng(1), 40
    sums = []
    for run in (first, other):
        own = np.random.default_rng(1 if run == first else 2)
        common = np.random.default_rng(0)
        tokens = np.array([1000] * 39 + [137])
        sums.append(tokens * (common.normal(4, 0.5, 40) + own.normal(0, 0.02, 40) - 0.002 * (run == other)))
    drawn = np.stack([rng.integers(0, units, units) for _ in range(2000)])
    differences = (sums[1] - sums[0])[drawn].sum(1)
    tail = min((differences <= 0).sum(), (differences >= 0).sum())
    assert p_of(first, other) == pytest.approx(min(1, 2 * (tail + 1) / 2001))
    assert 0.01 < p_of(first, other) < 0.99


def test_a_difference_between_models_near_guessing_is_noise(tmp_path: Path) -> None:
    names = ("guess", "worse", "better")
    guess, worse, better = (
        keep_run(tmp_path / name, seed=number, better=number / 10, near_guessing=name != "better")
        for number, name in enumerate(names)
    )
    assert p_of(guess, worse) is None
    assert p_of(guess, better) == p_of(better, worse) == pytest.approx(2 / 2001)  # one of them has learnt
    *_, warning = comparison_tables(compare([guess, worse, better], resamples=1000))
    assert str(warning).startswith("warning: near guessing")
    assert str(warning).count(str(tmp_path)) == 2


@pytest.mark.parametrize(
    ("end", "max_steps", "state"),
    [("finished", 9, ""), ("diverged", 9, "diverged"), ("", 3, ""), ("", 9, "interrupted")],
)
def test_a_training_that_has_not_ended_is_warned_of(
    tmp_path: Path, end: str, max_steps: int, state: str
) -> None:
    run = keep_run(write_run(tmp_path / "a"))
    config = json.loads((run / "config.json").read_text())["config"]
    config["train"]["max_steps"] = max_steps
    (run / "config.json").write_text(json.dumps({"family": "lm", "config": config}))
    store = CheckpointStore.of(run)
    progress = {"step": 3, "epoch": 0, "stale": 0, "best": [[1.0, 3]]}
    store.commit(4, {"model": store.weights("step-3")}, {"progress": progress}, {})
    (run / "timing.jsonl").write_text(json.dumps({"ended": end}) + "\n" if end else "")
    for path in (run, run / "evaluation" / "test.json"):
        comparison = compare([path, keep_run(tmp_path / "b", seed=2)], resamples=1000)
        assert [row.unfinished for row in comparison.runs] == [state, ""]
        *_, last = comparison_tables(comparison)
        about = "trained without the planned end, so that scores are of unfinished models"
        warning = f"warning: {about}: {path} ({state})."
        assert (last == warning) == bool(state)


def test_all_numbers_of_a_run_have_the_divisor_of_its_perplexity(tmp_path: Path) -> None:
    """With ``compat = paper`` that is one more than the number of scored tokens."""
    runs = [write_run(tmp_path / name) for name in ("a", "b")]
    config = json.loads((runs[1] / "config.json").read_text())
    config["config"]["train"]["seed"] += 1
    (runs[1] / "config.json").write_text(json.dumps(config))
    for run in runs:
        evaluate(run, limit=20, compat="paper")
    result = compare(runs, resamples=1000)
    assert result.pools is not None
    nats = [math.log(row.perplexity) for row in result.runs]
    assert math.log(result.pools[0].scores["perplexity"].mean) == pytest.approx(np.mean(nats))


def test_clear_differences_are_significant_and_equal_runs_do_not_differ(tmp_path: Path) -> None:
    first, same = keep_run(tmp_path / "a"), keep_run(tmp_path / "b")
    better = keep_run(tmp_path / "c", seed=2, better=0.1)
    assert p_of(first, same) == 1.0
    assert p_of(first, better) == p_of(better, first) == pytest.approx(2 / 2001)
    assert p_of(keep_run(tmp_path / "d", units=4), keep_run(tmp_path / "e", units=4)) is None
    result = compare([first, same, better], resamples=1000)
    assert result.runs[0].p == {}
    assert result.bootstrap.units == 40
    scores, p = map(cells, comparison_tables(result))
    assert list(scores[0]) == ["run", "head", "parameters", "checkpoint", "perplexity", "nats a token"]
    assert [row["run"] for row in scores] == ["a", "b", "c"]
    head = "p against a"
    assert p == [{head: "b", "perplexity": "1.0000"}, {head: "c", "perplexity": "0.0020"}]


def test_refined_results_are_compared_where_all_have_them(tmp_path: Path) -> None:
    refined = {"mc_dropout": {"perplexity": 50.0}}
    runs = [keep_run(tmp_path / "a", 1, **refined), keep_run(tmp_path / "b", 2, **refined)]
    result = compare(runs, resamples=1000)
    assert result.scores == ["perplexity", "mc_dropout"]
    assert result.runs[1].p["mc_dropout"] == pytest.approx(2 / 1001)
    assert result.runs[1].facts["mc_dropout"] == 50.0
    without = compare([*runs, keep_run(tmp_path / "c")], resamples=1000)
    assert without.scores == ["perplexity"]
    warned = [text for text in comparison_tables(without) if isinstance(text, str)]
    named = f"{tmp_path / 'a'}, {tmp_path / 'b'}"
    assert f"warning: not compared: MC dropout, which only some of the runs have: {named}." in warned
    scores, p = map(cells, comparison_tables(result))
    assert list(scores[0])[4:] == ["perplexity", "mc_dropout", "nats a token"]
    assert p[0]["mc_dropout"] == "0.0020"


def test_only_comparable_runs_are_compared(tmp_path: Path) -> None:
    first = keep_run(tmp_path / "a")
    for other, reason in [
        (keep_run(tmp_path / "b", vocabulary_sha256="w"), "vocabularies differ"),
        (keep_run(tmp_path / "c", data={"sha256": "e"}), "different data"),
        (keep_run(tmp_path / "d", units=12), "--limit"),
    ]:
        with pytest.raises(DataError, match=reason) as error:
            compare([first, other])
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="no run"):
        compare([])
    with pytest.raises(ConfigError, match="resamples"):
        compare([first], resamples=10)
    with pytest.raises(DataError, match="`lm evaluate`"):
        compare([first], name="other")
    with pytest.raises(StorageError, match="no such run"):
        compare([first, tmp_path / "none"])
    (first / "evaluation" / "test.json").write_text('{"format": 1, "result": {}, "contexts": {}}')
    with pytest.raises(StorageError, match="`lm evaluate` again"):
        compare([first])


def test_real_evaluations_compare(tmp_path: Path) -> None:
    runs = []
    for head in ({}, {"kind": "mos", "components": 2, "embedding_size": 6}):
        (tmp_path / str(len(runs))).mkdir()
        runs.append(write_run(tmp_path / str(len(runs)) / "run", **head))
        evaluate(runs[-1])
    result = compare(runs, resamples=1000)
    assert result.name == "test"
    assert [row.facts["head"] for row in result.runs] == ["softmax", "mos"]
    evaluate(runs[0], limit=9)
    evaluate(runs[1], limit=9)
    assert compare(runs, resamples=1000).name == "test"
    assert compare(runs, "test.first-9", resamples=1000).name == "test.first-9"


def test_evaluations_of_one_name_pair_by_their_text(tmp_path: Path) -> None:
    """One run was evaluated on its own text first, the other on another text of the same name."""
    own, foreign = str(tmp_path / "test.txt"), str(tmp_path / "o/test.txt")
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b")]
    (tmp_path / "o").mkdir()
    Path(foreign).write_text(Path(own).read_text() * 2)
    first = evaluate(runs[0], own)
    evaluate(runs[1], foreign)
    with pytest.raises(DataError, match=r"evaluated on different data \(.*o/test.txt and .*test.txt\)"):
        compare(runs)
    names = ["test", evaluate(runs[1], own).name]
    assert names[1].startswith("test.")
    for one, its in ((runs, names), (runs[::-1], names[::-1])):
        result = compare(one, resamples=1000)
        assert [row.evaluation for row in result.runs] == its
        assert result.name == names[1]
        assert result.data == as_json(first)["data"]
        assert result.pools is None or len(result.pools) == 1, "runs of one config are one pool"
    other = evaluate(runs[0], foreign)
    with pytest.raises(ConfigError, match=rf"--name: {names[1]} \({own}\), {other.name} \({foreign}\)$"):
        compare(runs)
    for name, its in ((names[1], names), ("test", names), (other.name, [other.name, "test"])):
        assert [row.evaluation for row in compare(runs, name, resamples=1000).runs] == its
    *_, page = report_of(FAMILY, runs, "test", 1000)
    assert f"--name {names[1]}" in page.decode()
    with pytest.raises(DataError, match=rf"no evaluation of the runs; did you mean {names[1]}\?"):
        compare(runs, names[1][:-1])
    (runs[1] / "evaluation/test.json").unlink()
    shared = rf"--name test: is another text in some runs; choose one that all have: {names[1]} \({own}\)$"
    evaluate(runs[1], foreign, limit=9)
    (runs[0] / f"evaluation/{other.name}.json").unlink()
    keep_record(runs[1], "test", {"data": {"sha256": "e" * 64}}, {})
    with pytest.raises(DataError, match=shared):
        compare(runs[::-1], "test")
    (runs[1] / "evaluation/test.json").unlink()
    with pytest.raises(DataError, match=f"has no evaluation {other.name}"):
        compare(runs, other.name)


@pytest.mark.parametrize("checkpoint", ["best", "last", "average-best"])
def test_an_evaluation_of_weights_that_have_changed_is_refused(tmp_path: Path, checkpoint: str) -> None:
    run = write_run(tmp_path / "run")
    evaluate(run, checkpoint=checkpoint)
    assert compare([run]).runs[0].facts["checkpoint"] == checkpoint
    store = CheckpointStore(run / "checkpoints")
    weights = {name: tensor + 1 for name, tensor in store.weights("best").items()}
    store.commit(4, {"model": weights}, {}, {})
    with pytest.raises(DataError, match=rf"checkpoint {checkpoint} has changed since; run `lm evaluate` aga"):
        compare([run])
    evaluate(run, checkpoint=checkpoint)
    assert compare([run]).runs[0].facts["checkpoint"] == checkpoint


def test_nothing_is_scored_where_the_result_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run")
    asked: list[Path] = []

    def refuse(path: Path, remedy: str) -> None:
        asked.append(path)
        raise StorageError("no")

    monkeypatch.setattr("lm.runs.evaluations.require_creatable", refuse)
    monkeypatch.setattr("lm.language.evaluate.token_nll", lambda *_, **__: pytest.fail("scored"))
    with pytest.raises(StorageError, match="no"):
        evaluate(run)
    assert asked == [run]


def test_a_run_of_another_program_is_named(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "a"), tmp_path / "talk"]
    evaluate(runs[0])
    keep_record(runs[1], "test", {"data": {"sha256": "d" * 64}}, {})
    (runs[1] / "config.json").write_text('{"family": "dialog"}')
    for others in (runs, runs[::-1], [runs[1] / "evaluation/test.json"]):
        with pytest.raises(StorageError, match="talk: a run of `dialog`, not of `lm`; only commands of"):
            compare(others)


def test_runs_evaluated_with_other_options_are_told_which(tmp_path: Path) -> None:
    runs = [tmp_path / "a", tmp_path / "b"]
    for run, name in zip(runs, ("test", "test.temperature"), strict=True):
        keep_record(keep_run(run), name, {"data": {"sha256": "d" * 64}}, {})
    (runs[1] / "evaluation" / "test.json").unlink()
    with pytest.raises(
        DataError, match=r"a: test; .*b: test.temperature.* same options .*--temperature-search"
    ):
        compare(runs)
