"""The variants of cells that Melis et al. (2020) rule out as reasons (§4.4), and the values of gates."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lm.cells.config import CellConfig, CellSettings
from lm.cells.equations import GruEquations, NormalizedCappedLstmEquations
from lm.cells.layers import gated_layer, recurrent_layer, uniform_parameters
from tests.support.plain_cells import B, Cell, H, I, T, assert_equals_slow, masks, roughened, window

CONTROLS: list[dict[str, Any]] = [
    {"layer_norm": True}, {"layer_norm": True, "cap_input_gate": True}, {"input_scale": True},
    {"weight_rank": 2}, {"kind": "mlstm", "layer_norm": True, "input_scale": True},
    {"kind": "mogrifier", "rounds": 3, "rank": 2, "layer_norm": True, "input_scale": True, "weight_rank": 2},
    {"kind": "gru", "input_scale": True, "weight_rank": 2},
]  # fmt: skip


def cell_of(config: dict[str, Any]) -> Cell:
    cell = recurrent_layer(CellConfig.model_validate(config), I, H, 0.0)
    assert isinstance(cell, Cell)
    return cell


@pytest.mark.parametrize("config", CONTROLS, ids=str)
def test_the_controls_of_melis_equal_their_equations(config: dict[str, Any]) -> None:
    """Scaled inputs, factorised matrices and layer normalisation (their §4.4)."""
    for mask in masks():
        cell = cell_of(config)
        assert getattr(cell.equations, "capped", False) == config.get("cap_input_gate", False)
        assert_equals_slow(roughened(cell), *window(), mask)


def test_a_layer_norm_gives_every_gate_the_deviation_of_its_gain() -> None:
    cell = cell_of({"layer_norm": True})
    inputs, state = 100 * torch.randn(T, B, I), (torch.randn(B, H), torch.randn(B, H))
    _, forget, _, _ = cell.gate_values(inputs, state).unbind(2)
    sums = torch.logit(forget.double()) - cell.bias[H : 2 * H]
    torch.testing.assert_close(sums.mean(2), torch.zeros(T, B).double(), atol=1e-4, rtol=0)
    torch.testing.assert_close(sums.var(2, unbiased=False), torch.ones(T, B).double(), atol=1e-3, rtol=0)


def test_factorised_matrices_have_the_rank_and_start_as_wide_as_full_ones() -> None:
    full = recurrent_layer(CellConfig(cap_input_gate=True), 40, 50, 0.0)
    low = recurrent_layer(CellConfig(weight_rank=7), 40, 50, 0.0)
    for name in ("weight_ih", "weight_hh"):
        matrix = getattr(low, name)
        assert torch.linalg.matrix_rank(matrix) == 7
        assert float(matrix.detach().std()) == pytest.approx(
            float(getattr(full, name).detach().std()), rel=0.15
        )
    assert sum(parameter.numel() for parameter in low.parameters()) == 7 * (200 + 40) + 7 * (200 + 50) + 200
    most = recurrent_layer(CellConfig(weight_rank=10**6), 40, 50, 0.0)
    assert [torch.linalg.matrix_rank(getattr(most, name)) for name in ("weight_ih", "weight_hh")] == [40, 50]


def test_a_dialog_models_own_start_leaves_theirs_alone() -> None:
    cell = cell_of({"layer_norm": True, "input_scale": True, "weight_rank": 2})
    assert list(uniform_parameters(cell)) == [cell.bias]


@pytest.mark.parametrize(
    "config",
    [
        {}, {"cap_input_gate": True}, {"layer_norm": True}, {"kind": "mogrifier", "rank": 2},
        {"kind": "mlstm"}, {"input_scale": True}, {"kind": "gru"}, {"kind": "gru", "input_scale": True},
    ],
    ids=str,
)  # fmt: skip
def test_gate_values_are_those_that_make_the_outputs(config: dict[str, Any]) -> None:
    cell = recurrent_layer(CellConfig.model_validate(config), I, H, 0.0)
    roughened(cell)
    inputs, (h, c) = window()
    with torch.no_grad():
        outputs, _ = cell(inputs, (h, c))
    values = cell.gate_values(inputs, (h, c))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(cell.gate_values(inputs, (h, c)), values)
    if config.get("kind") == "gru":
        for (_, z, n), output in zip(values.transpose(1, 2), outputs, strict=True):
            h = (1 - z) * n + z * h
            torch.testing.assert_close(h, output)
        return
    for (i, f, g, o), output in zip(values.transpose(1, 2), outputs, strict=True):
        c = f * c + i * g
        torch.testing.assert_close(o * torch.tanh(c), output)


def test_recurrent_weights_drop_where_they_are_factorised_too() -> None:
    cell = recurrent_layer(CellConfig(weight_rank=2), I, H, 0.5)
    inputs, state = torch.randn(T, B, I), (torch.randn(B, H), torch.randn(B, H))
    assert not torch.equal(cell(inputs, state)[0], cell(inputs, state)[0])
    cell.eval()
    assert torch.equal(cell(inputs, state)[0], cell(inputs, state)[0])


def test_a_gru_beside_a_normalised_lstm_is_a_gru() -> None:
    """Encoder and decoder of a dialog model share their settings."""
    settings = CellSettings(layer_norm=True, cap_input_gate=True)
    gru, lstm = (gated_layer(settings.of(kind), I, H) for kind in ("gru", "lstm"))
    assert (gru.gain, gru.equations) == (None, GruEquations)
    assert (lstm.gain is None, lstm.equations) == (False, NormalizedCappedLstmEquations)


@pytest.mark.parametrize(
    "config",
    [
        {"cap_input_gate": True}, {"layer_norm": True}, {"layer_norm": True, "input_scale": True},
        {"kind": "mlstm"}, {"kind": "mogrifier", "rounds": 3, "rank": 2},
        {"kind": "mogrifier_gru", "rounds": 1},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_kept_for_gradients_is_what_is_estimated(config: dict[str, Any]) -> None:
    """Numbers a token and unit where sizes are equal; what has a rank is small, and left out."""
    size, steps, streams = 64, 40, 4
    tokens = steps * streams
    cell = recurrent_layer(CellConfig.model_validate(config), size, size, 0.0)
    state = (torch.zeros(streams, size), torch.zeros(streams, size))
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.shape[:1] == (tokens,):
            kept[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        cell(torch.randn(steps, streams, size, requires_grad=True), state)
    estimate = CellConfig.model_validate(config).floats + 2  # with what is read
    assert sum(kept.values()) / (tokens * size) == pytest.approx(estimate, abs=0.3)
