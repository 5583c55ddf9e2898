"""Schedules against closed formulas and torch."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lm.engine.config import OptimConfig
from lm.engine.schedule import Schedule

STEPS = range(0, 60)


def rates(**config: Any) -> list[float]:
    schedule = Schedule(OptimConfig(lr=2.0, **config))
    return [schedule.lr(step) for step in STEPS]


@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_constant_and_cosine_rates_are_their_formulas(warmup: int) -> None:
    ramp = [min(1.0, (step + 1) / warmup) if warmup else 1.0 for step in STEPS]
    assert rates(warmup_steps=warmup) == pytest.approx([2.0 * up for up in ramp])
    cosine = []
    for step in STEPS:
        phase = math.pi * (step - warmup) / (50 - warmup)
        cosine.append(2.0 if step < warmup else 0.2 if step >= 50 else 0.2 + 1.8 * (1 + math.cos(phase)) / 2)
    found = rates(warmup_steps=warmup, schedule="cosine", decay_steps=50, min_lr_ratio=0.1)
    assert found == pytest.approx([up * value for up, value in zip(ramp, cosine, strict=True)])


def test_one_cycle_is_torchs_up_to_where_its_phases_begin() -> None:
    """Torch counts a phase from its first step to its last, and so reaches each end one step earlier."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 2.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 2.0, total_steps=52, pct_start=12 / 52, cycle_momentum=False, final_div_factor=0.4
    )
    expected = []
    for _ in range(52):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step() if len(expected) < 52 else None
    found = rates(schedule="one_cycle", warmup_steps=11, decay_steps=51, min_lr_ratio=0.1)
    assert expected[0] == pytest.approx(2.0 / 25)
    assert found[:11] == pytest.approx(expected[1:12])
    assert found[11:52] == pytest.approx(expected[11:52], rel=1e-6)
    assert found[51:] == pytest.approx([0.2] * 9)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.booleans(), max_size=20),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.3]),
)
def test_plateau_drops_after_patience_stale_validations(
    validations: list[bool], patience: int, lowest: float
) -> None:
    config = OptimConfig(lr=2.0, schedule="plateau", plateau_patience=patience, min_lr_ratio=lowest)
    schedule, resumed = Schedule(config), Schedule(config)
    stale, drops = 0, 0
    for better in validations:
        schedule.observe(better)
        resumed.observe(better)
        state = resumed.state()
        resumed = Schedule(config)
        resumed.load(state)
        stale = 0 if better else stale + 1
        if stale > patience:
            drops, stale = drops + 1, 0
        assert schedule.lr(9) == resumed.lr(9) == pytest.approx(2.0 * max(lowest, 0.5**drops))


def test_only_plateau_heeds_validations() -> None:
    schedule = Schedule(OptimConfig(lr=2.0))
    for _ in range(9):
        schedule.observe(better=False)
    assert schedule.lr(0) == 2.0
