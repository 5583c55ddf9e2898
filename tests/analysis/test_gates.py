"""What the gates of a model do over a text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lm.analysis.gates import gate_statistics
from lm.cli import main
from lm.language.trained import TrainedLm
from tests.support.tiny_lm import CELLS, ids_of, tiny_lm, write_run


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_statistics_are_those_of_all_values(cell: dict[str, Any]) -> None:
    trained = tiny_lm(cell=cell)
    ids = ids_of(trained, 200)
    result = gate_statistics(trained, ids)
    assert result.tokens == 200
    rows = {(row.layer, row.gate): row for row in result.gates}
    values = first_layer(trained, ids)
    assert len(rows) == 2 * values.shape[2], "of both layers"
    names = (
        ("input", "forget", "candidate", "output")
        if values.shape[2] == 4
        else ("reset", "update", "candidate")
    )
    for place, name in enumerate(names):
        found, each = rows[1, name], values[:, :, place].flatten().double()
        assert found.mean == pytest.approx(float(each.mean()), abs=1e-6)
        assert found.deviation == pytest.approx(float(each.std(unbiased=False)), abs=1e-6)
        low = -0.8 if name == "candidate" else 0.1
        high = 0.8 if name == "candidate" else 0.9
        assert found.low == pytest.approx(float((each < low).double().mean()))
        assert found.high == pytest.approx(float((each > high).double().mean()))


def first_layer(trained: TrainedLm, ids: np.ndarray) -> torch.Tensor:
    """Its gates in one window."""
    model = trained.model
    tokens = torch.tensor([trained.codec.vocabulary.eos, *ids[:-1].tolist()])[:, None]
    with torch.no_grad():
        layer: Any = model.layers[0]
        return layer.gate_values(model.embedding(tokens), model.layers.initial_state(1).layers[0])


def test_the_command_shows_every_gate(
    ending: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    code, out, err = ending(main, "analyze", "gates", "a", "--json", "g.json")
    assert (code, err) == (0, "")
    rows = json.loads(Path("g.json").read_text())["runs"]["a"]["gates"]
    assert [row["gate"] for row in rows] == ["input", "forget", "candidate", "output"] * 2
    assert all(0 < row["mean"] < 1 for row in rows if row["gate"] != "candidate")
    assert "forget" in out


def test_the_model_is_left_as_it_was() -> None:
    trained = tiny_lm()
    ids = ids_of(trained, 12)
    first = gate_statistics(trained, ids)
    assert not any(module._forward_hooks for module in trained.model.modules())
    assert gate_statistics(trained, ids) == first
