"""A folder for a search, and a search that nothing disturbed. Both need optuna, an extra."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_task import run_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with run_folder() as path:
        path.mkdir()
        yield path


@pytest.fixture(scope="session")
def undisturbed() -> Iterator[tuple[list[dict[str, Any]], list[tuple[str, bytes]]]]:
    """A search that nothing disturbed: its trials, and what their runs hold."""
    from tests.support.tiny_search import N, plan, runs_of, search

    with run_folder() as path:
        path.mkdir()
        rows = search(path / "search", plan(path), N)
        yield rows, runs_of(path / "search", N)
