"""Dynamic evaluation: the published algorithm in both scalings, and a run that is left as it was."""

import json
import math
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from lm.cells.lstm import WeightDropLSTM
from lm.errors import ConfigError, DataError, DivergenceError, Interrupted
from lm.language.adaptation import (
    DYNAMIC_SETTINGS,
    Adaptation,
    DynamicSetting,
    Scaling,
    Statistics,
    adaptable,
    factors,
    gather,
)
from lm.language.corpora.corpus import load_split
from lm.language.dynamic import dynamic
from lm.language.evaluate import evaluate
from lm.language.scoring import token_nll
from lm.language.setting_search import Grid
from lm.language.tables import dynamic_tables
from lm.language.trained import TrainedLm
from tests.support.tiny_lm import CELLS, cells, ids_of, tiny_lm, write_run

HEADS: list[dict[str, Any]] = [
    {},
    {"kind": "mos", "components": 3, "embedding_size": 6},
    {"kind": "moss", "components": 2, "embedding_size": 6, "learn_shift": True, "learn_context_scale": True},
]
ORIGINAL = DynamicSetting(0.05, 0.3, 0.02, "original")


def statistics_of(trained: TrainedLm, tokens: int = 403, streams: int = 8, **options: Any) -> Statistics:
    statistics = Statistics.empty(trained.model, streams)
    gather(trained, [ids_of(trained, tokens, seed=9)], statistics, **options)
    return statistics


def weights(trained: TrainedLm) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trained.model.parameters()]


def as_published(
    trained: TrainedLm, train: np.ndarray, ids: np.ndarray, setting: DynamicSetting, streams: int
) -> tuple[list[float], list[torch.Tensor], int]:
    """The authors' algorithm, plainly: sums over all windows of training, then windows of 5, one stream.

    Returns the loss of every token, the last weights, and n.
    """
    model, eos = trained.model, trained.codec.vocabulary.eos
    parameters = list(model.parameters())
    squares, count = [torch.zeros_like(p) for p in parameters], 0
    rows = len(train) // streams
    grid = torch.tensor(train[: rows * streams].astype(np.int64)).view(streams, rows).t()
    first = torch.tensor([[eos, *grid[-1, :-1].tolist()]])
    before = torch.cat((first, grid[:-1]))
    state = model.initial_state(streams)
    for start in range(0, rows, 5):
        outputs = model(before[start : start + 5], state)
        state = outputs.state.detached()
        targets = grid[start : start + 5, :, None]
        loss = -model.head.log_probs(outputs.hidden).gather(-1, targets).mean()
        for square, g in zip(squares, torch.autograd.grad(loss, parameters), strict=True):
            square += g**2
        count += 1
    if setting.scaling == "original":
        rms = [square.sqrt() for square in squares]
        mean = sum(r.mean() for r in rms)
    else:
        rms = [(square / count).sqrt() for square in squares]
        mean = sum(r.mean() for r in rms) / len(rms)
        if setting.scaling == "elements":
            mean = torch.cat([r.flatten() for r in rms]).mean()
    decay = [(r / mean).clamp(max=1 / setting.decay) for r in rms]
    theta0 = weights(trained)
    losses: list[float] = []
    state = model.initial_state(1)
    said = torch.tensor([eos, *ids.tolist()])
    for start in range(0, len(ids), 5):
        targets = said[start + 1 : start + 6, None]
        outputs = model(said[start : start + len(targets), None], state)
        state = outputs.state.detached()
        nll = -model.head.log_probs(outputs.hidden).gather(-1, targets[..., None])[:, 0, 0]
        losses += nll.tolist()
        gradients = torch.autograd.grad(nll.mean(), parameters)
        with torch.no_grad():
            for p, g, r, d, p0 in zip(parameters, gradients, rms, decay, theta0, strict=True):
                p += -setting.lr * g / (r + setting.eps) + setting.decay * d * (p0 - p)
    last = weights(trained)
    with torch.no_grad():
        for p, p0 in zip(parameters, theta0, strict=True):
            p.copy_(p0)
    return losses, last, count


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "setting", [ORIGINAL, DynamicSetting(3e-3, 0.1, 1e-3), DynamicSetting(3e-3, 0.4, 1e-3, "elements")]
)
def test_the_trajectory_is_the_published_one(head: dict[str, Any], setting: DynamicSetting) -> None:
    """In the scaling that a setting is for, and after conversion, to the last digits of float64."""
    trained = tiny_lm(**head)
    train, ids = ids_of(trained, 403, seed=9), ids_of(trained, 63)
    with adaptable(trained.model):
        expected, _, count = as_published(trained, train, ids, setting, streams=8)
    statistics = statistics_of(trained)
    assert statistics.windows == count == 10
    np.testing.assert_allclose(Adaptation(trained, statistics, setting).nll(ids), expected, atol=1e-9)
    converted = setting.normalised(count, len(list(trained.model.parameters())))
    assert converted.scaling == ("elements" if setting.scaling == "elements" else "normalised")
    np.testing.assert_allclose(Adaptation(trained, statistics, converted).nll(ids), expected, atol=1e-9)
    assert np.abs(np.array(expected) - token_nll(trained, ids)).max() > 0.05, "nothing was learnt"


