"""Names of the evaluations of a run."""

from lm.runs.evaluations import slug


def test_values_that_differ_have_different_names() -> None:
    values = (1e9, 1e-9, 5e-05, 0.002, 2.0)
    assert [slug(f"decay {value}") for value in values] == [
        "decay-1000000000.0",
        "decay-1e-09",
        "decay-5e-05",
        "decay-0.002",
        "decay-2.0",
    ]
    assert slug(f"decay {1e9:g}") == "decay-1e09"
