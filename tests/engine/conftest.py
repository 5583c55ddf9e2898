"""A folder for a run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tiny_task import run_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """A run folder to be, in memory where there is such a place."""
    with run_folder() as path:
        yield path
