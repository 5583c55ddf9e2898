"""The packed LSTM against ``torch.nn.LSTM``, outputs, states and gradients, in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lm.cells import lstm
from lm.cells.lstm import LSTM, WeightDropLSTM, lstm_window

LENGTHS = torch.tensor([3, 7, 1, 7, 4])


def both(layers: int, bidirectional: bool, bias: bool = True) -> tuple[nn.LSTM, LSTM]:
    theirs = nn.LSTM(
        4, 6, num_layers=layers, batch_first=True, bidirectional=bidirectional, bias=bias
    ).double()
    ours = LSTM(4, 6, num_layers=layers, batch_first=True, bidirectional=bidirectional, bias=bias).double()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("with_state", [False, True])
def test_equals_torch(layers: int, bidirectional: bool, bias: bool, with_state: bool) -> None:
    inputs = torch.randn(5, 7, 4, dtype=torch.float64, requires_grad=True)
    shape = (layers * (1 + bidirectional), 5, 6)
    state = (torch.randn(shape).double().requires_grad_(), torch.randn(shape).double().requires_grad_())
    mix = [
        torch.randn(5, 7, shape[0] // layers * 6).double(),
        *(torch.randn(shape).double() for _ in range(2)),
    ]

    def everything(module: nn.LSTM) -> list[Tensor]:
        packed = pack_padded_sequence(inputs, LENGTHS, batch_first=True, enforce_sorted=False)
        outputs, (h, c) = module(packed, state) if with_state else module(packed)
        padded, _ = pad_packed_sequence(outputs, batch_first=True)
        score = (padded * mix[0]).sum() + (h * mix[1]).sum() + (c * mix[2]).sum()
        leaves = [inputs, *module.parameters(), *(state if with_state else ())]
        return [padded, h, c, *torch.autograd.grad(score, leaves)]

    theirs, ours = both(layers, bidirectional, bias)
    for wanted, got in zip(everything(theirs), everything(ours), strict=True):
        torch.testing.assert_close(got, wanted)


def test_gradcheck() -> None:
    _, ours = both(1, True)
    inputs = torch.randn(3, 4, 4, dtype=torch.float64, requires_grad=True)

    def outputs(inputs: Tensor) -> Tensor:
        packed = pack_padded_sequence(inputs, torch.tensor([4, 2, 1]), batch_first=True)
        return ours(packed)[0].data

    assert torch.autograd.gradcheck(outputs, (inputs,))


def test_without_gradients_and_padded_inputs_take_torchs_path() -> None:
    theirs, ours = both(1, False)
    inputs = torch.randn(5, 7, 4, dtype=torch.float64)
    torch.testing.assert_close(ours(inputs)[0], theirs(inputs)[0])
    packed = pack_padded_sequence(inputs, LENGTHS, batch_first=True, enforce_sorted=False)
    with torch.no_grad():
        assert torch.equal(ours(packed)[0].data, theirs(packed)[0].data)
    torch.testing.assert_close(ours(packed)[0].data, theirs(packed)[0].data)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_a_step_without_gradients_is_torchs(layers: int, bias: bool) -> None:
    theirs, ours = both(layers, False, bias)
    inputs = torch.randn(5, 1, 4, dtype=torch.float64)
    state = (torch.randn(layers, 5, 6).double(), torch.randn(layers, 5, 6).double())
    with torch.no_grad():
        torch.testing.assert_close(ours(inputs, state), theirs(inputs, state))
        torch.testing.assert_close(ours(inputs), theirs(inputs))
        one = (state[0][:, 0], state[1][:, 0])  # of a sequence that is no batch
        torch.testing.assert_close(ours(inputs[0], one), theirs(inputs[0], one))


def test_steps_by_torchs_cell_are_a_window_by_its_layer() -> None:
    layer = WeightDropLSTM(4, 6).double()
    inputs, start = torch.randn(7, 3, 4).double(), (torch.randn(3, 6).double(), torch.randn(3, 6).double())
    with torch.no_grad():
        outputs, last = layer(inputs, start)
        state, steps = start, []
        for step in inputs.split(1):
            output, state = layer(step, state)
            steps.append(output)
    torch.testing.assert_close(torch.cat(steps), outputs)
    torch.testing.assert_close(state, last)


@pytest.mark.parametrize("steps", [3, 20])
def test_last_states_may_be_read_in_any_order(steps: int) -> None:
    """What comes back from there has other strides."""
    theirs, ours = (module.float() for module in both(1, False))
    inputs, weights = torch.randn(5, steps, 4), torch.randn(6, 5)
    gradients = []
    for module in (theirs, ours):
        packed = pack_padded_sequence(inputs, torch.full((5,), steps), batch_first=True)
        _, (h, c) = module(packed)
        score = torch.einsum("lrh,hr->", h, weights) + (c.permute(2, 1, 0)[..., 0] * weights).sum()
        gradients.append(torch.autograd.grad(score, list(module.parameters())))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_states_that_do_not_fit_are_refused() -> None:
    _, ours = both(1, False)
    packed = pack_padded_sequence(torch.randn(5, 7, 4).double(), LENGTHS, True, enforce_sorted=False)
    state = (torch.zeros(1, 8, 6).double(), torch.zeros(1, 8, 6).double())
    with pytest.raises(ValueError, match="5 sequences do not fit a state of 8 and 8 sequences"):
        lstm_window(torch.randn(2, 5, 4), (torch.zeros(8, 6), torch.zeros(8, 6)), weights_of(4, 6), True)
    with pytest.raises(ValueError, match="no time step"):
        lstm_window(torch.randn(0, 5, 4), (torch.zeros(5, 6), torch.zeros(5, 6)), weights_of(4, 6), True)
    with pytest.raises(ValueError, match="5 sequences do not fit"):
        ours(packed._replace(sorted_indices=None, unsorted_indices=None), state)


def weights_of(inputs: int, size: int) -> tuple[Tensor, ...]:
    return tuple(nn.LSTM(inputs, size).parameters())


def autocast_gradients(packed: PackedSequence, window: Tensor) -> list[Tensor]:
    """Of both layers, under autocast, where earlier layers hand over bfloat16."""
    torch.manual_seed(1)
    stacked, dropped = LSTM(4, 6, batch_first=True), WeightDropLSTM(4, 6, 0.5)
    parameters = [*stacked.parameters(), *dropped.parameters()]
    with torch.autocast("cpu", torch.bfloat16):
        state = (torch.zeros(5, 6).bfloat16(), torch.zeros(5, 6))
        outputs, last = stacked(packed)
        stepped, _ = stacked(window.transpose(0, 1).bfloat16(), last)
        score = outputs.data.float().sum() + stepped.float().sum() + dropped(window, state)[0].float().sum()
    return list(torch.autograd.grad(score, parameters))


def test_layers_train_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 where torch's layers can do that, in float32 elsewhere; the same to the precision."""
    inputs = torch.randn(5, 7, 4)
    packed = pack_padded_sequence(inputs, LENGTHS, batch_first=True, enforce_sorted=False)
    window = torch.randn(2, 5, 4)
    found = autocast_gradients(packed, window)
    monkeypatch.setattr(lstm, "has_bfloat16_layer", lambda: False)
    wanted = autocast_gradients(packed, window)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05 * float(other.abs().max()))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_bfloat16_of_a_processor_does_not_depend_on_who_asks_first(mode: Callable[[], Any]) -> None:
    lstm.has_bfloat16_layer.cache_clear()
    known = lstm.has_bfloat16_layer()
    lstm.has_bfloat16_layer.cache_clear()
    with mode():
        assert lstm.has_bfloat16_layer() == known


def test_processors_without_bfloat16_say_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_primitive(*_: object) -> None:
        raise RuntimeError(
            "could not create a primitive descriptor for the LSTM forward propagation primitive"
        )

    monkeypatch.setattr(torch, "lstm", no_primitive)
    lstm.has_bfloat16_layer.cache_clear()
    before = torch.get_rng_state()
    try:
        assert not lstm.has_bfloat16_layer()
        assert not lstm.has_bfloat16_layer()
    finally:
        lstm.has_bfloat16_layer.cache_clear()
    assert caplog.messages == ["no LSTM in bfloat16 on this processor: LSTM layers stay in float32"]
    assert torch.equal(torch.get_rng_state(), before)  # what resumes a run asks at another time
