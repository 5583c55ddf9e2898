"""Gated cells against their equations written out step by step, values and gradients, in float64."""

import pytest
import torch
from torch import Tensor, nn

from lm.cells.config import CellConfig
from lm.cells.equations import CappedLstmEquations
from lm.cells.layers import MLSTM, GatedGRU, GatedLSTM, recurrent_layer, uniform_parameters
from lm.cells.lstm import FEW_TOKENS, WeightDropLSTM
from lm.engine.shapes import shapes_only
from tests.support.plain_cells import (
    B,
    Cell,
    H,
    I,
    State,
    T,
    assert_equals_slow,
    everything,
    masks,
    mogrifier_gru,
    mogrifier_lstm,
    roughened,
    slow,
    window,
)


@pytest.mark.parametrize("rounds", range(7))
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("zigzag", [True, False])
def test_mogrifier_equals_its_equations(rounds: int, rank: int, zigzag: bool) -> None:
    for (biased, capped), mask in zip([(True, True), (True, False), (False, False)], masks(), strict=True):
        cell = mogrifier_lstm(I, H, rounds, rank, biased, zigzag, capped)
        assert len(list(cell.parameters())) == 3 + rounds * (1 + biased + (rank > 0))
        assert_equals_slow(roughened(cell), *window(), mask)


@pytest.mark.parametrize("rounds", range(5))
@pytest.mark.parametrize("zigzag", [True, False])
def test_mogrifier_gru_equals_its_equations(rounds: int, zigzag: bool) -> None:
    for rank, mask in zip((0, 2, 2), masks(), strict=True):
        cell = mogrifier_gru(I, H, rounds, rank, rank == 2, zigzag)
        assert_equals_slow(roughened(cell), *window(), mask)


@pytest.mark.parametrize("capped", [False, True])
def test_mlstm_equals_its_equations(capped: bool) -> None:
    for mask in masks():
        assert_equals_slow(roughened(MLSTM(I, H, capped)), *window(), mask)


@pytest.mark.parametrize(
    "cell",
    [
        mogrifier_lstm(I, H, 0), mogrifier_lstm(I, H, 3, 2, cap_input_gate=True), MLSTM(I, H),
        mogrifier_gru(I, H, 0), mogrifier_gru(I, H, 3, 2),
    ],
)  # fmt: skip
def test_states_that_are_forgotten_are_read_as_zero(cell: Cell) -> None:
    roughened(cell)
    for mask in masks():
        assert_equals_slow(cell, *window(), mask, torch.rand(T, B).double() < 0.6)
    keep = torch.ones(T, B)
    keep[0] = 0
    inputs, state = window()
    again = cell(inputs, (torch.zeros_like(state[0]), torch.zeros_like(state[1])))[0]
    torch.testing.assert_close(cell(inputs, state, None, keep)[0], again)


@pytest.mark.parametrize(("steps", "streams"), [(1, B), (T, 1), (1, 1)])
def test_windows_of_one_step_or_one_stream(steps: int, streams: int) -> None:
    for cell in (mogrifier_lstm(I, H, 5, 2), MLSTM(I, H), mogrifier_gru(I, H, 5, 2)):
        assert_equals_slow(roughened(cell), *window(steps, streams), torch.rand(streams, H).double())


