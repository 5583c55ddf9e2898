"""Suggestions for names with typing errors."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm.config.suggest import did_you_mean, nearest


@settings(max_examples=100, deadline=None)
@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_a_name_suggests_itself_whatever_else_there_is(name: str, other: str) -> None:
    assert nearest(name, [other, name]) == [name] or name == other


def test_one_typing_error_finds_the_name() -> None:
    for mutant in ("setps", "step", "stepps", "staps"):
        assert nearest(mutant, ["train.steps", "train.seed", "optim.lr"]) == ["train.steps"]
        assert nearest(f"optim.{mutant}", ["train.steps", "train.seed", "optim.lr"]) == ["train.steps"]
    assert nearest("zzz", ["train.steps"]) == []
    assert nearest("x", []) == []


def test_the_right_key_in_another_section_comes_first() -> None:
    keys = ["decoder.layers", "encoder.layers", "optim.layer", "encoder.size"]
    assert nearest("encodr.layers", keys) == ["encoder.layers"]
    assert nearest("optim.layers", keys) == ["decoder.layers", "encoder.layers"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ptb_moz", "; did you mean ptb_moc or ptb_mos?"),
        ("ptb_mso", "; did you mean ptb_mos?"),  # a swap is nearer than another letter
        ("ptb_mos_k9", "; did you mean ptb_mos_k1, ptb_mos_k2 or ptb_mos_k3?"),  # of four
        ("PTB-MOS", "; did you mean ptb_mos?"),
        ("zzz", ""),
    ],
)
def test_all_that_are_equally_near_are_suggested_up_to_three(name: str, hint: str) -> None:
    names = ["ptb_moss", "ptb_moc", "ptb_mos", *(f"ptb_mos_k{k}" for k in (1, 2, 3, 4))]
    assert did_you_mean(name, names) == hint
