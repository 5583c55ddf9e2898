"""Limits of a training that leave out the end of its schedule, or its average."""

from pathlib import Path
from typing import Any

import pytest

from dialog.config import DialogConfig
from lm.config.load import load_config
from lm.config.presets import preset_names
from lm.engine.config import OptimConfig, TrainConfig
from lm.engine.events import Note
from lm.engine.limits import notes_on_max_steps
from lm.language.config import LmConfig
from lm.language.train import train
from tests.support.tiny_training import resolved, write_corpus


@pytest.mark.parametrize(
    ("optim", "least", "key"),
    [
        ({"warmup_steps": 20}, 20, "warmup_steps"),
        ({"schedule": "cosine", "decay_steps": 30}, 30, "decay_steps"),
        ({"schedule": "one_cycle", "warmup_steps": 5, "decay_steps": 30}, 30, "decay_steps"),
        ({"average": "ema", "average_start": 12}, 13, "average_start"),
    ],
)
def test_a_limit_that_leaves_out_updates_of_a_key_is_told_by_its_name(
    optim: dict[str, Any], least: int, key: str
) -> None:
    config = OptimConfig.model_validate(optim)
    (note,) = notes_on_max_steps(TrainConfig(max_steps=least - 1), config)
    assert note.startswith(f"optim.{key} = {optim[key]}: training ends at train.max_steps = {least - 1}, so ")
    assert not [*notes_on_max_steps(TrainConfig(max_steps=least), config)]
    assert not [*notes_on_max_steps(TrainConfig(max_epochs=1), config)]


@pytest.mark.parametrize("waits", [{"average_trigger": 5}, {"average_patience": 5}])
def test_an_average_that_validations_begin_has_no_note(waits: dict[str, int]) -> None:
    config = OptimConfig.model_validate({"average": "uniform", **waits})
    assert not [*notes_on_max_steps(TrainConfig(max_steps=1), config)]


@pytest.mark.parametrize(("family", "schema"), [("lm", LmConfig), ("dialog", DialogConfig)])
def test_presets_reach_the_end_of_their_schedules(family: str, schema: type[Any]) -> None:
    configs = {name: load_config(name, schema, family=family).config for name in preset_names(family)}
    assert configs
    short = {name: [*notes_on_max_steps(one.train, one.optim)] for name, one in configs.items()}
    assert {name: notes for name, notes in short.items() if notes} == {}


def test_a_training_tells_what_its_limit_leaves_out(in_tmp: Path) -> None:
    sizes = "[model]\nembedding_size = 6\nhidden_sizes = [8]\n[window]\nlength = 7\nshortest = 2\n"
    write_corpus(in_tmp, f'[data]\ntrain = "train.txt"\nvalid = "valid.txt"\n{sizes}', 20, 20, longest=12)
    events: list[object] = []
    average = ("optim.average=ema", "optim.average_start=2", "train.max_steps=2", "train.batch_size=4")
    train(resolved(*average), Path("run"), events.append)
    said = "optim.average_start = 2: training ends at train.max_steps = 2, so no weights are averaged"
    assert events.count(Note(said)) == 1
