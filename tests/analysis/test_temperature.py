"""Temperatures by word, by place in the sentence and over training: equal to what they stand for."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lm.analysis.examples import Wanted, compare_runs, example_tables
from lm.analysis.temperature import (
    Profile,
    draw_temperatures,
    occurrences,
    places,
    positions,
    profile,
    temperature_report,
    temperature_tables,
)
from lm.bootstrap import Resamples
from lm.cli import main
from lm.console.options import RESAMPLES
from lm.disk.jsonfile import canonical_json
from lm.errors import DataError
from lm.language.evaluate import BLOCK
from lm.results import as_json
from lm.runs.checkpoint import CheckpointStore
from tests.support.tiny_lm import cells, ids_of, tiny_lm, write_run

EOS = 0


def sentence(*lengths: int) -> np.ndarray:
    return np.concatenate([np.append(np.full(length, 1), EOS) for length in lengths])


def test_places_are_the_ends_and_the_middle_of_sentences_of_fifteen_to_twenty_five_words() -> None:
    ids = np.append(sentence(14, 15, 25, 26, 0, 20), np.full(20, 1))
    first, longest, other = places(ids, EOS)
    assert first.tolist() == [*range(15, 30)]
    assert longest.tolist() == [*range(31, 36), *range(41, 46), *range(51, 56)]
    assert other[[0, 4, 10, 14]].tolist() == [85, 89, 100, 104]
    assert places(sentence(3), EOS).shape == (0, 15)


def test_a_profile_is_the_mean_over_contexts_and_over_words() -> None:
    trained = tiny_lm(temperature="sigmoid")
    ids = ids_of(trained, 50)
    found = profile(trained, ids)
    hidden = torch.cat([states.last[:, 0] for states, _ in trained.readings(ids)])
    with torch.no_grad():
        tau = trained.model.head.temperatures(hidden).numpy()
    np.testing.assert_allclose(found.by_word, tau.mean(0))
    np.testing.assert_allclose(found.spread, tau.std(0))
    np.testing.assert_allclose(found.of_contexts, tau.mean(1))
    np.testing.assert_allclose(found.at_words, tau[np.arange(50), ids])
    words = trained.codec.vocabulary.tokens
    report = temperature_report(found, words)
    assert report.mean == pytest.approx(tau.mean())
    assert report.hottest[0].word == words[tau.mean(0).argmax()]
    assert report.coldest[0].word == words[tau.mean(0).argmin()]
    canonical_json(as_json(report))


def test_the_published_temperature_is_constant_on_the_average_of_words_in_every_place() -> None:
    trained = tiny_lm(temperature="contextual")
    vocabulary = trained.codec.vocabulary
    ids = np.where(sentence(15, 20, 25) == EOS, vocabulary.eos, (vocabulary.eos + 1) % len(vocabulary))
    found = profile(trained, ids.astype(np.uint16))
    np.testing.assert_allclose(found.of_contexts, 2 * (1 + 1 / len(vocabulary)), rtol=1e-12)
    report = temperature_report(found, vocabulary.tokens)
    assert report.sentences == 3
    assert [row.part for row in report.positions] == ["first"] * 5 + ["middle"] * 5 + ["last"] * 5
    assert report.positions[7].mean == pytest.approx(found.at_words[found.places[:, 7]].mean())
    assert {row.interval for row in report.positions} == {None}
    assert {row["95 % from τ"] for row in cells(temperature_tables({"a": report})[1])} == {"–"}


def test_intervals_of_places_are_of_resampled_blocks(tmp_path: Path) -> None:
    """Temperatures that are constant in a block leave one value a block, however many sentences it has."""
    ids = sentence(*[20] * 400)
    at = places(ids, EOS)
    block = at[:, 0] // BLOCK
    of_block = np.random.default_rng(1).uniform(1, 2, block[-1] + 1)
    at_words = np.ones(len(ids))
    at_words[at] = of_block[block][:, None]
    found = Profile(np.ones(2), np.ones(2), at_words, np.ones(len(ids)), at)
    report = temperature_report(found, ["a", "b"])
    numbers = np.bincount(block)
    counts = Resamples(len(numbers), RESAMPLES, 1)
    low, high = np.quantile(counts @ (numbers * of_block) / (counts @ numbers), (0.025, 0.975))
    for row in report.positions:
        assert row.interval == pytest.approx((row.mean, low, high))
    assert high - low > 4 * 1.96 * of_block[block].std() / len(block) ** 0.5
    models, table = temperature_tables({"a": report})[:2]
    shown = cells(table)[0]
    assert (shown["95 % from τ"], shown["to τ"]) == (f"{low:.6f}", f"{high:.6f}")
    (row, *_) = csv.DictReader(models.csv().splitlines())
    assert float(row["mean τ"]) == report.mean, "not rounded"
    draw_temperatures({"a": found}, [3, 4], [tmp_path / "t.png"])
    assert (tmp_path / "t.png").stat().st_size


def test_a_small_deviation_around_a_large_mean_is_kept() -> None:
    trained = tiny_lm(temperature="contextual")
    assert trained.model.head.temperature is not None
    with torch.no_grad():
        for parameter in trained.model.head.temperature.parameters():
            parameter.mul_(1e-5)
    ids = ids_of(trained, 50)
    hidden = torch.cat([states.last[:, 0] for states, _ in trained.readings(ids)])
    with torch.no_grad():
        tau = trained.model.head.temperatures(hidden).numpy()
    assert 0 < tau.std(0).max() < 1e-8
    np.testing.assert_allclose(profile(trained, ids).spread, tau.std(0), rtol=1e-4)


def test_a_run_without_temperatures_is_named_and_a_missing_word_before_any_work(
    ending: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "run", temperature="constant")
    write_run(tmp_path / "other", temperature="additive")
    monkeypatch.chdir(tmp_path)
    code, _, err = ending(main, "analyze", "temperature", "other", "run")
    assert code == 2
    assert err.startswith("run: head.temperature = 'constant' is the same for every word; name runs")
    monkeypatch.setattr("lm.analysis.temperature.profile", None)  # is not called
    code, _, err = ending(main, "analyze", "temperature", "other", "--word", "nope")
    assert (code, "--word nope: not in the text" in err) == (3, True)
    Path("file").touch()
    code, _, err = ending(main, "analyze", "temperature", "other", "--out", "file")
    assert (code, "file: not a directory" in err) == (4, True)


def test_a_text_without_a_token_is_refused() -> None:
    trained = tiny_lm(temperature="additive")
    with pytest.raises(DataError, match="too few to score"):
        profile(trained, ids_of(trained, 0))


def test_the_command_shows_every_checkpoint(
    ending: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run", temperature="sigmoid")
    store = CheckpointStore(run / "checkpoints")
    store.commit(5, {"model": store.weights("step-3")}, {}, {})
    monkeypatch.chdir(tmp_path)
    code, out, err = ending(main, "analyze", "temperature", "run", "--over-training", "--json", "t.json")
    assert (code, err) == (0, "")
    assert "run step-3" in out
    assert "run step-5" in out
    assert {path.name for path in Path("run/analysis").iterdir()} == {"temperature.png", "temperature.svg"}
    result = json.loads(Path("t.json").read_text())["runs"]
    assert [row["checkpoint"] for row in result.values()] == ["step-3", "step-5"]
    assert all(0.5 < row["coldest"][0]["mean"] < row["hottest"][0]["mean"] < 3.5 for row in result.values())


def test_every_place_of_a_word_has_its_temperature(
    ending: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = tiny_lm(temperature="sigmoid")
    ids, words = ids_of(trained, 50), trained.codec.vocabulary.tokens
    word = words[ids[20]]
    found = profile(trained, ids)
    places = occurrences(found, ids, words, positions(ids, words, word))
    assert [place.position for place in places] == np.flatnonzero(ids == ids[20]).tolist()
    assert [place.temperature for place in places] == found.at_words[ids == ids[20]].tolist()
    here = next(place for place in places if place.position == 20)
    assert here.context == [words[index] for index in ids[12:20]]
    with pytest.raises(DataError, match=r"--word no\\nword: not in the text"):
        positions(ids, words, "no\nword")
    write_run(tmp_path / "run", temperature="sigmoid")
    monkeypatch.chdir(tmp_path)
    code, out, err = ending(main, "analyze", "temperature", "run", "--word", "rain", "--json", "t.json")
    assert (code, err) == (0, "")
    result = json.loads(Path("t.json").read_text())["runs"]["run"]
    text = (tmp_path / "test.txt").read_text().split()
    assert len(result["occurrences"]) == text.count("rain") > 0
    assert '"rain" in its contexts, by run' in out


def test_guesses_have_their_temperatures(tmp_path: Path) -> None:
    hot, plain = tiny_lm(temperature="sigmoid"), tiny_lm()
    ids = ids_of(hot, 300)
    result = compare_runs(plain, hot, ids, Wanted(count=4, margin=0.0))
    with torch.no_grad():
        states = torch.cat([states.last[:, 0] for states, _ in hot.readings(ids)])
        tau = hot.model.head.temperatures(states)
    words = hot.codec.vocabulary.tokens
    assert len(result.examples) == 4
    for example in result.examples:
        row = tau[example.position]
        assert example.temperature == {"b": pytest.approx(float(row[words.index(example.target)]))}
        for guess in example.guesses["b"]:
            assert guess.temperature == pytest.approx(float(row[words.index(guess.word)]))
        assert all(guess.temperature is None for guess in example.guesses["a"])
    shown = cells(example_tables("a", "b", result)[1])
    assert " τ " in shown[1]["guesses"]
    assert " τ " not in shown[0]["guesses"]