@pytest.mark.parametrize(
    "cell",
    [
        mogrifier_lstm(I, H, 3, 2), mogrifier_lstm(I, H, 4, cap_input_gate=True),
        mogrifier_lstm(I, H, 5, 2, zigzag=False), MLSTM(I, H), mogrifier_gru(I, H, 3, 2),
    ],
)  # fmt: skip
def test_gradcheck(cell: Cell) -> None:
    roughened(cell)
    inputs, state = window(3, 2)
    mask = torch.rand(2, H).double()

    def run(inputs: Tensor, h: Tensor, c: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        outputs, last = cell(inputs, (h, c), mask)
        return outputs, *last

    assert torch.autograd.gradcheck(run, (inputs, *state, *cell.parameters()), fast_mode=True)


def lstm_twin(cell: GatedLSTM) -> WeightDropLSTM:
    twin = WeightDropLSTM(cell.input_size, cell.hidden_size, cell.weight_dropout)
    names = {"weight_ih_l0": cell.weight_ih, "weight_hh_l0": cell.weight_hh, "bias_ih_l0": cell.bias}
    twin.load_state_dict({**names, "bias_hh_l0": torch.zeros_like(cell.bias)})
    return twin


@pytest.mark.parametrize("steps", [1, FEW_TOKENS // B, T * FEW_TOKENS])
@pytest.mark.parametrize("grad", [True, False])
def test_without_rounds_it_is_the_lstm_to_the_bit(steps: int, grad: bool) -> None:
    cell = mogrifier_lstm(I, H, rounds=0, weight_dropout=0.5)
    inputs, state = torch.randn(steps, B, I), (torch.randn(B, H), torch.randn(B, H))
    twin = lstm_twin(cell)
    with torch.set_grad_enabled(grad):
        torch.manual_seed(1)
        outputs, last = cell(inputs, state)
        torch.manual_seed(1)  # the same weights are dropped
        wanted, wanted_last = twin(inputs, state)
    assert all(map(torch.equal, (outputs, *last), (wanted, *wanted_last)))
    if grad:
        outputs.square().sum().backward()
        wanted.square().sum().backward()
        assert all(
            torch.equal(p.grad, q.grad)
            for p, q in zip(cell.parameters(), twin.parameters(), strict=False)
            if p.grad is not None and q.grad is not None
        )
        assert cell.bias.grad is not None


@pytest.mark.parametrize("steps", [1, T])
def test_without_rounds_it_is_torchs_gru_to_the_bit(steps: int) -> None:
    """Outputs and the gradients of what torch's layer has; c comes back as it was."""
    cell, twin = mogrifier_gru(I, H, rounds=0), nn.GRU(I, H)
    inputs, h, c = torch.randn(steps, B, I), torch.randn(B, H), torch.randn(B, H)
    inner = torch.cat([torch.zeros(2 * H), cell.inner_bias.detach()])
    names = {"weight_ih_l0": cell.weight_ih, "weight_hh_l0": cell.weight_hh, "bias_ih_l0": cell.bias}
    twin.load_state_dict({**names, "bias_hh_l0": inner})
    outputs, last = cell(inputs, (h, c))
    wanted, wanted_last = twin(inputs, h[None])
    assert all(map(torch.equal, (outputs, *last), (wanted, wanted_last[0], c)))
    outputs.square().sum().backward()
    wanted.square().sum().backward()
    assert torch.equal(cell.inner_bias.grad, twin.bias_hh_l0.grad[2 * H :])
    for name, parameter in names.items():
        assert torch.equal(parameter.grad, twin.get_parameter(name).grad)


@pytest.mark.parametrize("kind", [GatedLSTM, GatedGRU])
def test_our_loop_without_rounds_equals_torchs_layer(kind: type[GatedLSTM | GatedGRU]) -> None:
    cell = kind(I, H)
    roughened(cell)
    inputs, state = window()
    ones = everything(lambda x, s: cell(x, s, torch.ones_like(s[0])), cell, inputs, state)
    for one, other in zip(ones, everything(cell, cell, inputs, state), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("cell", [mogrifier_lstm(I, H), mogrifier_gru(I, H), MLSTM(I, H)])
def test_a_window_of_no_steps_is_refused(cell: Cell) -> None:
    with pytest.raises(ValueError, match="at least one"):
        cell(torch.empty(0, B, I), (torch.zeros(B, H), torch.zeros(B, H)))


def test_gates_of_zero_weights_leave_everything_as_it_is() -> None:
    gated, plain = mogrifier_lstm(I, H, 5, 2), mogrifier_lstm(I, H, 0)
    plain.load_state_dict({name: value for name, value in gated.state_dict().items() if "gates" not in name})
    for gate in gated.gates:
        assert not torch.equal(gate.get_parameter("up"), torch.zeros_like(gate.get_parameter("up")))
        nn.init.zeros_(gate.get_parameter("up"))
    inputs, state = window()
    torch.testing.assert_close(gated.double()(inputs, state), plain.double()(inputs, state))


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_the_ablation_differs_from_two_rounds_on(rounds: int) -> None:
    zigzag = roughened(mogrifier_lstm(I, H, rounds, 2))
    without = mogrifier_lstm(I, H, rounds, 2, zigzag=False).double()
    without.load_state_dict(zigzag.state_dict())
    inputs, state = window()
    assert torch.equal(zigzag(inputs, state)[0], without(inputs, state)[0]) == (rounds == 1)


def test_low_rank_equals_full_rank_with_the_product_of_its_factors() -> None:
    low, full = mogrifier_lstm(I, H, 5, 2), mogrifier_lstm(I, H, 5)
    roughened(low)
    state_dict = low.state_dict()
    for number in range(5):
        down = state_dict.pop(f"gates.{number}.down")
        state_dict[f"gates.{number}.up"] = state_dict[f"gates.{number}.up"] @ down
    full.double().load_state_dict(state_dict)
    torch.testing.assert_close(low(*window_of_seed(3)), full(*window_of_seed(3)))


def window_of_seed(seed: int) -> tuple[Tensor, State]:
    torch.manual_seed(seed)
    return window()


@pytest.mark.parametrize("cell", [mogrifier_lstm(I, H, 5, 2), MLSTM(I, H), mogrifier_gru(I, H, 2)])
def test_two_windows_that_carry_the_state_are_one(cell: Cell) -> None:
    roughened(cell)

    def halves(inputs: Tensor, state: State) -> tuple[Tensor, State]:
        first, state = cell(inputs[:1], state)
        second, state = cell(inputs[1:], state)
        return torch.cat([first, second]), state

    inputs, state = window()
    ours = everything(halves, cell, inputs, state)
    for one, other in zip(ours, everything(cell, cell, inputs, state), strict=True):
        torch.testing.assert_close(one, other)


def test_going_back_twice_gives_the_same_gradients() -> None:
    cell = mogrifier_lstm(I, H, 5, 2, cap_input_gate=True)
    outputs, _ = cell(torch.randn(T, B, I), (torch.randn(B, H), torch.randn(B, H)))
    first, second = (
        torch.autograd.grad(outputs.square().sum(), list(cell.parameters()), retain_graph=True)
        for _ in range(2)
    )
    assert all(map(torch.equal, first, second))


def test_a_capped_input_gate_bounds_the_cell_state_and_ties_go_to_the_forget_gate() -> None:
    cell = roughened(mogrifier_lstm(I, H, 0, cap_input_gate=True))
    nn.init.constant_(cell.get_parameter("bias"), 9)
    inputs, (h, _) = window(50)
    _, (_, c) = cell(inputs, (h, torch.zeros_like(h)))
    assert c.abs().max() <= 1
    for parameter in cell.parameters():
        nn.init.zeros_(parameter)
    nn.init.ones_(cell.get_parameter("bias")[2 * H : 3 * H])  # g > 0, while i = 1 - f = 1/2
    _, (_, c) = cell(torch.zeros(1, B, I).double(), (torch.zeros(B, H).double(),) * 2)
    (grad,) = torch.autograd.grad(c.sum(), cell.get_parameter("bias"))
    assert (grad[:H] == 0).all()
    assert (grad[H : 2 * H] < 0).all()


@pytest.mark.parametrize(
    "cell",
    [
        mogrifier_lstm(I, H, 2, weight_dropout=0.5), MLSTM(I, H, weight_dropout=0.5),
        mogrifier_gru(I, H, 0, weight_dropout=0.5),
    ],
)  # fmt: skip
def test_recurrent_weights_drop_in_training_alone(cell: Cell) -> None:
    inputs, state = torch.randn(T, B, I), (torch.randn(B, H), torch.randn(B, H))
    first, second = cell(inputs, state)[0], cell(inputs, state)[0]
    assert not torch.equal(first, second)
    first.sum().backward()
    assert cell.weight_hh.grad is not None
    assert 0 < cell.weight_hh.grad.eq(0).sum() < cell.weight_hh.numel()
    cell.eval()
    assert torch.equal(cell(inputs, state)[0], cell(inputs, state)[0])


@pytest.mark.parametrize(
    "cell",
    [
        mogrifier_lstm(40, 50, 5, 7), mogrifier_lstm(40, 50, 2, zigzag=False, cap_input_gate=True),
        MLSTM(40, 50), mogrifier_gru(40, 50, 3, 7),
    ],
)  # fmt: skip
def test_long_windows_in_float32_equal_the_equations_in_float64(cell: Cell) -> None:
    inputs, state = torch.randn(20, 13, 40), (torch.randn(13, 50), torch.randn(13, 50))
    outputs, _ = cell(inputs, state)
    grads = torch.autograd.grad(outputs.square().sum(), list(cell.parameters()))
    wanted, _ = slow(cell.double(), inputs.double(), (state[0].double(), state[1].double()), None)
    torch.testing.assert_close(outputs.double(), wanted, atol=1e-5, rtol=1e-5)
    for grad, exact in zip(
        grads, torch.autograd.grad(wanted.square().sum(), list(cell.parameters())), strict=True
    ):
        torch.testing.assert_close(grad.double(), exact, atol=1e-4 * float(exact.abs().max()), rtol=1e-4)


def test_under_autocast_everything_stays_in_the_precision_of_the_parameters() -> None:
    cell = mogrifier_lstm(I, H, 3, 2)
    inputs, state = torch.randn(T, B, I), (torch.randn(B, H), torch.randn(B, H))
    with torch.autocast("cpu", torch.bfloat16):
        outputs, _ = cell(inputs.bfloat16(), state)
    wanted, _ = cell(inputs.bfloat16().float(), state)
    assert torch.equal(outputs, wanted)
    outputs.sum().backward()


def test_published_models_have_the_published_sizes() -> None:
    """Melis et al. (2020) on PTB with 24M weights: V = 10,001, tied, two layers."""

    def size(layers: list[GatedLSTM]) -> int:
        embedding, bias = 10_001 * layers[0].input_size, 10_001
        return embedding + bias + sum(p.numel() for layer in layers for p in layer.parameters())

    with shapes_only():
        assert size([mogrifier_lstm(912, 912, 5, 84) for _ in range(2)]) == 23_987_393
        assert size([mogrifier_lstm(951, 951, 0) for _ in range(2)]) == 23_998_976


def test_a_config_says_which_cell() -> None:
    assert isinstance(recurrent_layer(CellConfig(), 3, 4, 0.5), WeightDropLSTM)
    capped = recurrent_layer(CellConfig(cap_input_gate=True), 3, 4, 0.5)
    assert isinstance(capped, GatedLSTM)
    assert (len(capped.gates), capped.equations, capped.weight_dropout) == (0, CappedLstmEquations, 0.5)
    found = recurrent_layer(CellConfig(kind="mogrifier", rounds=2, rank=1, zigzag=False), 3, 4, 0.0)
    assert isinstance(found, GatedLSTM)
    assert (len(found.gates), found.zigzag) == (2, False)
    assert isinstance(recurrent_layer(CellConfig(kind="mlstm"), 3, 4, 0.0), MLSTM)
    for kind, rounds in (("gru", 0), ("mogrifier_gru", 5)):
        gru = recurrent_layer(CellConfig.model_validate({"kind": kind}), 3, 4, 0.5)
        assert isinstance(gru, GatedGRU)
        assert (len(gru.gates), gru.weight_dropout) == (rounds, 0.5)


@pytest.mark.parametrize(("kind", "forget"), [("lstm", 1), ("mogrifier", 1), ("mlstm", 1), ("gru", 0)])
def test_truncated_weights_start_as_in_lamb(kind: str, forget: int) -> None:
    """Deviation n^-½ with n what is read, none beyond two deviations before truncation."""
    size, inputs = 60, 25
    cell = recurrent_layer(CellConfig.model_validate({"kind": kind, "init": "truncated"}), inputs, size, 0.0)
    assert isinstance(cell, Cell)
    with torch.no_grad():
        assert cell.bias[size : 2 * size].mean().sub(forget).abs() < 0.1
        cell.bias[size : 2 * size] -= forget
    for name, parameter in cell.named_parameters(recurse=False):
        count = inputs if name in ("weight_ih", "weight_mx") else size
        few = 0.2 if parameter.dim() == 1 else 0.05
        assert float(parameter.detach().std()) == pytest.approx(count**-0.5, rel=few)
        assert parameter.abs().max() <= 2 * (1.3 / count) ** 0.5
    assert list(uniform_parameters(cell)) == []


def test_a_range_leaves_out_gates_alone() -> None:
    cell = mogrifier_lstm(I, H, 2, 2)
    assert {id(p) for p in uniform_parameters(cell)} == {id(p) for p in cell.parameters(recurse=False)}


@pytest.mark.parametrize("setting", [{"rounds": 3}, {"rank": 2}, {"zigzag": False}, {"gate_bias": False}])
def test_settings_of_the_mogrifier_are_refused_elsewhere(setting: dict[str, object]) -> None:
    (name,) = setting
    with pytest.raises(ValueError, match=f"{name} belongs to the mogrifier; remove it from a mlstm cell"):
        CellConfig.model_validate({"kind": "mlstm"} | setting)


def test_a_gru_has_no_input_gate_to_cap() -> None:
    with pytest.raises(ValueError, match="cap_input_gate belongs to LSTM cells; remove it from a gru cell"):
        CellConfig(kind="gru", cap_input_gate=True)
