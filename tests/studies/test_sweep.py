"""A sweep of trainings: what it stores, counts and trains again."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lm.errors import DivergenceError, StorageError
from lm.steps import no_progress
from lm.studies.sweep import Sweep, cosine_adam, descend


def diverged() -> dict[str, Any]:
    raise DivergenceError("diverged")


def test_every_training_is_counted_and_only_a_finished_one_is_stored(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    sweep = Sweep(tmp_path / "new", "p.jsonl", {"value": int}, 3, lambda *counts: seen.append(counts))
    assert sweep.measured({"number": 1}, lambda: {"value": 7}) == {"value": 7}
    with pytest.raises(DivergenceError):
        sweep.measured({"number": 2}, diverged)
    assert sweep.measured({"number": 1}, diverged) == {"value": 7}
    assert sweep.finished("r.json", {"rows": [7]}) == {"rows": [7]}
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert json.loads((tmp_path / "new" / "r.json").read_text()) == {"rows": [7]}
    (line,) = (tmp_path / "new" / "p.jsonl").read_text().splitlines()
    assert json.loads(line) == {"settings": {"number": 1}, "result": {"value": 7}}


def test_a_run_is_no_folder_of_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(StorageError, match="is the folder of a run; choose a new or empty --out"):
        Sweep(tmp_path, "p.jsonl", {}, 1, no_progress)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize(("clip_norm", "moved"), [(0, 30.0), (2, 2.0)])
def test_gradients_are_clipped_where_the_config_says_so(clip_norm: float, moved: float) -> None:
    model = nn.Linear(1, 1, bias=False)
    start = model.weight.detach().clone()
    optim = cosine_adam(1, 1.0).model_copy(update={"name": "sgd", "clip_norm": clip_norm})
    losses = descend(model, lambda: 30 * model.weight.sum(), optim)
    assert losses == [pytest.approx(30 * start.item())]
    torch.testing.assert_close(start - model.weight.detach(), torch.tensor([[moved]]))
