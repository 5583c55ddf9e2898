"""The bootstrap: what has no p-value."""

import numpy as np
import pytest

from lm.bootstrap import FEWEST_UNITS, Resamples, p_values


@pytest.mark.parametrize(
    ("difference", "units", "p"),
    [(0.0, 9, 1.0), (1.0, 9, 2 / 1001), (np.nan, 9, None), (1.0, FEWEST_UNITS - 1, None)],
)
def test_what_is_not_finite_has_no_p_value(difference: float, units: int, p: float | None) -> None:
    pairs = {"ppl": (np.full(units, difference), np.ones(units))}
    assert p_values(pairs, Resamples(units, 1000, 1)) == {"ppl": p}