def test_the_papers_settings_convert_to_the_published_numbers() -> None:
    for name, windows, tensors, expected in [
        ("paper-mos-ptb", 1859, 17, (4.64e-5, 2.32e-5, 4.41e-3)),
        ("paper-mos-wt2", 4177, 17, (3.09e-5, 3.09e-5, 1.18e-3)),
        ("paper-awd", 1859, 14, (4.64e-5, 2.32e-5, 1.43e-3)),
        ("paper-awd", 4177, 14, (3.09e-5, 1.55e-5, 1.43e-3)),
    ]:
        setting = DYNAMIC_SETTINGS[name].normalised(windows, tensors)
        assert (setting.lr, setting.eps, setting.decay) == pytest.approx(expected, rel=3e-3)
        assert setting.normalised(7, 3) is setting
    assert len(set(DYNAMIC_SETTINGS.values())) == len(DYNAMIC_SETTINGS), (
        "a result is kept under the name of one setting"
    )


@pytest.mark.parametrize(
    ("cell", "paper"),
    [
        *((cell, False) for cell in CELLS),
        (CELLS[0], True),
        *(pytest.param(cell, True, marks=pytest.mark.slow) for cell in CELLS[1:]),
    ],
    ids=str,
)
def test_learning_nothing_is_static_evaluation(cell: dict[str, Any], paper: bool) -> None:
    trained = tiny_lm(cell=cell, **HEADS[1])
    ids = ids_of(trained, 58)
    statistics = statistics_of(trained, paper=paper)
    nll = Adaptation(trained, statistics, DynamicSetting(0, 0), paper=paper).nll(ids)
    np.testing.assert_allclose(nll, token_nll(trained, ids, paper=paper), atol=1e-12)
    pulled = Adaptation(trained, statistics, DynamicSetting(0, 0.5), paper=paper).nll(ids)
    assert pulled.tolist() == nll.tolist(), "weights that never moved have nowhere to go back to"


def test_a_window_is_scored_before_it_is_learnt_from() -> None:
    trained = tiny_lm()
    ids = ids_of(trained, 40)
    nll = Adaptation(trained, statistics_of(trained), DynamicSetting(1e-2, 1e-3)).nll(ids)
    static = token_nll(trained, ids)
    np.testing.assert_allclose(nll[:5], static[:5], atol=1e-12)
    assert np.abs(nll[5:10] - static[5:10]).max() > 1e-4
    again = Adaptation(trained, statistics_of(trained), DynamicSetting(1e-2, 1e-3)).nll(ids[:23])
    np.testing.assert_allclose(again, nll[:23], atol=1e-12, err_msg="the future is not seen")


def test_learning_from_a_text_that_repeats_itself_helps() -> None:
    trained = tiny_lm(**HEADS[1])
    ids = np.tile(ids_of(trained, 20), 20)
    nll = Adaptation(trained, statistics_of(trained), DynamicSetting(5e-3, 1e-3, 1e-3)).nll(ids)
    assert nll[-20:].mean() < nll[:20].mean() - 0.3


@pytest.mark.parametrize(("lr", "scaling"), [(2e-4, "normalised"), (0.5, "normalised"), (5.0, "original")])
def test_a_rate_that_makes_it_worse_is_told(tmp_path: Path, lr: float, scaling: Scaling) -> None:
    """With a rate in the scaling that was asked for."""
    result = dynamic(write_run(tmp_path / "run"), setting=DynamicSetting(lr, 0.0, scaling=scaling, streams=8))
    worse = result.likelihood.nll > result.static.nll
    assert worse == (lr >= 0.5)
    advice = f"Worse than without adapting: try a --lr of {lr / 5:.1g}, or --trials 20."
    assert (advice in dynamic_tables(result)) == worse


@pytest.mark.parametrize("setting", [ORIGINAL, DynamicSetting(3e-3, 0.1, 1e-3)])
def test_the_past_decoder_of_training_changes_nothing(setting: DynamicSetting) -> None:
    """It is no part of a probability, so statistics, counts and means are those of a model without it."""
    plain, trained = tiny_lm(**HEADS[1]), tiny_lm(past_decode=0.3, **HEADS[1])
    trained.model.load_state_dict(plain.model.state_dict(), strict=False)
    statistics, expected = statistics_of(trained), statistics_of(plain)
    assert [*statistics.squares] == [name for name, _ in plain.model.named_parameters()]
    assert all(torch.equal(statistics.squares[name], squares) for name, squares in expected.squares.items())
    before, ids = weights(trained), ids_of(trained, 50)
    nll = Adaptation(trained, statistics, setting).nll(ids)
    assert np.array_equal(nll, Adaptation(plain, expected, setting).nll(ids))
    assert all(torch.equal(p, q) for p, q in zip(weights(trained), before, strict=True))


