"""The ``lm`` command line, a folder with runs that it trained, and a folder with a pretrained model."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lm.cli import main
from tests.support.lm_workspace import Lm, Outcome, make_workspace


@pytest.fixture
def lm(ending: Callable[..., Outcome]) -> Lm:
    """Runs ``lm`` in this process: exit code, stdout and stderr."""
    return partial(ending, main)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a prepared text, two trained runs, and a run of dialog."""
    return make_workspace(tmp_path_factory.mktemp("lm"))


@pytest.fixture
def inside(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That folder, as the working directory."""
    monkeypatch.chdir(workspace)
    return workspace


@pytest.fixture
def pretrained_corpus(in_tmp: Path) -> Path:
    """A folder with a config, its texts, and a model of transformers; also the working directory."""
    from tests.support.pretrained_lm import write_pretrained_corpus  # loads transformers

    return write_pretrained_corpus(in_tmp)
