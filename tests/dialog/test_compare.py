"""Comparison: the paired bootstrap behaves as one, and only comparable runs are compared."""

import io
import json
import re
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dialog.compare import compare, comparison_tables
from lm.console.tables import Table
from lm.errors import ConfigError, DataError, StorageError
from lm.runs.compare import Resampling
from tests.support.kept_records import DIALOGS, TURNS, edit_record, keep_scores


def p_of(*runs: Path, seed: int = 1) -> dict[str, float]:
    p: dict[str, float] = compare(runs, resamples=2000, seed=seed).runs[1].p
    return p


def test_equal_runs_do_not_differ(tmp_path: Path) -> None:
    p = p_of(keep_scores(tmp_path / "a"), keep_scores(tmp_path / "b"))
    assert set(p.values()) == {1.0}
    versions, orders, sides = ("bleu", "bleu_legacy"), "1234", ("precision", "recall")
    assert set(p) == {"perplexity", *(f"{v}/{n}/{s}" for v in versions for n in orders for s in sides)}


def test_the_interval_of_a_score_contains_it(tmp_path: Path) -> None:
    row = compare([keep_scores(tmp_path / "a")], resamples=1000).runs[0]
    for name, value in (("perplexity", row.perplexity), ("bleu/2/recall", row.score("bleu/2/recall"))):
        found = row.interval[name]
        assert found.estimate == pytest.approx(value)
        assert found.low < value < found.high


def test_a_difference_between_models_near_guessing_is_noise(tmp_path: Path) -> None:
    guess = keep_scores(tmp_path / "a", near_guessing=True)
    worse = keep_scores(tmp_path / "b", seed=2, better=0.3, near_guessing=True)
    better = keep_scores(tmp_path / "c", seed=2, better=0.3)
    assert set(p_of(guess, worse).values()) == {None}
    assert max(p_of(guess, better).values()) < 0.01
    comparison = compare([guess, worse, better], resamples=1000)
    assert [row.near_guessing for row in comparison.runs] == [True, True, False]
    assert "near guessing" in str(comparison_tables(comparison)[-1])


def test_clear_differences_are_significant_in_both_directions(tmp_path: Path) -> None:
    a, b = keep_scores(tmp_path / "a"), keep_scores(tmp_path / "b", seed=2, better=0.3)
    assert max(p_of(a, b).values()) < 0.01
    assert max(p_of(b, a).values()) < 0.01
    assert min(p_of(a, b).values()) == pytest.approx(2 / 2001), "never 0"


def test_noise_is_rarely_significant(tmp_path: Path) -> None:
    """Two runs of the same quality: p below .1 about one time in ten, over 17 scores and 12 pairs."""
    first = keep_scores(tmp_path / "a", seed=99)
    p = [v for seed in range(12) for v in p_of(first, keep_scores(tmp_path / "b", seed=100 + seed)).values()]
    assert 0.0 < np.mean(np.array(p) < 0.1) < 0.25
    assert 0.3 < np.mean(p) < 0.7


def test_p_values_equal_a_plain_bootstrap_over_conversations(tmp_path: Path) -> None:
    a, b = keep_scores(tmp_path / "a"), keep_scores(tmp_path / "b", seed=3, better=0.02)
    left, right = (json.loads((run / "evaluation/test.json").read_text())["contexts"] for run in (a, b))
    tokens = np.array(left["tokens"]).reshape(DIALOGS, TURNS)
    nll = (np.array(right["nll"]) - left["nll"]).reshape(DIALOGS, TURNS)
    bleu = (np.array(right["bleu"]["recall"]) - left["bleu"]["recall"])[:, 2].reshape(DIALOGS, TURNS)
    rng = np.random.default_rng(5)
    worse, higher = [], []
    for _ in range(2000):
        drawn = rng.integers(0, DIALOGS, DIALOGS)
        worse.append(nll[drawn].sum() / tokens[drawn].sum())
        higher.append(bleu[drawn].mean())
    p = p_of(a, b)
    for differences, score in ((worse, "perplexity"), (higher, "bleu/3/recall")):
        tail = min(np.mean(np.array(differences) <= 0), np.mean(np.array(differences) >= 0))
        assert p[score] == pytest.approx(2 * tail, abs=0.05)


def test_the_seed_fixes_the_p_values(tmp_path: Path) -> None:
    a, b = keep_scores(tmp_path / "a"), keep_scores(tmp_path / "b", seed=2, better=0.01)
    assert p_of(a, b) == p_of(a, b)
    assert p_of(a, b) != p_of(a, b, seed=2)


