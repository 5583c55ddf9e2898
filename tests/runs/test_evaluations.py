"""Names of the evaluations of a run."""

import re

from hypothesis import given
from hypothesis import strategies as st

from lm.runs.evaluations import setting_slug, slug


@given(st.text(max_size=30), st.text(max_size=30))
def test_settings_that_differ_have_different_names(one: str, other: str) -> None:
    assert (setting_slug(one) == setting_slug(other)) == (one == other)


@given(st.text(min_size=1, max_size=60))
def test_a_name_is_a_part_of_a_file_name(text: str) -> None:
    for name in (slug(text), setting_slug(text)):
        assert re.fullmatch(r"[\w.+-]+", name), name


def test_values_keep_their_form() -> None:
    values = (1e9, 1e-9, 5e-05, 0.002, 2.0)
    forms = ["1000000000.0", "1e-09", "5e-05", "0.002", "2.0"]
    assert [setting_slug(f"decay-{value}") for value in values] == [f"decay-{form}" for form in forms]