def test_a_head_without_components_of_a_layer_is_adapted(tmp_path: Path) -> None:
    head = {"kind": "doc", "components": 3, "lower_components": (0, 1), "tied": False}
    run = write_run(tmp_path / "run", lines=(120, 10, 15), **head)
    scalings: tuple[Scaling, ...] = get_args(Scaling)
    for scaling in scalings:
        result = dynamic(run, setting=DynamicSetting(1e-4, 0.0, scaling=scaling, streams=8))
        assert math.isfinite(result.likelihood.nll)
        assert result.likelihood.nll != result.static.nll


def test_a_run_with_a_past_decoder_keeps_its_statistics(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", past_decode=0.3)
    strong = DynamicSetting(1e-3, 1e-3, 1e-3)
    assert dynamic(run, setting=strong) == dynamic(run, setting=strong)


def test_weights_and_modes_are_restored_also_when_interrupted() -> None:
    trained = tiny_lm(**HEADS[1])
    before, ids = weights(trained), ids_of(trained, 50)
    statistics = statistics_of(trained)

    moved: list[float] = []

    def interrupt(tokens: int) -> None:
        moved.append(max(float((p - q).abs().max()) for p, q in zip(weights(trained), before, strict=True)))
        if len(moved) == 3:
            raise Interrupted("stop")

    with pytest.raises(Interrupted):
        Adaptation(trained, statistics, DynamicSetting(1e-2, 1e-3)).nll(ids, interrupt)
    assert moved[0] == 0, "the first window is scored by the trained weights"
    assert moved[2] > 1e-4
    with pytest.raises(DivergenceError, match="--lr"):
        Adaptation(trained, statistics, DynamicSetting(1e308, 0)).nll(ids)
    Adaptation(trained, statistics, DynamicSetting(1e-2, 1e-3)).nll(ids)
    assert all(torch.equal(p, q) for p, q in zip(weights(trained), before, strict=True))
    assert not any(module.training for module in trained.model.modules())
    layers = [layer for layer in trained.model.layers if isinstance(layer, WeightDropLSTM)]
    assert [layer.weight_dropout for layer in layers] == [0.3, 0.3]


def test_no_dropout_is_on_but_recurrent_layers_are_in_training_mode() -> None:
    """As cuDNN wants it: weight drop in dynamic evaluation was the fault of a published port."""
    trained = tiny_lm(**HEADS[1])
    ids = ids_of(trained, 30)
    expected = token_nll(trained, ids)
    with adaptable(trained.model):
        assert all(layer.training for layer in trained.model.layers)
        np.testing.assert_allclose(token_nll(trained, ids), expected, atol=1e-12)


def test_the_way_back_never_overshoots_and_settings_share_nothing() -> None:
    trained = tiny_lm()
    statistics = statistics_of(trained)
    _, tight = factors(statistics, DynamicSetting(1e-3, 50.0))
    assert max(float(p.max()) for p in tight) == 1.0
    _, loose = factors(statistics, DynamicSetting(1e-3, 1e-4))
    _, fresh = factors(statistics_of(trained), DynamicSetting(1e-3, 1e-4))
    assert all(torch.equal(p, q) for p, q in zip(loose, fresh, strict=True)), "the cap is not cumulative"


def test_statistics_resume_to_the_same_bits() -> None:
    trained = tiny_lm(**HEADS[1])
    files = [ids_of(trained, 403, seed=1), ids_of(trained, 161, seed=2)]
    whole, pieces = Statistics.empty(trained.model, 8), Statistics.empty(trained.model, 8)
    gather(trained, files, whole)

    def stop(done: int, total: int) -> None:
        assert total == whole.windows == 14
        if done % 3 == 0:
            raise Interrupted("stop")

    for _ in range(9):
        try:
            gather(trained, files, pieces, progress=stop)
            break
        except Interrupted:
            continue
    assert pieces.windows == whole.windows
    assert all(torch.equal(pieces.squares[name], whole.squares[name]) for name in whole.squares)
    with pytest.raises(DataError, match="streams"):
        gather(trained, [ids_of(trained, 7)], Statistics.empty(trained.model, 8))


def test_every_file_begins_with_a_state_of_its_own() -> None:
    trained = tiny_lm()
    files = [ids_of(trained, 90), ids_of(trained, 110, seed=2)]
    whole = Statistics.empty(trained.model, 4)
    gather(trained, files, whole)
    apart = [Statistics.empty(trained.model, 4) for _ in files]
    for file, statistics in zip(files, apart, strict=True):
        gather(trained, [file], statistics)
    assert whole.windows == sum(statistics.windows for statistics in apart)
    for name, squares in whole.squares.items():
        torch.testing.assert_close(squares, apart[0].squares[name] + apart[1].squares[name])


@pytest.mark.parametrize(("tokens", "paper", "windows"), [(52, True, 10), (53, True, 11), (51, False, 11)])
def test_a_last_window_of_one_token_counts_unless_as_the_papers(
    tokens: int, paper: bool, windows: int
) -> None:
    assert statistics_of(tiny_lm(), 8 * tokens, paper=paper).windows == windows


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ((math.nan, 2e-3), "--lr nan: must be a finite number of at least 0"),
        ((5e-5, math.inf), "--decay inf: must be a finite number of at least 0"),
        ((5e-5, 2e-3, 0.0), "--eps 0: must be a finite number above 0"),
    ],
)
def test_only_the_wrong_number_of_a_setting_is_named(numbers: tuple[float, ...], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        DynamicSetting(*numbers)
    assert str(error.value) == told


def test_impossible_settings_are_refused() -> None:
    for values in (
        {"lr": -1.0},
        {"decay": math.nan},
        {"eps": 0.0},
        {"window": 0},
        {"window": 10**8},
        {"scaling": "x"},
    ):
        with pytest.raises(ConfigError, match=f"^--{next(iter(values))} "):
            DynamicSetting(**({"lr": 1e-3, "decay": 1e-3} | values))


def test_a_run_is_evaluated_and_its_statistics_are_kept(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    strong = DynamicSetting(1e-3, 1e-3, 1e-3)
    result = dynamic(run, setting=strong)
    assert result.static.nll == pytest.approx(evaluate(run).likelihood.nll, abs=1e-6)
    assert result.likelihood.nll != result.static.nll
    kept = json.loads((run / "evaluation" / f"{result.name}.json").read_text())
    assert sum(kept["contexts"]["nll"]) / result.likelihood.tokens == pytest.approx(result.likelihood.nll)
    commits = sorted((run / "dynamic" / "statistics").rglob("*.safetensors"))
    times = [path.stat().st_mtime_ns for path in commits]
    again = dynamic(run, setting=strong)
    assert again.likelihood == result.likelihood
    assert [path.stat().st_mtime_ns for path in commits] == times, "they are not made again"
    (tmp_path / "train.txt").write_text((tmp_path / "train.txt").read_text() + "rain\n" * 200)
    assert dynamic(run, setting=strong).likelihood != result.likelihood, "of other data they are"
    rows = cells(dynamic_tables(result)[0])
    assert [rows[0]["measure"], rows[-1]["measure"]] == ["perplexity, dynamic", "perplexity, static"]
    assert float(rows[0]["value"].replace(",", "")) == pytest.approx(result.likelihood.perplexity, abs=0.005)


def test_as_the_papers_the_divisor_is_what_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their program weights the windows by their lengths; only that of static evaluation divides by all."""
    monkeypatch.setattr("lm.language.setting_search.GRID_LR", (1e-3,))
    monkeypatch.setattr("lm.language.setting_search.GRID_DECAY", (1e-3,))
    run = write_run(tmp_path / "run", lines=(120, 10, 10))
    valid = str(tmp_path / "valid.txt")
    result = dynamic(run, data=valid, setting=DynamicSetting(1e-3, 1e-3), compat="paper", search=Grid())
    kept = json.loads((run / "evaluation" / f"{result.name}.json").read_text())
    scored = len(load_split(valid, TrainedLm.load(run).codec)) - 1
    found, search = result.likelihood, result.search
    assert found.tokens == found.scored == scored == sum(kept["contexts"]["tokens"])
    assert found.nll == pytest.approx(sum(kept["contexts"]["nll"]) / scored)
    assert search is not None
    assert search.searched[0].nll == pytest.approx(found.nll, rel=1e-12)
    assert result.static.tokens == scored + 1


@pytest.mark.parametrize("checked", [2, 1000])
def test_sums_of_probabilities_are_tested_while_the_model_adapts(
    checked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the last window at the latest, so that a short text is tested too."""
    monkeypatch.setattr("lm.language.adaptation._CHECKED", checked)
    trained = tiny_lm()
    adapted = Adaptation(trained, statistics_of(trained), DynamicSetting(0, 0))
    assert len(adapted.nll(ids_of(trained, 40))) == 40
    head = trained.model.head
    honest = head.log_probs
    monkeypatch.setattr(head, "log_probs", lambda *given: honest(*given) + 0.1)
    with pytest.raises(DivergenceError, match="probabilities sum to"):
        adapted.nll(ids_of(trained, 40))
