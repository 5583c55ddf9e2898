"""The presets of Melis et al. (2020) against the configs that their code comes with, number by number."""

from typing import Any

import pytest

from lm.config.presets import preset_names
from lm.language.describe import describe
from tests.support.lm_presets import preset

# What all of lamb's tuned configs share.
SHARED: dict[str, Any] = {
    "window.random": False, "window.rescale_lr": False, "window.order": "read_heads", "window.jitter": 100,
    "window.state_reset": 0.01, "model.layer_sum": True, "model.dropout_masks": "per_step",
    "model.embedding_init": "scaled", "model.embedding_dropout": 0.0, "model.weight_dropout": 0.0,
    "model.activation_penalty": 0.0, "model.slowness_penalty": 0.0, "cell.cap_input_gate": True,
    "cell.gate_bias": True, "optim.name": "adam", "optim.betas": (0.0, 0.999), "optim.weight_decay": 0.0,
    "optim.schedule": "constant", "optim.warmup_steps": 0, "optim.average": "uniform",
    "optim.average_trigger": 0, "train.accumulate": 1, "train.patience": 0, "head.output_bias": True,
}  # fmt: skip
# window, batch, updates between validations, validations, stale ones, validation at which averaging begins
SCHEDULES = {
    "word": (70, 64, 200, 1000, 50, 800), "fast": (35, 64, 100, 600, 25, 400),
    "char": (150, 64, 200, 500, 25, 400), "enwik8": (500, 128, 400, 100, 10, 80),
}  # fmt: skip
PTB_LSTM = (0.003037, 2.4908e-4, 0.62756, 0.30699, 0.36922, 0.69017)
PTB_MOGRIFIER = (0.0023, 2.52353e-4, 0.72908, 0.29098, 0.38729, 0.71566)
# schedule; millions of parameters; layers; components; ρ; kind, rounds, rank and zigzag of the cell; learning
# rate, l2, and dropout of input, between layers, of state and of output
TUNED: dict[str, tuple[Any, ...]] = {
    "ptb_lstm_lamb": ("word", 24, 2, 1, 1.0, ("lstm",), PTB_LSTM),
    "ptb_mogrifier": ("word", 24, 2, 1, 1.0, ("mogrifier", 5, 84, True), PTB_MOGRIFIER),
    "ptb_lstm_fast": ("fast", 24, 2, 1, 1.0, ("lstm",), PTB_LSTM),
    "ptb_mlstm": ("fast", 24, 2, 1, 1.0, ("mlstm",), PTB_LSTM),
    "ptb_mogrifier_fast": ("fast", 24, 2, 1, 1.0, ("mogrifier", 5, 84, True), PTB_MOGRIFIER),
    "ptb_mogrifier_full": ("fast", 24, 2, 1, 1.0, ("mogrifier", 5, 0, True), PTB_MOGRIFIER),
    "ptb_mogrifier_nozigzag": ("fast", 24, 2, 1, 1.0, ("mogrifier", 5, 84, False), PTB_MOGRIFIER),
    "wt2_lstm_mos2": (
        "word", 35, 2, 2, 0.3531, ("lstm",), (0.003184, 2.30636e-4, 0.6091, 0.09075, 0.2714, 0.34846)
    ),
    "wt2_mogrifier_mos2": (
        "word", 35, 2, 2, 0.1993, ("mogrifier", 6, 48, True),
        (0.003288, 1.8995e-4, 0.54691, 0.19882, 0.22138, 0.34767),
    ),
    "ptb_char_mogrifier": (
        "char", 24, 2, 1, 1.0, ("mogrifier", 4, 24, True),
        (0.0037396, 2.55581e-4, 0.2786, 0.07376, 0.17119, 0.23474),
    ),
    "ptb_char_lstm": (  # whose own values are unpublished
        "char", 24, 2, 1, 1.0, ("lstm",), (0.0037396, 2.55581e-4, 0.2786, 0.07376, 0.17119, 0.23474)
    ),
    "mwc_lstm": (
        "char", 24, 2, 1, 0.1676, ("lstm",), (0.003805, 7.82528e-6, 0.24803, 0.047401, 0.046955, 0.062009)
    ),
    "mwc_mogrifier": (
        "char", 24, 2, 1, 0.4878, ("mogrifier", 6, 78, True),
        (0.0014344, 9.24543e-5, 0.22379, 0.087797, 0.095485, 0.0052123),
    ),
    "mwc_fi_lstm": (
        "char", 24, 2, 1, 1.0, ("lstm",), (0.0038728, 3.35904e-5, 4.2783e-4, 0.036792, 0.15784, 0.21673)
    ),
    "mwc_fi_mogrifier": (
        "char", 24, 2, 1, 1.0, ("mogrifier", 5, 100, True),
        (0.002, 9.60798e-5, 0.069955, 0.11572, 0.17592, 0.2215),
    ),
    "enwik8_lstm": (
        "enwik8", 96, 4, 1, 1.0, ("lstm",), (0.0019752, 5.85356e-5, 0.12337, 0.12637, 0.13063, 0.24847)
    ),
    "enwik8_mogrifier": (
        "enwik8", 96, 4, 1, 1.0, ("mogrifier", 5, 61, True),
        (0.002248, 4.40939e-5, 0.015909, 0.13786, 0.16487, 0.28785),
    ),
    "enwik8_lstm_48m": (
        "enwik8", 48, 4, 1, 1.0, ("lstm",), (0.0025167, 2.51813e-5, 0.16279, 0.1195, 0.10368, 0.1386)
    ),
    "enwik8_mogrifier_48m": (
        "enwik8", 48, 4, 1, 1.0, ("mogrifier", 6, 79, True),
        (0.0010214, 9.93384e-4, 0.015496, 0.008634, 0.043729, 0.13831),
    ),
}  # fmt: skip


