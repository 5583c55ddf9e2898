"""Models shared by the tests of dialog models."""

import pytest

from dialog.trained import TrainedModel
from tests.support.tiny_dialog import tiny_dialog


@pytest.fixture(scope="module")
def tiny() -> TrainedModel:
    """A real model with random weights."""
    return tiny_dialog()
