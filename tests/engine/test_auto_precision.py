"""What ``auto`` comes to: the faster at the start of a training, kept in the run from there on."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dialog.config import DialogConfig
from dialog.train import train as train_dialog
from lm.config.load import Resolved, load_config, save_config
from lm.engine import auto_precision
from lm.engine.auto_precision import Tried, kept_precisions, measured_precisions, speed_of
from lm.engine.events import no_report
from lm.heads.config import HeadConfig
from lm.language.config import LmConfig
from lm.language.train import train as train_lm
from lm.runs.checkpoint import CheckpointStore
from lm.runs.inputs import saved_settings
from tests.support.tiny_lm import text_of
from tests.support.tiny_task import Notes

CPU = torch.device("cpu")
SIZES = (4000, 200)


def resolved(*overrides: str) -> Resolved[LmConfig]:
    return load_config("ptb_small_mos", LmConfig, family="lm", overrides=overrides)


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    return lambda value: monkeypatch.setattr(auto_precision, "speed_of", lambda *_: value)


@pytest.mark.parametrize(("measured", "wanted"), [(3.0, "bfloat16"), (1.2, "float32"), (0.1, "float32")])
def test_bfloat16_has_to_be_clearly_faster(
    measured: float, wanted: str, speed: Callable[[float], None], tmp_path: Path
) -> None:
    speed(measured)
    notes = Notes()
    found = measured_precisions(resolved(), SIZES, CPU, tmp_path, notes)
    assert found.config.head.products == wanted
    assert f"{measured:.2g} times" in found.provenance["head.products"]
    (line,) = notes.lines
    assert line.startswith(f"head.products = {wanted}, as bfloat16 has {measured:.2g} times the speed")
    assert "threads" not in line, "they were not chosen here"


@pytest.mark.parametrize("given", ["float32", "bfloat16"])
def test_a_value_that_is_given_is_taken(given: str, speed: Callable[[float], None], tmp_path: Path) -> None:
    speed(3.0 if given == "float32" else 0.1)
    config = resolved(f"head.products={given}")
    notes = Notes()
    assert measured_precisions(config, SIZES, CPU, tmp_path, notes) is config
    assert notes.lines == []


@pytest.mark.parametrize("measured", [0.996, 1.0, 1.04])
def test_equal_speeds_are_called_equal(
    measured: float, speed: Callable[[float], None], tmp_path: Path
) -> None:
    speed(measured)
    notes = Notes()
    measured_precisions(resolved(), SIZES, CPU, tmp_path, notes)
    assert notes.lines == ["head.products = float32, as bfloat16 is as fast as float32 here"]


def test_small_products_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_precision, "speed_of", None)
    found = measured_precisions(resolved(), (600, 64), CPU, tmp_path, Notes())
    assert found.config.head.products == "float32"


def test_a_run_goes_on_with_what_it_has_chosen(tmp_path: Path, speed: Callable[[float], None]) -> None:
    speed(3.0)
    save_config(measured_precisions(resolved(), SIZES, CPU, tmp_path, Notes()), tmp_path / "config.json")
    speed(0.1)
    again = kept_precisions(resolved(), tmp_path)
    assert again.config.head.products == "bfloat16"
    assert again.provenance["head.products"].startswith("as bfloat16 has 3 times the speed")
    assert measured_precisions(again, SIZES, CPU, tmp_path, Notes()) is again
    assert kept_precisions(resolved("head.products=float32"), tmp_path).config.head.products == "float32"


def test_an_older_run_goes_on_as_it_began(tmp_path: Path) -> None:
    """Its config lacks the key; then ``auto`` is float32."""
    path = tmp_path / "config.json"
    save_config(resolved(), path)
    path.write_text(path.read_text().replace('"products": "auto",', ""))
    assert '"products"' not in path.read_text()
    config = resolved()
    assert kept_precisions(config, tmp_path) == config
    assert measured_precisions(config, SIZES, CPU, tmp_path, Notes()) is config


@pytest.mark.parametrize("head", [HeadConfig(kind="mos", components=3), HeadConfig(kind="softmax")])
@pytest.mark.parametrize("key", list(auto_precision.JOBS))
def test_what_is_timed_is_the_work_itself_and_draws_no_random_number(head: HeadConfig, key: str) -> None:
    before = torch.get_rng_state()
    tried = auto_precision.JOBS[key](head, (2**13, 64), CPU)
    assert tried is not None
    exact, rough = tried.float32(), tried.bfloat16()
    assert torch.equal(torch.get_rng_state(), before)
    for one, other in zip(
        *(part if isinstance(part, tuple) else (part,) for part in (exact, rough)), strict=True
    ):
        assert not torch.equal(one, other)
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05)


def test_the_speed_is_that_of_bfloat16_beside_float32() -> None:
    slow, fast = (lambda: time.sleep(0.04)), (lambda: time.sleep(0.002))
    assert speed_of(Tried(slow, fast), CPU) > 1.5
    assert speed_of(Tried(fast, slow), CPU) < 0.7


@pytest.mark.parametrize("disturbed", [0, 1])
def test_other_work_during_a_round_does_not_decide(disturbed: int) -> None:
    seconds = iter([0.002] * (1 + disturbed) + [0.1] + [0.002] * 9)
    speed = speed_of(Tried(lambda: time.sleep(0.006), lambda: time.sleep(next(seconds))), CPU)
    assert speed > 1.5


TALK = "A: good morning\nB: morning , did you sleep ?\nA: i did\nB: good\n\nA: hello\nB: well hello\nA: bye\n"
SMALL_SIZES = {
    "dialog": ("encoder.utterance_size=4", "encoder.context_size=4", "decoder.hidden_size=4"),
    "lm": ("model.hidden_sizes=[4]", "window.length=5", "window.shortest=2", "data.vocab_size=0"),
}


def tiny(family: str, folder: Path, steps: int) -> Resolved[Any]:
    texts = {"dialog": TALK, "lm": text_of(40, 1)}
    (folder / "text.txt").write_text(texts[family])
    sources = [f"data.{split}={folder / 'text.txt'}" for split in ("train", "valid", "test")]
    both = (
        "head.embedding_size=4",
        "model.embedding_size=4",
        "train.batch_size=2",
        f"train.max_steps={steps}",
    )
    often = ("train.validate_every=1", "train.checkpoint_every=1", "train.max_epochs=0", "train.threads=1")
    name, schema = {"dialog": ("smalltalk_mos", DialogConfig), "lm": ("ptb_small_mos", LmConfig)}[family]
    overrides = [*sources, *both, *often, *SMALL_SIZES[family]]
    return load_config(name, schema, family=family, overrides=overrides)


@pytest.mark.parametrize(("family", "train"), [("dialog", train_dialog), ("lm", train_lm)])
def test_a_training_keeps_what_it_chose_and_resumes_with_the_same_bits(
    family: str,
    train: Callable[..., object],
    speed: Callable[[float], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto_precision, "SMALL", 0)

    def trained(name: str, steps: int) -> str:
        train(tiny(family, tmp_path, steps), tmp_path / name, no_report)
        return CheckpointStore(tmp_path / name / "checkpoints").open("last").state_sha256

    def chosen(name: str) -> list[tuple[object, str]]:
        found = saved_settings(tmp_path / name)
        return [(found[key].value, found[key].where) for key in auto_precision.JOBS if key in found]

    speed(3.0)
    whole = trained("whole", 4)
    trained("cut", 2)
    reason = ("bfloat16", "as bfloat16 has 3 times the speed of float32 here")
    assert chosen("cut") == [reason] * len(chosen("cut")) != []
    speed(0.1)
    assert trained("cut", 4) == whole
    assert chosen("cut") == chosen("whole")
    assert trained("other", 4) != whole
