"""Dynamic evaluation with settings from a grid or drawn (Melis et al. 2020), temperature and dropout."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lm.errors import ConfigError, DivergenceError
from lm.language.adaptation import (
    DYNAMIC_SETTINGS,
    GRID_DECAY,
    GRID_LR,
    RANGES,
    Adaptation,
    DynamicSetting,
    Statistics,
    gather,
)
from lm.language.cache import CacheSetting
from lm.language.dynamic import dynamic
from lm.language.evaluate import evaluate
from lm.language.refinements import MULTIPLIERS, Refinements, with_dropout
from lm.language.scoring import token_nll
from lm.language.setting_search import Draws, Grid, TriedSetting, require_free
from lm.language.tables import dynamic_tables
from lm.language.trained import TrainedLm
from lm.results import as_json
from tests.support.signals import signal_at
from tests.support.tiny_lm import cells, ids_of, tiny_lm, write_run

MILD = DynamicSetting(1e-2, 1e-3, 1e-3)


def statistics_of(trained: TrainedLm) -> Statistics:
    statistics = Statistics.empty(trained.model, 8)
    gather(trained, [ids_of(trained, 200)], statistics)
    return statistics


@pytest.mark.parametrize("head", [{}, {"kind": "mos", "components": 3, "temperature": "sigmoid"}])
def test_a_temperature_is_in_the_loss_that_is_learnt_from(head: dict[str, object]) -> None:
    trained = tiny_lm(**head)
    statistics, ids, temperature = statistics_of(trained), ids_of(trained, 23), 1.25
    plain = Adaptation(trained, statistics, DynamicSetting(0, 0), temperature=temperature).nll(ids)
    np.testing.assert_allclose(plain, token_nll(trained, ids, temperature=temperature), atol=1e-9)
    nll = Adaptation(trained, statistics, MILD, temperature=temperature).nll(ids)
    np.testing.assert_allclose(nll[:5], plain[:5], atol=1e-9)
    hidden, targets = next(iter(trained.readings(ids, window=5)))
    bias = trained.model.head.bias
    assert bias is not None
    log_probs = trained.model.head.log_probs(hidden.last[:, 0], component_temperature=temperature)
    (wanted,) = torch.autograd.grad(-log_probs.gather(1, targets[:, None]).sum(), bias)
    loss = trained.model.head.loss(hidden, targets, component_temperature=temperature)
    (found,) = torch.autograd.grad(loss, bias)
    torch.testing.assert_close(found, wanted)
    assert not np.allclose(nll[5:], Adaptation(trained, statistics, MILD).nll(ids)[5:], atol=1e-6)


def test_passes_with_dropout_adapt_each_on_its_own() -> None:
    trained = tiny_lm()
    statistics, ids = statistics_of(trained), ids_of(trained, 40)
    before = {name: tensor.clone() for name, tensor in trained.model.state_dict().items()}
    none, some = (with_dropout(trained.model, rate) for rate in (1e-15, 0.9))
    kept = {name: tensor.clone() for name, tensor in some.state_dict().items()}
    still = Adaptation(trained, statistics, MILD, sampler=none).nll(ids)
    np.testing.assert_allclose(still, Adaptation(trained, statistics, MILD).nll(ids), atol=1e-9)
    torch.manual_seed(3)
    first = Adaptation(trained, statistics, MILD, sampler=some).nll(ids)
    second = Adaptation(trained, statistics, MILD, sampler=some).nll(ids)
    torch.manual_seed(3)
    assert np.array_equal(first, Adaptation(trained, statistics, MILD, sampler=some).nll(ids))
    assert not np.allclose(first, second), "masks are drawn anew"
    assert some.training, "the sampler goes on dropping"
    for model, weights in ((trained.model, before), (some, kept)):
        assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


def test_a_run_is_evaluated_with_temperature_and_dropout(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", lines=(120, 10, 10))
    wanted, told = Refinements(True, 2, 0.8), list[tuple[int, int]]()
    result = dynamic(run, setting=MILD, wanted=wanted, progress=lambda *at: told.append(at))
    assert told[-1][0] == told[-1][1] == 7 * result.likelihood.tokens, "static, and three dynamic ones twice"
    static = evaluate(run, wanted=wanted)
    for name in ("temperature_search", "mc_temperature"):
        mine, theirs = as_json(result)[name], as_json(static)[name]
        assert mine["multiplier"] == theirs["multiplier"] in MULTIPLIERS
        assert mine["nll"] != theirs["nll"]
    assert result.name.endswith(".temperature.mc-2-rate-0.8")
    kept = json.loads((run / "evaluation" / f"{result.name}.json").read_text())
    for name in ("temperature_search", "mc_dropout", "mc_temperature"):
        mean = sum(kept["contexts"][name]) / result.likelihood.tokens
        assert mean == pytest.approx(result.refined[name].likelihood.nll)
    rows = cells(dynamic_tables(result)[0])
    assert [row["measure"] for row in rows[-4:]] == [
        "perplexity, best temperature", "perplexity, MC dropout",
        "perplexity, MC dropout, best temperature", "perplexity, static",
    ]  # fmt: skip


def test_the_grid_is_the_published_one_in_proportion_to_the_window() -> None:
    assert (GRID_LR, GRID_DECAY) == ((3e-5, 4e-5, 5e-5, 6e-5, 7e-5, 1e-4), (1e-3, 2e-3, 3e-3, 5e-3))
    grid, base = Grid(), DynamicSetting(1, 1, 7e-5, "normalised", 10)
    settings = [grid.propose(base, [{}] * place) for place in range(grid.count)]
    assert len({(s.lr, s.decay) for s in settings}) == 24 == grid.count
    assert settings[0] == DynamicSetting(6e-5, 2e-3, 7e-5, "normalised", 10)
    squares = Statistics.empty(tiny_lm().model, 1).squares
    setting = DYNAMIC_SETTINGS["paper-mos-ptb"].normalised(1859, len(squares))
    assert setting.eps == pytest.approx(2.32e-5, rel=1e-3), "the papers' ε is for the other scaling"


def test_a_killed_grid_goes_on_and_reports_the_best_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lm.language.setting_search.GRID_LR", (1e-5, 2e-3, 1e30))
    monkeypatch.setattr("lm.language.setting_search.GRID_DECAY", (1e-3, 5e-3))
    run = write_run(tmp_path / "run", lines=(120, 10, 15))

    with pytest.raises(KeyboardInterrupt), signal_at(2, "propose"):
        dynamic(run, search=Grid())
    finished = json.loads((run / "dynamic" / "grid.json").read_text())["results"]
    assert len(finished) == 1
    told: list[tuple[int, int]] = []
    result = dynamic(run, search=Grid(), progress=lambda done, total: told.append((done, total)))
    reached = {total for done, total in told if done == total}
    assert reached == {total for _, total in told}, "the search too, though one of its settings diverges"
    assert result.search is not None
    searched = result.search.searched
    assert as_json(searched[0]) == finished[0]
    assert len(searched) == 6
    values = [row.nll for row in searched]
    assert values[4] is values[5] is None, "what diverges has no result"
    best = min((row for row in searched if row.nll), key=lambda row: row.nll or 0)
    assert (result.setting.lr, result.setting.decay) == (best.lr, best.decay)
    assert result.subject.data.name == "test"
    alone = dynamic(run, data=str(tmp_path / "valid.txt"), setting=DynamicSetting(best.lr, best.decay))
    assert alone.likelihood.nll == pytest.approx(best.nll, abs=1e-9)
    rows = cells(dynamic_tables(result)[0])
    assert list(rows[0]) == ["lr", "decay", "eps", "nll", "perplexity"]
    assert [row["nll"] == "–" for row in rows] == [value is None for value in values]


def test_a_search_that_finds_nothing_names_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lm.language.setting_search.GRID_LR", (1e30,))
    monkeypatch.setattr("lm.language.setting_search.GRID_DECAY", (1e-3,))
    monkeypatch.setattr("lm.language.setting_search.RANGES", RANGES | {"lr": (1e29, 1e30)})
    run = write_run(tmp_path / "run")
    with pytest.raises(DivergenceError, match=r"every setting of --grid; raise --eps$"):
        dynamic(run, search=Grid())
    with pytest.raises(DivergenceError, match=r"every setting of --trials; give --lr and --eps instead$"):
        dynamic(run, search=Draws(1))

    def unusable(*_: object) -> None:
        raise DivergenceError("other weights")

    monkeypatch.setattr("lm.language.setting_search.factors", unusable)
    with pytest.raises(DivergenceError, match="other weights"):
        dynamic(run, search=Draws(2))


def test_grids_are_kept_apart_and_override_nothing_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lm.language.setting_search.GRID_LR", (1e-5,))
    monkeypatch.setattr("lm.language.setting_search.GRID_DECAY", (1e-3,))
    run = write_run(tmp_path / "run", lines=(120, 10, 10))
    for setting, label in [
        (DYNAMIC_SETTINGS["default"], "grid"),
        (replace(DYNAMIC_SETTINGS["default"], eps=1e-3), "grid-eps-0.001"),
        (DYNAMIC_SETTINGS["paper-mos-ptb"], "grid-eps-0.001-original"),
        (replace(DYNAMIC_SETTINGS["default"], window=10), "grid-window-10"),
    ]:
        result = dynamic(run, setting=setting, search=Grid())
        assert result.name == f"test.dynamic.{label}"
        windows, tensors = result.statistics.windows, result.statistics.tensors
        assert result.search is not None
        eps = setting.normalised(windows, tensors).eps
        assert {row.eps for row in result.search.searched} == {eps} == {result.setting.eps}
        assert result.setting.scaling == "normalised"
    kept = {path: path.stat().st_mtime_ns for path in (run / "evaluation").iterdir()}
    assert len(kept) == 4
    for changed in ({"lr": 0.1}, {"decay": 0.1, "eps": 1e-3}):
        with pytest.raises(ConfigError, match=f"--{next(iter(changed))}: --grid") as error:
            require_free(Grid(), changed)
        assert "\n" not in str(error.value)
    assert {path: path.stat().st_mtime_ns for path in (run / "evaluation").iterdir()} == kept
    require_free(Grid(), {"eps": 1e-3, "scaling": "original", "window": 3})
    named = dynamic(run, setting=DYNAMIC_SETTINGS["paper-awd"])
    assert named.name == "test.dynamic.paper-awd"


def test_a_grid_of_a_part_of_the_text_is_not_that_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lm.language.setting_search.GRID_LR", (1e-5,))
    monkeypatch.setattr("lm.language.setting_search.GRID_DECAY", (1e-3,))
    run = write_run(tmp_path / "run", lines=(120, 10, 10))
    whole, part = (dynamic(run, search=Grid(), limit=limit).search for limit in (None, 9))
    assert whole is not None
    assert part is not None
    assert part.searched[0].nll != whole.searched[0].nll


def test_settings_are_drawn_from_the_published_ranges() -> None:
    assert RANGES == {"lr": (1e-6, 1e-3), "decay": (1e-6, 1e-2), "eps": (1e-8, 1e-2)}
    base = DynamicSetting(1, 1, 1, "elements", 20)
    rows: list[TriedSetting] = []
    for place in range(12):
        setting = Draws(12).propose(base, rows)
        assert setting == Draws(99).propose(base, rows), "what is drawn follows from what is finished"
        assert (setting.scaling, setting.window) == ("elements", 20)
        for name, (low, high) in RANGES.items():
            scale = 1 / 20 if name == "eps" else 1.0
            assert low * scale <= getattr(setting, name) <= high * scale
        nll = None if place % 3 else float(place)
        rows.append(TriedSetting(setting.lr, setting.decay, setting.eps, nll, nll))

    def mean_rate(falling: bool) -> float:
        """Mean of ten rates drawn after forty trials whose larger rates diverge, or are the better ones."""
        rates = np.geomspace(1e-6, 1e-3, 40)
        tried = [
            TriedSetting(rate, 1e-4, 1e-6, *[None if falling and rate > 1e-5 else -math.log(rate)] * 2)
            for rate in rates
        ]
        drawn = [Draws(99).propose(base, [*tried, *rows[:place]]).lr for place in range(0, 10)]
        return float(np.log10(drawn).mean())

    assert mean_rate(falling=True) < -4.8 < -4.0 < mean_rate(falling=False), "away from what diverges"
    spread = math.log10(max(row.lr for row in rows) / min(row.lr for row in rows))
    assert spread > 1, "by orders of magnitude"
    assert len({row.lr for row in rows}) == 12


def test_a_changed_result_of_a_search_is_searched_anew(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", lines=(120, 10, 10))
    path, base = run / "dynamic" / "trials.json", replace(DYNAMIC_SETTINGS["default"], scaling="elements")
    found = dynamic(run, setting=base, search=Draws(2))
    whole = path.read_text()
    changed = json.loads(whole)
    changed["results"][0]["nll"] = 0.5
    path.write_text(json.dumps(changed))
    assert as_json(dynamic(run, setting=base, search=Draws(2))) == as_json(found)
    assert path.read_text() == whole


def test_drawn_settings_go_on_and_may_become_more(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", lines=(120, 10, 10))
    path = run / "dynamic" / "trials.json"
    base = replace(DYNAMIC_SETTINGS["default"], scaling="elements")

    dynamic(write_run(tmp_path / "other", lines=(120, 10, 10)), setting=base, search=Draws(1))
    with pytest.raises(KeyboardInterrupt), signal_at(2, "propose"):
        dynamic(run, setting=base, search=Draws(3))
    first = json.loads(path.read_text())["results"]
    assert len(first) == 1
    result = dynamic(run, setting=base, search=Draws(3))
    assert result.search is not None
    searched = result.search.searched
    assert as_json(searched[0]) == first[0]
    assert (result.search.searched_by, result.name) == ("--trials", "test.dynamic.trials-3-elements")
    best = min(searched, key=lambda row: row.nll or math.inf)
    assert [getattr(result.setting, name) for name in RANGES] == [getattr(best, name) for name in RANGES]
    more = dynamic(run, setting=base, search=Draws(4))
    assert as_json(more)["searched"][:3] == as_json(result)["searched"]
    fewer = dynamic(run, setting=base, search=Draws(2))
    assert as_json(fewer)["searched"] == as_json(result)["searched"][:2]
    assert len(json.loads(path.read_text())["results"]) == 4, "none is lost"


def test_what_a_search_chooses_is_not_in_its_name() -> None:
    assert (
        Draws(3).label(DynamicSetting(1, 1, 1, "original"))
        == Draws(3).label(DYNAMIC_SETTINGS["default"])
        == "trials-3"
    )
    assert Draws(3).label(DynamicSetting(1, 1, 1, "elements")) == "trials-3-elements"


def test_settings_of_other_numbers_have_other_names(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", lines=(120, 10, 10))
    usual = DYNAMIC_SETTINGS["default"]
    names = [dynamic(run, setting=replace(usual, decay=decay)).name for decay in (1e9, 1e-9, 0.0020000001)]
    assert len({path.stem for path in (run / "evaluation").iterdir()}) == len(names)
    assert names[1] == "test.dynamic.lr-5e-05-decay-1e-09-eps-2e-05"
    assert Grid().label(replace(usual, eps=1e-3)) != Grid().label(replace(usual, eps=1.0000001e-3))
    caches = [CacheSetting(10, theta, 0.1).name for theta in (0.3, 0.30000001)]
    assert caches[0] == ".cache-10-0.3-0.1" != caches[1]
    assert Refinements(mc_samples=2, mc_rate=0.5).name == ".mc-2-rate-0.5"
    assert Refinements(mc_samples=2, mc_rate=0.5000001).name == ".mc-2-rate-0.5000001"


def test_what_saves_time_in_training_is_not_in_evaluation(tmp_path: Path) -> None:
    head = {"kind": "mos", "components": 3}
    exact, hasty = (
        write_run(tmp_path / name / "run", lines=(120, 10, 10), **head, **saving)
        for name, saving in (("exact", {}), ("hasty", {"skip_below": 0.4, "products": "bfloat16"}))
        if (tmp_path / name).mkdir() is None
    )
    assert dynamic(exact, setting=MILD).likelihood == dynamic(hasty, setting=MILD).likelihood


def test_what_a_search_chooses_cannot_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="--lr --eps: --trials sets lr and decay and eps itself"):
        require_free(Draws(2), {"lr": 0.1, "window": 3, "eps": 1e-3})
    require_free(Draws(2), {"scaling": "elements", "window": 3})
    with pytest.raises(ConfigError, match="--scaling original: has no effect with --trials; leave it out"):
        require_free(Draws(2), {"scaling": "original"})
    with pytest.raises(ConfigError, match="--trials 0: must be at least 1"):
        Draws(0)
    steep = {"lr": (1e30, 1e31), "decay": (1e-3, 1e-2), "eps": (1e-8, 1e-7)}
    monkeypatch.setattr("lm.language.setting_search.RANGES", steep)
    run = write_run(tmp_path / "run", lines=(120, 10, 10))
    with pytest.raises(DivergenceError, match="every setting of --trials"):
        dynamic(run, search=Draws(2))


def test_what_cannot_be_is_told_before_the_work(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", lines=(120, 10, 10))
    with pytest.raises(
        ConfigError, match=r"--streams 100000000: .*train.txt has too few tokens \(.*\); give .* or fewer"
    ):
        dynamic(run, setting=replace(DYNAMIC_SETTINGS["default"], streams=100_000_000))
    for compat in ("none", "paper"):
        mild = replace(MILD, streams=100_000)
        with pytest.raises(ConfigError) as told:
            dynamic(run, setting=mild, compat=compat)
        proposed = int(re.search(r"give ([\d,]+) or fewer", str(told.value))[1].replace(",", ""))
        assert dynamic(run, setting=replace(MILD, streams=proposed), compat=compat).likelihood.tokens
    with pytest.raises(DivergenceError, match=r"diverges; lower --lr"):
        dynamic(run, setting=DynamicSetting(1e30, 0))
    with pytest.raises(ConfigError, match=r"--mc-rate 0\.5: does nothing without --mc-samples"):
        dynamic(run, wanted=Refinements(mc_rate=0.5))