def test_every_preset_with_a_budget_is_one_of_them() -> None:
    assert {name for name in preset_names("lm") if preset(name).model.budget} == set(TUNED)


@pytest.mark.parametrize("name", TUNED)
def test_a_preset_is_the_tuned_config(name: str) -> None:
    config = preset(name)
    kind, budget, layers, components, ratio, cell, tuned = TUNED[name]
    length, batch, every, turns, stale, latest = SCHEDULES[kind]
    for key, expected in SHARED.items():
        section, _, field = key.partition(".")
        assert getattr(getattr(config, section), field) == expected, key
    model, head, optim, train = config.model, config.head, config.optim, config.train
    assert (model.budget, model.hidden_sizes) == (budget * 1_000_000, (1,) * layers)
    assert model.input_embedding_ratio == pytest.approx(ratio, abs=6e-5)
    assert (head.kind, head.components) == (("mos", 2) if components == 2 else ("softmax", 1))
    assert head.tied == (kind in ("word", "fast"))
    described = (config.cell.kind, config.cell.rounds, config.cell.rank, config.cell.zigzag)
    assert described[: len(cell)] == cell
    rates = (model.input_dropout, model.hidden_dropout, model.state_dropout, model.output_dropout)
    assert (optim.lr, length * model.weight_penalty, *rates) == pytest.approx(tuned, rel=2e-4)
    projected = components == 2 or ratio < 1
    assert head.latent_dropout == (model.output_dropout if projected else 0.0)
    assert (length * optim.clip_norm, length * optim.eps) == pytest.approx((10, 1e-8), rel=1e-4)
    assert (config.window.length, train.batch_size, train.validate_every) == (length, batch, every)
    found = (train.max_steps, optim.average_patience, optim.average_start)
    assert found == (every * turns, stale, every * latest)
    assert config.about
    assert 0.99 * model.budget < describe(config)["parameters"] <= model.budget
