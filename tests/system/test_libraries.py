"""Required libraries: absent and too old ones are refused with the version and the remedy."""

import importlib.metadata

import pytest

from lm import libraries
from lm.errors import ConfigError

REQUIRES = [
    "torch>=2.6",
    "optuna>=5.2; extra == 'tune'",
    "triton<4,>=3.4; (system == 'Linux') and extra == 'dev'",
]


@pytest.fixture(autouse=True)
def requires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: REQUIRES)


@pytest.mark.parametrize(
    ("installed", "needs"),
    [("", "optuna;"), ("5.1.9", "optuna 5.2 or newer, not 5.1.9;"), ("4.10", "5.2 or newer")],
)
def test_absent_and_too_old_libraries_are_refused(
    monkeypatch: pytest.MonkeyPatch, installed: str, needs: str
) -> None:
    monkeypatch.setattr(libraries, "installed_version", lambda name: installed)
    with pytest.raises(ConfigError) as refused:
        libraries.require_libraries("tune", "tune", "optuna")
    assert str(refused.value).startswith("tune needs optuna")
    assert needs in str(refused.value)
    assert str(refused.value).endswith("install it with pip install -e '.[tune]' in the folder of Highrank")


@pytest.mark.parametrize("installed", ["5.2", "5.2.0", "5.10.1", "6.0.0rc1"])
def test_new_enough_libraries_pass(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    monkeypatch.setattr(libraries, "installed_version", lambda name: installed)
    libraries.require_libraries("tune", "tune", "optuna")
    assert [library.too_old for library in libraries.required_libraries("tune")] == [False]


def test_a_library_that_another_brings_has_no_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "installed_version", lambda name: "0.1")
    libraries.require_libraries("the tokenizer", "hf", "tokenizers")
    monkeypatch.setattr(libraries, "installed_version", lambda name: "")
    with pytest.raises(ConfigError, match=r"^the tokenizer needs tokenizers; install it with"):
        libraries.require_libraries("the tokenizer", "hf", "tokenizers")


def test_an_extra_has_its_own_libraries() -> None:
    assert [library.name for library in libraries.required_libraries()] == ["torch"]
    assert [library.name for library in libraries.required_libraries("dev")] == ["triton"]


def test_without_an_installation_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    assert not list(libraries.required_libraries())