def test_too_few_conversations_have_no_p_value(tmp_path: Path) -> None:
    runs = [keep_scores(tmp_path / name) for name in "ab"]
    for run in runs:
        damage(run, "contexts", "dialog", value=[0] * (DIALOGS * TURNS))
    assert set(p_of(*runs).values()) == {None}
    scores, reason, _ = comparison_tables(compare(runs))
    assert isinstance(scores, Table)
    assert (
        reason == "no p-values: a paired bootstrap needs at least 5 units, but the text has 1 unit (dialog)"
    )


@pytest.mark.parametrize("width", [60, 80, 120, 300])
def test_the_tables_show_every_score_of_every_run_and_every_p(tmp_path: Path, width: int) -> None:
    from rich.console import Console

    names = ("softmax", "moc", "mos", "moss")
    runs = [keep_scores(tmp_path / name, seed=seed, better=0.1 * seed) for seed, name in enumerate(names)]
    comparison = compare(runs)
    assert comparison.bootstrap == Resampling(10_000, 1, "dialog", DIALOGS)
    assert comparison.runs[0].p == {}
    console = Console(width=width, record=True, file=io.StringIO())
    for part in comparison_tables(comparison):
        console.print(part)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert str(tmp_path) in re.sub(r"\s", "", text), "the common folder is named once"
    for row in comparison.runs:
        for value in (f"{row.perplexity:.2f}", f"{row.score('bleu/4/recall'):.3f}", "1,234,567"):
            assert value in text
        assert {f"{p:.4f}" for p in row.p.values()} <= set(text.split())


def test_one_run_alone_is_a_table_too(tmp_path: Path) -> None:
    comparison = compare([keep_scores(tmp_path / "a", head="[red]x")])
    scores, caption = comparison_tables(comparison)
    assert isinstance(scores, Table)
    assert scores.cells()[0]["head"] == "[red]x"
    assert caption == "All runs: checkpoint best, method beam, beam 10"


