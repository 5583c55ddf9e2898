"""Layers of any cell over packed sequences, against each sequence alone and step by step, in float64."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lm.cells.config import CellConfig
from lm.cells.gated import GatedLayer
from lm.cells.lstm import LSTM
from lm.cells.stack import Stack, recurrent_stack
from lm.trunks.recurrent import RecurrentRates, RecurrentTrunk
from tests.support.plain_cells import roughened, slow

LENGTHS = torch.tensor([3, 6, 1, 6, 4])
I, H = 4, 5  # noqa: E741
CELLS: list[dict[str, Any]] = [
    {"kind": "mogrifier", "rounds": 3, "rank": 2, "cap_input_gate": True},
    {"kind": "mogrifier", "rounds": 4, "zigzag": False, "gate_bias": False},
    {"kind": "mlstm"},
    {"kind": "lstm", "cap_input_gate": True},
    {"kind": "lstm", "init": "truncated"},
    {"kind": "mogrifier_gru", "rounds": 3, "rank": 2},
    {"kind": "gru", "init": "truncated"},
    {"kind": "lstm", "layer_norm": True, "input_scale": True},
    {"kind": "mogrifier", "rounds": 2, "layer_norm": True, "weight_rank": 2},
]


def stack_of(cell: dict[str, Any], layers: int = 1, bidirectional: bool = False) -> Stack:
    stack = recurrent_stack(CellConfig.model_validate(cell), I, H, layers, bidirectional)
    assert isinstance(stack, Stack)
    roughened(stack)
    return stack


def alone(stack: Stack, rows: Tensor, state: list[Tensor]) -> tuple[Tensor, Tensor]:
    """One sequence (T, I), its states (layers x directions, H): outputs and last states (2, ·, H)."""
    last = []
    numbers = iter(range(len(state[0])))
    for layer in stack.layers:
        assert isinstance(layer, nn.ModuleList)
        found = []
        for cell, reverse in zip(layer, (False, True), strict=False):
            number = next(numbers)
            start = (state[0][number][None], state[-1][number][None])
            outputs, after = slow(cell, (rows.flip(0) if reverse else rows)[:, None], start, None)
            found.append(outputs[:, 0].flip(0) if reverse else outputs[:, 0])
            last.append(torch.stack([after[0][0], after[1][0]]))
        rows = torch.cat(found, 1)
    return rows, torch.stack(last, 1)


def assert_same_as_alone(stack: Stack, inputs: Tensor, state: list[Tensor] | None) -> None:
    """Outputs, last states, and the gradients of everything."""
    shape = (sum(len(list(layer)) for layer in stack.layers), len(LENGTHS), H)  # type: ignore[arg-type]
    given = [torch.zeros(shape).double()] * 2 if state is None else state
    packed = pack_padded_sequence(inputs, LENGTHS, batch_first=True, enforce_sorted=False)
    before = None if state is None else (state[0] if stack.is_gru else (state[0], state[1]))
    outputs, after = stack(packed, before)
    padded, _ = pad_packed_sequence(outputs, batch_first=True)
    last = after[None] if isinstance(after, Tensor) else torch.stack(after)
    found = [
        alone(stack, rows[:length], [part[:, row] for part in given])
        for row, (rows, length) in enumerate(zip(inputs, LENGTHS.tolist(), strict=True))
    ]
    wanted = nn.utils.rnn.pad_sequence([rows for rows, _ in found], batch_first=True)
    wanted_last = torch.stack([states for _, states in found], 2)[: len(last)]
    leaves = [inputs, *stack.parameters(), *(state or [])[: len(last)]]
    mix, mix_last = torch.randn_like(wanted), torch.randn_like(wanted_last)
    grads = torch.autograd.grad((padded * mix).sum() + (last * mix_last).sum(), leaves)
    exact = torch.autograd.grad((wanted * mix).sum() + (wanted_last * mix_last).sum(), leaves)
    for one, other in zip((padded, last, *grads), (wanted, wanted_last, *exact), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_equals_every_sequence_alone(cell: dict[str, Any]) -> None:
    for (layers, bidirectional), given in zip(product((1, 2), (False, True)), (1, 0, 0, 1), strict=True):
        stack = stack_of(cell, layers, bidirectional)
        shape = (layers * (1 + bidirectional), len(LENGTHS), H)
        state = [torch.randn(shape).double().requires_grad_() for _ in range(2)]
        inputs = torch.randn(len(LENGTHS), int(LENGTHS.max()), I).double().requires_grad_()
        assert_same_as_alone(stack, inputs, state if given else None)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_one_step_after_another_equals_all_at_once(cell: dict[str, Any]) -> None:
    """As decoding does it, on inputs that are not packed."""
    stack = stack_of(cell, layers=2)
    inputs = torch.randn(3, 4, I).double()
    wanted, wanted_last = stack(inputs)
    packed, _ = stack(pack_padded_sequence(inputs, torch.tensor([4, 4, 4]), batch_first=True))
    torch.testing.assert_close(pad_packed_sequence(packed, batch_first=True)[0], wanted)
    state, outputs = None, []
    for step in inputs.unbind(1):
        output, state = stack(step[:, None], state)
        outputs.append(output[:, 0])
    torch.testing.assert_close(torch.stack(outputs, 1), wanted)
    torch.testing.assert_close(state, wanted_last)


@pytest.mark.parametrize("cell", [CELLS[0], CELLS[-2]], ids=str)
def test_gradcheck(cell: dict[str, Any]) -> None:
    stack = stack_of(cell, bidirectional=True)
    inputs = torch.randn(2, 3, I, dtype=torch.float64, requires_grad=True)

    def outputs(inputs: Tensor) -> Tensor:
        packed = pack_padded_sequence(inputs, torch.tensor([3, 1]), batch_first=True)
        found: Tensor = stack(packed)[0].data
        return found

    assert torch.autograd.gradcheck(outputs, (inputs,))


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_long_sequences_in_float32_do_not_depend_on_their_neighbours(cell: dict[str, Any]) -> None:
    """And are within rounding of those in float64."""
    stack = stack_of(cell).float()
    lengths = torch.tensor([40, 33, 20, 2])
    inputs = torch.randn(4, 40, I)
    with torch.no_grad():
        together, _ = pad_packed_sequence(
            stack(pack_padded_sequence(inputs, lengths, batch_first=True))[0], batch_first=True
        )
        for rows, outputs, length in zip(inputs, together, lengths.tolist(), strict=True):
            torch.testing.assert_close(stack(rows[None, :length])[0][0], outputs[:length])
        exact, _ = stack.double()(inputs[:1].double())
    torch.testing.assert_close(together[:1].double(), exact, atol=1e-4, rtol=1e-4)


def test_under_autocast_everything_stays_in_the_precision_of_the_parameters() -> None:
    stack = Stack(CellConfig(kind="mogrifier", rank=2), I, H)
    inputs, state = torch.randn(2, 3, I).bfloat16(), (torch.randn(1, 2, H).bfloat16(),) * 2
    with torch.autocast("cpu", torch.bfloat16):
        outputs, _ = stack(inputs, state)
    assert torch.equal(outputs, stack(inputs.float(), (state[0].float(),) * 2)[0])
    outputs.sum().backward()


def test_plain_cells_take_the_fastest_layers() -> None:
    assert type(recurrent_stack(CellConfig(), I, H, 2, True)) is LSTM
    assert type(recurrent_stack(CellConfig(kind="gru"), I, H)) is nn.GRU
    stack = Stack(CellConfig(kind="mogrifier"), I, H, 2, True)
    sizes = [(cell.input_size, cell.hidden_size) for cell in stack.modules() if isinstance(cell, GatedLayer)]
    assert sizes == [(I, H)] * 2 + [(2 * H, H)] * 2


@pytest.mark.parametrize(("resettable", "rate"), [(False, 0.0), (True, 0.0), (False, 0.3)])
def test_estimated_activations_of_a_trunk_cover_those_kept(resettable: bool, rate: float) -> None:
    steps, streams, size = 40, 10, 64
    trunk = RecurrentTrunk(
        CellConfig(), (size, size, size), RecurrentRates(state=rate), resettable=resettable
    )
    words, kept = torch.randn(steps, streams, size, requires_grad=True), dict[int, int]()
    keep = torch.ones(steps, streams, 1, dtype=torch.bool) if resettable else None

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 4
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = trunk(words, trunk.initial_state(streams), keep)
    true = sum(kept.values()) - sum(parameter.numel() for parameter in trunk.parameters())
    estimate = trunk.activations(steps, streams, torch.device("cpu"))
    assert outputs[0].requires_grad
    temporary = 20 * steps * streams * size  # of one layer, see tests/trunks/test_recurrent_memory.py
    assert true < estimate < 1.2 * true + temporary
