"""Evaluation and scoring of language models: every token once, whatever the window; refinements by hand."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lm.analysis.components import components_of_run
from lm.analysis.opened import text_of
from lm.arrays import Floats
from lm.config.named_data import split_of_run
from lm.console.shared_tables import evaluated
from lm.errors import ConfigError, DataError, StorageError
from lm.language import refinements
from lm.language.config import DataConfig
from lm.language.corpora.corpus import load_split
from lm.language.dynamic import dynamic
from lm.language.evaluate import (
    BLOCK,
    Text,
    blocks,
    evaluate,
    frequency_buckets,
    likelihood,
)
from lm.language.refinements import (
    MULTIPLIERS,
    Refinements,
    search_temperature,
    with_dropout,
)
from lm.language.results import TemperatureChoice
from lm.language.scoring import score_lines, token_nll
from lm.language.tables import evaluation_tables
from lm.language.task import score_streams
from lm.language.trained import TrainedLm
from lm.results import as_json
from lm.runs.checkpoint import CheckpointStore
from lm.trunks.recurrent import RecurrentRates
from tests.support.signals import signal_at
from tests.support.tiny_lm import CELLS, MIXTURE, cells, ids_of, mc_nll, tiny_codec, tiny_lm, write_run


def by_hand(trained: TrainedLm, ids: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """−log P of every token, one after the other."""
    state, last, nll = trained.model.initial_state(1), trained.codec.vocabulary.eos, []
    for token in ids.tolist():
        with torch.no_grad():
            outputs = trained.model(torch.tensor([[last]]), state)
            log_probs = trained.model.head.log_probs(outputs.hidden.last[0, 0], temperature)
        state, last = outputs.state, token
        nll.append(-float(log_probs[token]))
    return np.array(nll)


@pytest.mark.parametrize("best", [0, 1, 3])
def test_the_search_for_a_temperature_ends_after_its_patience(best: int) -> None:
    tried: list[float] = []

    def nll_at(multiplier: float) -> Floats:
        tried.append(multiplier)
        return np.full(2, abs(len(tried) - 1 - best) + 1.0)

    found = refinements._search(nll_at, "a text")
    assert len(tried) == min(best + refinements.FORGIVEN + 1, len(refinements.MULTIPLIERS))
    assert found.multiplier == refinements.MULTIPLIERS[best]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_every_cell_is_scored_alike_in_windows_and_drops_in_mc_passes(cell: dict[str, Any]) -> None:
    trained = tiny_lm(cell=cell, dropout=0.0)
    ids = ids_of(trained, 50)
    expected = by_hand(trained, ids, 1.0)
    for window in (1, 7, 64):
        np.testing.assert_allclose(token_nll(trained, ids, window=window), expected, rtol=0, atol=1e-12)
    trunk: Any = trained.model.layers
    trunk.rates = RecurrentRates(weight=0.5)
    sampler = with_dropout(trained.model, 1.0)
    assert not np.allclose(token_nll(trained, ids, model=sampler), expected, atol=1e-3)


@pytest.mark.parametrize("head", [{}, MIXTURE])
@pytest.mark.parametrize("temperature", [1.0, 0.8])
def test_every_token_is_scored_once_whatever_the_window(head: dict[str, Any], temperature: float) -> None:
    trained = tiny_lm(**head)
    ids = ids_of(trained, 50)
    expected = by_hand(trained, ids, temperature)
    for window in (1, 7, 50, 64):
        nll = token_nll(trained, ids, window=window, temperature=temperature)
        np.testing.assert_allclose(nll, expected, rtol=0, atol=1e-12)


def test_the_papers_way_leaves_out_the_first_token_and_divides_by_all() -> None:
    trained = tiny_lm()
    ids = ids_of(trained, 41)
    nll = token_nll(trained, ids, paper=True, window=7)
    with torch.no_grad():
        total, tokens = map(sum, zip(*score_streams(trained.model, [ids], 1, 0, paper=True), strict=True))
    assert (len(nll), tokens) == (40, 41)
    assert nll.sum() == pytest.approx(total, abs=1e-10)
    result = likelihood(nll, trained, Text("t", "t", ids, "x", None))
    assert result.nll == pytest.approx(total / 41, abs=1e-12)
    assert (result.tokens, result.scored) == (41, 40)
    with pytest.raises(DataError, match="too few"):
        token_nll(trained, ids[:1], paper=True)


def test_buckets_split_the_loss_by_training_count() -> None:
    trained = tiny_lm()
    ids = ids_of(trained, 400)
    nll = np.random.default_rng(1).uniform(0, 9, 400)
    rows = frequency_buckets(nll, trained, Text("t", "t", ids, "x", None))
    edges = [(0, 0), (1, 10), (11, 100), (101, 1000), (1001, 10_000), (10_001, None)]
    assert [(row.least, row.most) for row in rows] == edges
    counts = [trained.codec.vocabulary.counts[token] for token in ids]
    for row in rows:
        most = math.inf if row.most is None else row.most
        inside = [n for n, count in zip(nll, counts, strict=True) if row.least <= count <= most]
        assert row.tokens == len(inside) > 0
        assert row.nll == pytest.approx(np.mean(inside))
    assert sum(row.nll * row.share for row in rows) == pytest.approx(nll.mean())
    late = frequency_buckets(nll[1:], trained, Text("t", "t", ids, "x", None))
    assert sum(row.tokens for row in late) == 399
    without = frequency_buckets(nll[1:], trained, Text("t", "t", ids[1:], "x", None))
    assert late == without, "what is not scored is at the beginning"


def test_blocks_add_up() -> None:
    nll = np.random.default_rng(0).uniform(0, 9, 2 * BLOCK + 3)
    sums = blocks(nll)
    assert sums["tokens"] == [BLOCK, BLOCK, 3]
    assert sums["nll"] == pytest.approx([nll[:BLOCK].sum(), nll[BLOCK : 2 * BLOCK].sum(), nll[-3:].sum()])


def test_a_run_is_evaluated_and_keeps_the_result(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", lines=(120, 10, 15), **MIXTURE)
    told: list[tuple[int, int]] = []
    result = evaluate(run, wanted=Refinements(True, 2, 0.8), progress=lambda *at: told.append(at))
    trained = TrainedLm.load(run)
    lines = (tmp_path / "test.txt").read_text().split("\n")[:-1]
    ids = np.array([token for line in lines for token in trained.codec.encode(line)])
    expected = by_hand(trained, ids)
    measured = result.likelihood
    assert measured.nll == pytest.approx(expected.mean(), rel=1e-5)
    assert measured.perplexity == pytest.approx(math.exp(expected.mean()), rel=1e-4)
    assert measured.tokens == len(ids) == told[-1][0] / 6 == told[-1][1] / 6
    characters = sum(len(line) + 1 for line in lines)
    bits = expected.sum() / math.log(2) / characters
    assert measured.bits_per_character == pytest.approx(bits, rel=1e-5)
    search = result.refined["temperature_search"].choice
    assert isinstance(search, TemperatureChoice)
    values = [row.nll for row in search.searched]
    assert [row.multiplier for row in search.searched] == list(MULTIPLIERS[: len(values)])
    place = MULTIPLIERS.index(search.multiplier)
    assert values[place] == min(values)
    assert len(values) in (len(MULTIPLIERS), place + 3)
    found = {name: one.likelihood.nll for name, one in result.refined.items()}
    at_best = by_hand(trained, ids, 1 / search.multiplier).mean()
    assert found["temperature_search"] == pytest.approx(at_best, rel=1e-5)
    assert found["mc_dropout"] != measured.nll
    kept = json.loads((run / "evaluation" / f"{result.name}.json").read_text())
    assert kept["result"] == as_json(result)
    assert kept["result"]["perplexity"] == measured.perplexity
    assert sum(kept["contexts"]["nll"]) == pytest.approx(expected.sum(), rel=1e-5)
    assert {"temperature_search", "mc_dropout", "mc_temperature"} <= set(kept["contexts"])
    details = kept["details"]
    for passage in details["samples"]:
        at = slice(passage["index"], passage["index"] + len(passage["words"]))
        assert passage["words"] == trained.codec.vocabulary.words(ids[at].tolist())
        assert passage["nll"] == pytest.approx(expected[at].tolist(), rel=1e-4)
    whole = components_of_run(trained, ids)
    assert details["components"]["usage"] == pytest.approx(whole.prior.usage, rel=1e-4)
    tempered, sampler = kept["result"]["mc_temperature"], with_dropout(trained.model, 0.8)
    again = mc_nll(trained, sampler, ids, 2, tempered["temperature"])
    assert tempered["nll"] == pytest.approx(again.mean(), rel=1e-6)
    likelihoods, by_frequency, *lines = evaluation_tables(result)
    rows = cells(likelihoods)
    assert [row["measure"] for row in rows] == [
        *("perplexity", "nll", "bits_per_character", "tokens", "unknown_share"),
        *(
            "perplexity, best temperature",
            "perplexity, MC dropout",
            "perplexity, MC dropout, best temperature",
        ),
    ]
    assert float(rows[0]["value"].replace(",", "")) == pytest.approx(measured.perplexity, abs=0.005)
    assert list(cells(by_frequency)[0]) == ["times in training", "tokens", "share", "nll", "perplexity"]
    assert lines[-1] == f"kept as {result.name}"


def test_unknown_words_leave_no_bits_per_character_and_are_warned_of(tmp_path: Path) -> None:
    run, text = write_run(tmp_path / "run"), tmp_path / "own.txt"
    word = TrainedLm.load(run).codec.vocabulary.tokens[0]
    for last, known in (("<unk>", True), ("zyzzyva", False)):
        text.write_text(f"{word} {word} {last}\n")
        result = evaluate(run, str(text))
        assert result.subject.data.unknown_share == pytest.approx(1 / 3)
        assert (result.likelihood.bits_per_character is not None) == known
        *_, note, _ = evaluation_tables(result)
        assert "33.3% of the tokens are unknown to the run, and 0.0% of its own test split" in str(note)
        [share] = [row for row in cells(evaluation_tables(result)[0]) if row["measure"] == "unknown_share"]
        assert share["value"] == "33.3%"
    text.write_text("zyzzyva\n" * 9)
    with pytest.raises(DataError, match="100% of its tokens are unknown"):
        evaluate(run, str(text))
    text.write_text(f"{word} {word} zyzzyva\n")
    own = tmp_path / "test.txt"
    own.write_text(f"{word} {word} <unk>\n")
    for source in (None, str(text)):
        assert evaluate(run, source).subject.data.own_unknown_share is None, "as many as in the own text"
    own.write_text("zyzzyva\n" * 9)
    assert evaluate(run).subject.data.unknown_share == 1, "a split of the run, however small its vocabulary"
    own.unlink()
    assert evaluate(run, str(text)).subject.data.own_unknown_share is None, "no own text"


def test_an_ensemble_has_the_mean_of_probabilities(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "one"), write_run(tmp_path / "two", kind="mos", components=2)]
    models = [TrainedLm.load(run) for run in runs]
    ids = load_split(str(tmp_path / "test.txt"), models[0].codec).ids()
    mean = np.mean([np.exp(-token_nll(model, ids)) for model in models], axis=0)
    result = evaluate(runs[0], others=runs[1:])
    assert result.likelihood.nll == pytest.approx(-np.log(mean).mean(), abs=1e-9)
    assert result.name == "test.with-two"
    twice, once = evaluate(runs[1], others=[runs[1]]), evaluate(runs[1])
    assert twice.likelihood.nll == pytest.approx(once.likelihood.nll, abs=1e-9)
    with pytest.raises(ConfigError, match="leave out --temperature-search"):
        evaluate(runs[0], others=runs[1:], wanted=Refinements(temperature_search=True))
    (tmp_path / "else").mkdir()
    foreign = write_run(tmp_path / "else" / "run", codec=tiny_codec("char"))
    with pytest.raises(ConfigError, match="has another vocabulary"):
        evaluate(runs[0], others=[foreign])


def test_an_evaluation_is_filed_under_the_weights_that_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training finds better weights while the best ones are being read."""
    run = write_run(tmp_path / "run", lines=(40, 10, 10))
    store, load = CheckpointStore(run / "checkpoints"), TrainedLm.load
    better = {name: 1.5 * tensor for name, tensor in store.weights("best").items()}

    def slow(run: Path, checkpoint: str = "best") -> TrainedLm:
        trained = load(run, checkpoint)
        store.commit(5, {"model": better}, {}, {})
        return trained

    monkeypatch.setattr(TrainedLm, "load", slow)
    result = evaluate(run)
    assert result.subject.weights == store.fingerprint("best") == store.fingerprint("step-5")
    monkeypatch.undo()
    assert (
        result.likelihood
        == evaluate(run, checkpoint="step-5").likelihood
        != evaluate(run, checkpoint="step-3").likelihood
    )