def test_runs_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    a = keep_scores(tmp_path / "a")
    other = keep_scores(tmp_path / "b", data={"sha256": "e"})
    with pytest.raises(DataError, match=r"b and .*a: evaluated on different data"):
        compare([a, other])
    with pytest.raises(DataError, match="their vocabularies differ"):
        compare([a, keep_scores(tmp_path / "c", vocabulary_sha256="w")])
    with pytest.raises(StorageError, match="no such run"):
        compare([a, tmp_path / "empty"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match="empty: not the folder of a run"):
        compare([a, tmp_path / "empty"])
    (tmp_path / "empty" / "evaluation").mkdir()
    with pytest.raises(
        DataError, match=r"no evaluation in common .*a: test; .*empty: none.*the same options \(--data, --ref"
    ):
        compare([a, tmp_path / "empty"])
    with pytest.raises(DataError, match=r"empty: not evaluated yet; run `dialog evaluate` on it"):
        compare([tmp_path / "empty"])
    (tmp_path / "empty" / "config.json").write_text('{"family": "lm"}')
    with pytest.raises(
        StorageError, match="empty: a run of `lm`, not of `dialog`; only commands of `lm` open it"
    ):
        compare([a, tmp_path / "empty"])
    with pytest.raises(DataError, match="has no evaluation valid"):
        compare([a], name="valid")
    for part in ("test.beam-1", "test.first-30"):
        keep_scores(tmp_path / "a", name=part)
    assert compare([a]).name == "test"
    keep_scores(tmp_path / "a", name="valid")
    with pytest.raises(
        ConfigError, match=r"choose one with --name: test, test\.beam-1, test\.first-30, valid"
    ):
        compare([a])
    assert compare([a], name="valid").name == "valid"
    with pytest.raises(ConfigError, match="at least 1000"):
        compare([a], name="test", resamples=10)
    with pytest.raises(ConfigError, match="no run"):
        compare([])


def test_runs_of_two_directions_are_refused(tmp_path: Path) -> None:
    runs = [
        keep_scores(tmp_path / name, data={"sha256": name, "source": "t"}) for name in ("forward", "backward")
    ]
    for run in runs:
        config = {"config": {"data": {"direction": run.name}}, "provenance": {}}
        (run / "config.json").write_text(json.dumps({"family": "dialog"} | config))
    with pytest.raises(DataError, match="a backward run predicts other texts; compare runs of one data"):
        compare(runs)


def damage(run: Path, *keys: str, value: Any = None) -> None:
    """Change what the evaluation has under the keys, or delete it."""

    def change(record: dict[str, Any]) -> None:
        *outer, last = keys
        inner = reduce(getitem, outer, record)
        if value is None:
            del inner[last]
        else:
            inner[last] = value

    edit_record(run / "evaluation/test.json", change)


@pytest.mark.parametrize(
    ("column", "message"), [("tokens", "equal data.max_response"), ("turn", "--limit"), ("dialog", "--limit")]
)
def test_runs_that_count_other_tokens_are_refused(tmp_path: Path, column: str, message: str) -> None:
    a, b = keep_scores(tmp_path / "a"), keep_scores(tmp_path / "b")
    damage(b, "contexts", column, value=[99] * (DIALOGS * TURNS))
    with pytest.raises(DataError, match=message):
        compare([a, b])


@pytest.mark.parametrize(
    "keys",
    [
        ("result", "head"), ("result", "data", "sha256"), ("result", "decode", "beam"),
        ("contexts", "tokens"),
        ("result", "bleu", "4", "recall"), ("contexts", "bleu_legacy"), ("result", "vocabulary_sha256"),
    ],
)  # fmt: skip
def test_missing_keys_are_named(tmp_path: Path, keys: tuple[str, ...]) -> None:
    damage(keep_scores(tmp_path / "a"), *keys)
    with pytest.raises(StorageError, match=rf"test\.json: has no {'.'.join(keys)}.*dialog evaluate"):
        compare([tmp_path / "a"])


@pytest.mark.parametrize("value", [[1.0], 3])
def test_columns_that_do_not_match_are_damage(tmp_path: Path, value: object) -> None:
    damage(keep_scores(tmp_path / "a"), "contexts", "nll", value=value)
    with pytest.raises(StorageError, match=r"test\.json: its contexts do not match"):
        compare([tmp_path / "a"])


def test_the_caption_warns_of_different_decoding(tmp_path: Path) -> None:
    a, b = keep_scores(tmp_path / "a"), keep_scores(tmp_path / "b")
    assert comparison_tables(compare([a, b]))[-1] == "All runs: checkpoint best, method beam, beam 10"
    keep_scores(b, checkpoint="last", decode={"method": "beam", "beam": 10, "nbest": 1})
    caption = str(comparison_tables(compare([a, b]))[-1])
    assert caption.startswith("warning: checkpoint, nbest differ between the runs. ")
    assert "b: checkpoint last, method beam, beam 10, nbest 1" in caption


def test_p_values_of_few_conversations_come_with_a_warning(tmp_path: Path) -> None:
    runs = [keep_scores(tmp_path / name, seed=seed) for seed, name in enumerate("ab")]
    assert len(comparison_tables(compare(runs))) == 3, "20 conversations are enough"
    for run in runs:
        damage(run, "contexts", "dialog", value=[number % 19 for number in range(DIALOGS * TURNS)])
    _scores, _p, warning, _ = comparison_tables(compare(runs))
    assert str(warning).startswith("warning: p-values of only 19 units (dialog) say little")


def test_the_caption_has_only_keys_that_take_part(tmp_path: Path) -> None:
    sampled = {"method": "sample", "beam": 10, "nbest": 5}
    a = keep_scores(tmp_path / "a", decode=sampled)
    b = keep_scores(tmp_path / "b", decode=sampled | {"beam": 3})
    assert comparison_tables(compare([a, b]))[-1] == "All runs: checkpoint best, method sample"
    searched = {"method": "beam", "beam": 3, "nbest": 5}
    keep_scores(a, decode=searched)
    keep_scores(b, decode=searched | {"temperature": 0.7, "seed": 3})
    assert comparison_tables(compare([a, b]))[-1] == "All runs: checkpoint best, method beam, beam 3"


@pytest.mark.parametrize(
    "content", ["", "{}", "[1]", '{"format": 2}', '{"format": 1, "result": 3, "contexts": {}}']
)
def test_damaged_evaluations_are_named(tmp_path: Path, content: str) -> None:
    path = keep_scores(tmp_path / "a") / "evaluation/test.json"
    path.write_text(content)
    with pytest.raises(StorageError, match=r"test\.json: "):
        compare([tmp_path / "a"])
