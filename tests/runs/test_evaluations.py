"""Evaluations of a run: their names, and two processes that write one of the same name."""

import multiprocessing
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm.errors import StorageError
from lm.runs import evaluations
from lm.runs.evaluations import EVALUATIONS, keep, require_keepable, setting_slug, slug


@given(st.text(max_size=30), st.text(max_size=30))
def test_settings_that_differ_have_different_names(one: str, other: str) -> None:
    assert (setting_slug(one) == setting_slug(other)) == (one == other)


@given(st.text(min_size=1, max_size=60))
def test_a_name_is_a_part_of_a_file_name(text: str) -> None:
    for name in (slug(text), setting_slug(text)):
        assert re.fullmatch(r"[\w.+-]+", name), name


def test_a_name_that_is_no_utf8_is_a_part_of_a_file_name_too() -> None:
    assert re.fullmatch(r"with-caf-[0-9a-f]{8}", setting_slug("with-caf\udce9"))


def test_values_keep_their_form() -> None:
    values = (1e9, 1e-9, 5e-05, 0.002, 2.0)
    forms = ["1000000000.0", "1e-09", "5e-05", "0.002", "2.0"]
    assert [setting_slug(f"decay-{value}") for value in values] == [f"decay-{form}" for form in forms]


@dataclass(frozen=True)
class Scores:
    """An evaluation of a text."""

    data: dict[str, str]
    name: str = "test"


def test_two_processes_keep_two_texts_of_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins between the check and the write of the first."""
    checked, others = evaluations.kept_inputs, list[Any]()
    one, two = Scores({"sha256": "a" * 64}), Scores({"sha256": "b" * 64})

    def begin_another(path: Path) -> tuple[str, str] | None:
        found = checked(path)
        if not others:
            others.append(multiprocessing.get_context("fork").Process(target=keep, args=(tmp_path, two, {})))
            others[0].start()
            time.sleep(0.3)
        return found

    monkeypatch.setattr(evaluations, "kept_inputs", begin_another)
    keep(tmp_path, one, {})
    others[0].join()
    names = sorted(path.name for path in (tmp_path / EVALUATIONS).glob("*.json"))
    assert names == [f"test.{'b' * 6}.json", "test.json"]


def test_a_run_that_cannot_be_written_is_told_before_the_work(tmp_path: Path, unwritable: Any) -> None:
    unwritable(tmp_path)
    with pytest.raises(StorageError, match=r"read-only.*; results are kept in RUN/evaluation: copy the run"):
        require_keepable(tmp_path)