def test_the_temperature_search_scores_as_evaluation_does(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", **MIXTURE)
    trained = TrainedLm.load(run)
    ids = load_split(str(tmp_path / "valid.txt"), trained.codec).ids()
    for paper in (False, True):
        search = search_temperature(trained, paper=paper)
        assert search.searched_tokens == len(ids) - paper
        for row in search.searched:
            nll = token_nll(trained, ids, paper=paper, temperature=1 / row.multiplier)
            assert row.nll == pytest.approx(nll.mean(), abs=1e-12)


def test_names_tell_what_is_unusual(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert evaluate(run).name == "test"
    assert evaluate(run, limit=20, compat="paper", checkpoint="step-3").name == "test.first-20.step-3.paper"
    assert evaluate(run, data=str(tmp_path / "valid.txt")).name == "valid"
    assert evaluate(run, limit=20).likelihood.tokens == 20
    other = tmp_path / "other" / "test.txt"
    other.parent.mkdir()
    other.write_text("you like the rain\n")
    assert evaluate(run, data=str(other)).name.startswith("test.")


def test_bad_requests_are_one_line_and_keep_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (tmp_path / "foreign.txt").write_text("ceci est du texte\n" * 9)
    (tmp_path / "empty.txt").write_text("")

    bad: list[tuple[type[Exception], dict[str, Any]]] = [
        (ConfigError, {"limit": 0}),
        (ConfigError, {"wanted": Refinements(mc_samples=-1)}),
        (ConfigError, {"wanted": Refinements(mc_samples=2, mc_rate=9.0)}),
        (DataError, {"data": str(tmp_path / "foreign.txt")}),
        (DataError, {"data": str(tmp_path / "empty.txt")}),
        (DataError, {"data": str(tmp_path / "none.txt")}),
        (StorageError, {"checkpoint": "step-4"}),
    ]
    for kind, options in bad:
        with pytest.raises(kind) as error:
            evaluate(run, **options)
        assert "\n" not in str(error.value)
    with pytest.raises(KeyboardInterrupt), signal_at(2, "nll"):
        evaluate(run)
    assert not (run / "evaluation").exists()


def test_a_missing_text_of_the_config_is_named_by_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = write_run(Path("run")).absolute()
    Path("elsewhere").mkdir()
    shutil.copy("test.txt", "elsewhere/other.txt")
    monkeypatch.chdir("elsewhere")
    told = (
        "{0}.txt: no such file or folder; it is data.{0} of the run's config, relative to the folder of the"
        " training; run the command in that folder"
    )
    wanted = Refinements(temperature_search=True)
    for act, split, remedy in (
        (lambda: evaluate(run), "test", ", or name a text with --data"),
        (lambda: dynamic(run), "test", ", or name a text with --data"),
        (lambda: dynamic(run, "other.txt"), "train", ""),
        (lambda: evaluate(run, "other.txt", wanted=wanted), "valid", ""),
        (lambda: text_of(TrainedLm.load(run), None, None), "test", ", or name a text with --data"),
    ):
        with pytest.raises(DataError) as error:
            act()
        assert str(error.value) == told.format(split) + remedy
    assert evaluate(run, "other.txt").name == "other"
    for source, end in (
        ("/none", "/none: no such file or folder; it is data.valid of the run's config; restore it"),
        ("", "data.valid of the run's config is empty; train with one"),
    ):
        with pytest.raises(DataError) as error:
            split_of_run(DataConfig(valid=source), "valid")
        assert str(error.value) == end


@pytest.mark.parametrize("independent", [False, True])
def test_lines_are_scored_after_the_lines_before_them(tmp_path: Path, independent: bool) -> None:
    run = write_run(tmp_path / "run")
    trained = TrainedLm.load(run)
    path = tmp_path / "some.txt"
    path.write_text("you like rain\n\nso the dog now\n" * 3)
    rows = list(score_lines(trained, path, independent=independent))
    lines = path.read_text().split("\n")[:-1]
    ids = [np.array(trained.codec.encode(line)) for line in lines]
    assert [row.line for row in rows] == list(range(1, 10))
    assert [row.tokens for row in rows] == [[*line.split(), "<eos>"] for line in lines]
    found = np.concatenate([row.log_probs for row in rows])
    whole = (
        np.concatenate([by_hand(trained, i) for i in ids])
        if independent
        else by_hand(trained, np.concatenate(ids))
    )
    np.testing.assert_allclose(found, -whole, atol=1e-5)
    for row in rows:
        assert row.nll == pytest.approx(-np.mean(row.log_probs))
        assert row.perplexity == pytest.approx(math.exp(row.nll))


def test_an_ensemble_has_the_parameters_of_all_its_models(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "one"), write_run(tmp_path / "two", kind="mos", components=2)]
    one, two = (evaluate(run).subject.parameters for run in runs)
    assert one != two
    both = evaluate(runs[0], others=runs[1:])
    assert both.subject.parameters == one + two
    assert evaluated(both.subject, both.ensemble_with) == f"{runs[0]} + {runs[1]} on test"
    assert evaluated(evaluate(runs[0], checkpoint="step-3").subject) == f"{runs[0]} on test, step-3"


@pytest.mark.parametrize(("share", "told"), [(0.92, False), (0.93, True)])
def test_nearly_the_nats_of_guessing_are_near_it(
    share: float, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run")
    words = len(TrainedLm.load(run).codec.vocabulary)
    nll = share * math.log(words)
    monkeypatch.setattr("lm.language.evaluate.token_nll", lambda *given, ids, **more: np.full(len(ids), nll))
    assert evaluate(run).near_guessing == told
