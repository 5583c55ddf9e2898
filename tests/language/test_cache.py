"""The continuous cache: equal to its formula, a distribution, and blind to the future."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lm.cli import main
from lm.errors import ConfigError, DivergenceError, Interrupted
from lm.language.adaptation import Adaptation, DynamicSetting, Statistics, gather
from lm.language.cache import SHARES, THETAS, CacheScores, CacheSetting, cache_scores, search_cache
from lm.language.corpora.corpus import load_split
from lm.language.refinements import search_temperature
from lm.language.scoring import token_nll
from lm.language.trained import TrainedLm
from tests.support.tiny_lm import ids_of, tiny_lm, write_run

HEADS: list[dict[str, Any]] = [{}, {"kind": "mos", "components": 3, "embedding_size": 6}]


def by_hand(trained: TrainedLm, ids: np.ndarray, size: int, theta: float, share: float) -> np.ndarray:
    """The whole distribution of every token, one after the other: (T, V)."""
    state, last = trained.model.initial_state(1), trained.codec.vocabulary.eos
    states: list[torch.Tensor] = []
    words: list[int] = []
    rows = []
    for token in ids.tolist():
        with torch.no_grad():
            outputs = trained.model(torch.tensor([[last]]), state)
            h = outputs.hidden.last[0, 0]
            p = trained.model.head.log_probs(h).exp()
        recent = list(zip(states, words, strict=True))[-size:]
        if recent:
            weights = [math.exp(theta * float(h @ key)) for key, _ in recent]
            p = (1 - share) * p
            for weight, (_, word) in zip(weights, recent, strict=True):
                p[word] += share * weight / sum(weights)
        rows.append(p)
        states.append(h)
        words.append(token)
        state, last = outputs.state, token
    return torch.stack(rows).numpy()


@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize(("size", "count"), [(1, 40), (20, 270), (1000, 40)])  # 270 is more than a window
def test_every_token_has_the_probability_of_the_formula(head: dict[str, Any], size: int, count: int) -> None:
    trained = tiny_lm(dropout=0.0, **head)
    ids = ids_of(trained, count)
    whole = by_hand(trained, ids, size, 0.4, 0.3)
    np.testing.assert_allclose(whole.sum(1), 1, rtol=1e-12)
    found = cache_scores(trained, trained.readings(ids), size, [0.0, 0.4]).nll(1, 0.3)
    np.testing.assert_allclose(found, -np.log(whole[np.arange(count), ids]), rtol=1e-9)


def test_without_a_share_it_is_the_model() -> None:
    trained = tiny_lm(dropout=0.0)
    ids = ids_of(trained, 50)
    scores = cache_scores(trained, trained.readings(ids), 10, [0.3])
    np.testing.assert_allclose(scores.nll(0, 0.0), token_nll(trained, ids), rtol=1e-12)


def test_a_token_is_scored_before_the_cache_contains_it() -> None:
    """What comes later changes nothing before it, not even in the same window."""
    trained = tiny_lm(dropout=0.0)
    ids = ids_of(trained, 60)
    other = ids.copy()
    other[30:] = other[30:][::-1]
    both = [cache_scores(trained, trained.readings(each), 20, [0.5]).nll(0, 0.4) for each in (ids, other)]
    np.testing.assert_array_equal(both[0][:30], both[1][:30])
    assert (both[0][30:] != both[1][30:]).any()


def test_before_its_first_word_the_cache_knows_nothing() -> None:
    """The log-probabilities of words outside of the cache are −∞ exactly, for every θ."""
    trained = tiny_lm(dropout=0.0)
    ids = ids_of(trained, 50)
    found = cache_scores(trained, trained.readings(ids), 3, [0.0, 0.7]).cache
    known = [ids[place] in ids[max(0, place - 3) : place] for place in range(len(ids))]
    assert 0 < sum(known) < len(ids)
    np.testing.assert_array_equal(np.isfinite(found), [known] * 2)
    assert (found[:, ~np.array(known)] == -np.inf).all()


def test_memory_and_result_do_not_depend_on_blocks_and_the_number_of_thetas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained = tiny_lm(dropout=0.0)
    ids = ids_of(trained, 270)
    whole = cache_scores(trained, trained.readings(ids), 200, [0.3]).cache
    largest = 0
    multiply = torch.Tensor.__matmul__

    def watched(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        nonlocal largest
        product = multiply(one, other)
        largest = max(largest, product.numel())
        return product

    monkeypatch.setattr("lm.language.cache._BLOCK", 1000)
    monkeypatch.setattr(torch.Tensor, "__matmul__", watched)
    found = cache_scores(trained, trained.readings(ids), 200, [0.1, 0.3, 0.5]).cache
    np.testing.assert_allclose(found[1], whole[0], rtol=1e-12)
    assert 0 < largest <= 1000


@pytest.mark.parametrize("method", ["nll", "log_probs"])
def test_static_scores_that_are_of_no_distribution_are_refused(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    trained, ids = tiny_lm(dropout=0.0), np.arange(40) % 5
    assert len(token_nll(trained, ids)) == len(ids)
    honest = getattr(trained.model.head, method)
    monkeypatch.setattr(trained.model.head, method, lambda *given, **named: honest(*given, **named) + 0.1)
    with pytest.raises(DivergenceError, match="probabilities sum to"):
        token_nll(trained, ids)


def test_probabilities_that_do_not_sum_to_one_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = tiny_lm(dropout=0.0)
    honest = trained.model.head.log_probs
    monkeypatch.setattr(trained.model.head, "log_probs", lambda hidden: honest(hidden) + 0.001)
    with pytest.raises(DivergenceError, match=r"sum to 1\.001"):
        cache_scores(trained, trained.readings(ids_of(trained, 9)), 4, [0.1])


def test_the_search_finds_the_best_of_its_grid(tmp_path: Path) -> None:
    trained = TrainedLm.load(write_run(tmp_path / "run"))
    found = search_cache(trained, 30, trained.readings)
    ids = load_split(trained.config.data.valid, trained.codec).ids()
    scores = cache_scores(trained, trained.readings(ids), 30, THETAS)
    means = {
        (theta, share): scores.nll(place, share).mean()
        for place, theta in enumerate(THETAS)
        for share in SHARES
    }
    assert means[found.theta, found.share] == pytest.approx(min(means.values()))
    assert len(found.searched) == len(THETAS)
    assert found.searched_tokens == len(ids)


def test_the_command_keeps_the_result_beside_the_static_one(
    ending: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    code, out, err = ending(main, "evaluate", "a", "--cache", "50", "--json", "c.json")
    assert (code, err) == (0, "")
    result = json.loads(Path("c.json").read_text())
    assert result["name"] == "test.cache-50"
    assert "perplexity, continuous cache" in out
    assert "cache of 50 words" in out
    given = f"50,{result['cache']['theta']},{result['cache']['share']}"
    assert ending(main, "evaluate", "a", "--cache", given, "--json", "d.json")[::2] == (0, "")
    again = json.loads(Path("d.json").read_text())["cache"]
    assert again["perplexity"] == result["cache"]["perplexity"]
    kept = json.loads(Path("a/evaluation/test.cache-50.json").read_text())
    assert sum(kept["contexts"]["cache"]) == pytest.approx(result["cache"]["nll"] * result["cache"]["tokens"])


def test_in_dynamic_evaluation_the_cache_has_the_adapted_model() -> None:
    trained = tiny_lm(dropout=0.0)
    ids = ids_of(trained, 61)
    statistics = Statistics.empty(trained.model, 2)
    gather(trained, [ids], statistics)
    still, mild = DynamicSetting(0.0, 0.0), DynamicSetting(1e-2, 1e-3)

    def scores(setting: DynamicSetting, text: np.ndarray = ids) -> CacheScores:
        return cache_scores(trained, Adaptation(trained, statistics, setting).readings(text), 20, [0.5])

    static = cache_scores(trained, trained.readings(ids), 20, [0.5])
    np.testing.assert_allclose(scores(still).nll(0, 0.3), static.nll(0, 0.3), rtol=1e-9)
    adapted = scores(mild)
    np.testing.assert_allclose(-adapted.model, Adaptation(trained, statistics, mild).nll(ids), rtol=1e-9)
    assert not np.allclose(adapted.cache[0, 10:], static.cache[0, 10:])
    begun = scores(mild, ids[:23]).nll(0, 0.3)
    np.testing.assert_allclose(adapted.nll(0, 0.3)[:23], begun, rtol=1e-9)


@pytest.mark.parametrize(
    "options",
    [("50",), ("50,0.5,0.1", "--compat", "paper"), ("50,0.5,0.1", "--mc-samples", "2")],
    ids=str,
)
def test_lm_dynamic_reports_a_cache(
    ending: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    write_run(tmp_path / "a", lines=(120, 10, 15))
    monkeypatch.chdir(tmp_path)
    dynamic = ("dynamic", "a", "--lr", "1e-3", *options[1:])
    assert ending(main, *dynamic, "--json", "plain.json")[::2] == (0, "")
    code, out, err = ending(main, *dynamic, "--cache", options[0], "--json", "cached.json")
    assert (code, err) == (0, "")
    assert "perplexity, continuous cache" in out
    plain, cached = (json.loads(Path(name).read_text()) for name in ("plain.json", "cached.json"))
    assert cached["perplexity"] == plain["perplexity"]
    assert cached["static"]["perplexity"] == plain["static"]["perplexity"]
    assert cached["cache"]["perplexity"] != plain["perplexity"]


def test_a_search_without_its_text_is_refused_before_the_work(
    ending: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", lines=(120, 20, 20))
    (tmp_path / "valid.txt").unlink()
    for command in ("evaluate", "dynamic"):
        for search in (["--temperature-search"], ["--cache", "30"]):
            code, _, err = ending(main, command, str(run), *search)
            assert (code, err.count("\n")) == (3, 1)
            told = "no such file or folder; it is data.valid of the run's config; restore it"
            assert err.endswith(f"valid.txt: {told}\n")
    assert not (run / "dynamic").exists()
    assert ending(main, "evaluate", str(run), "--cache", "30,1,0.1")[0] == 0


def test_a_search_that_stops_restores_the_weights(tmp_path: Path) -> None:
    trained = TrainedLm.load(write_run(tmp_path / "run"))
    before = [parameter.clone() for parameter in trained.model.parameters()]
    statistics = Statistics.empty(trained.model, 2)
    gather(trained, [ids_of(trained, 61)], statistics)
    adapted, calls = Adaptation(trained, statistics, DynamicSetting(1e-2, 1e-3)), []

    def interrupt(done: int, total: int) -> None:
        calls.append(total)
        moved = any(not p.equal(q) for p, q in zip(trained.model.parameters(), before, strict=True))
        if moved:
            raise Interrupted("stop")

    with pytest.raises(Interrupted):
        search_cache(trained, 30, adapted.readings, interrupt)
    assert calls[0] == len(load_split(trained.config.data.valid, trained.codec).ids())
    assert all(p.equal(q) for p, q in zip(trained.model.parameters(), before, strict=True))


def test_a_rate_at_which_adapting_diverges_is_named_also_with_a_cache(
    ending: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    code, _, err = ending(main, "dynamic", "a", "--lr", "1e300", "--cache", "5,1,0.1")
    assert code == 5
    assert "lower --lr" in err


@pytest.mark.parametrize(
    "text",
    ["", "x", "0", "-3", "5,1", "5,1,1", "5,-1,0.1", "5,nan,0.1", "5,1e300,0.1", "5,1,0.1,2", "9" * 30],
)
def test_a_bad_setting_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--cache"):
        CacheSetting.parse(text)


def test_a_search_reads_the_beginning_of_the_validation_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lm.language.scoring.SEARCHED", 30)
    run = TrainedLm.load(write_run(tmp_path / "run"))
    assert search_temperature(run).searched_tokens == 30
