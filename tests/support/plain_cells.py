"""Recurrent cells by their equations, written out step by step, for autograd."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lm.cells.equations import LstmEquations
from lm.cells.gated import GatedLayer
from lm.cells.layers import MLSTM, Gate, GatedGRU, GatedLSTM, MogrifiableLayer

State = tuple[Tensor, Tensor]
Cell = GatedLSTM | GatedGRU | MLSTM


def mogrifier_lstm(
    inputs: int,
    size: int,
    rounds: int = 5,
    rank: int = 0,
    biased: bool = True,
    zigzag: bool = True,
    cap_input_gate: bool = False,
    weight_dropout: float = 0.0,
) -> GatedLSTM:
    """The Mogrifier LSTM; without rounds, the LSTM."""
    return GatedLSTM(inputs, size, cap_input_gate, weight_dropout).mogrify(rounds, rank, biased, zigzag)


def mogrifier_gru(
    inputs: int,
    size: int,
    rounds: int = 5,
    rank: int = 0,
    biased: bool = True,
    zigzag: bool = True,
    weight_dropout: float = 0.0,
) -> GatedGRU:
    """The Mogrifier GRU; without rounds, the GRU."""
    return GatedGRU(inputs, size, weight_dropout).mogrify(rounds, rank, biased, zigzag)


T, B, I, H = 4, 3, 4, 5  # noqa: E741


def plain_step(cell: GatedLayer, x: Tensor, h: Tensor, c: Tensor) -> State:
    """The LSTM equations, with the cap of lamb; those of torch's GRU."""
    if isinstance(cell, GatedGRU):
        size = cell.hidden_size
        of_x, of_h = x @ cell.weight_ih.t() + cell.bias, h @ cell.weight_hh.t()
        r, z = torch.sigmoid((of_x + of_h)[:, : 2 * size]).chunk(2, 1)
        n = torch.tanh(of_x[:, 2 * size :] + r * (of_h[:, 2 * size :] + cell.inner_bias))
        return (1 - z) * n + z * h, c
    sums = (x @ cell.weight_ih.t() + h @ cell.weight_hh.t()).unflatten(1, (4, -1))
    if cell.gain is not None:
        sums = nn.functional.layer_norm(sums, sums.shape[2:]) * cell.gain.weight.view(sums.shape[1:])
    i, f, g, o = (sums.flatten(1) + cell.bias).chunk(4, 1)
    i, f = torch.sigmoid(i), torch.sigmoid(f)
    c = f * c + (torch.minimum(i, 1 - f) if is_capped(cell) else i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def is_capped(cell: GatedLayer) -> bool:
    assert issubclass(cell.equations, LstmEquations)
    return cell.equations.capped


def gate_of(gate: nn.Module, source: Tensor) -> Tensor:
    assert isinstance(gate, Gate)
    matrix = gate.up if gate.down is None else gate.up @ gate.down
    return 2 * torch.sigmoid(source @ matrix.t() + (0 if gate.bias is None else gate.bias))


def mogrified(cell: GatedLayer, x: Tensor, h: Tensor) -> State:
    assert isinstance(cell, MogrifiableLayer)
    first = (x, h)
    for number, gate in enumerate(cell.gates, start=1):
        if number % 2:
            x = gate_of(gate, h if cell.zigzag else first[1]) * x
        else:
            h = gate_of(gate, x if cell.zigzag else first[0]) * h
    return x, h


def multiplied(cell: MLSTM, x: Tensor, h: Tensor) -> State:
    return x, (x @ cell.weight_mx.t()) * (h @ cell.weight_mh.t())


def slow(
    cell: nn.Module, inputs: Tensor, state: State, mask: Tensor | None, keep: Tensor | None = None
) -> tuple[Tensor, State]:
    """One window, step after step, by autograd."""
    assert isinstance(cell, GatedLayer)
    h, c = state
    outputs = []
    if cell.input_scale is not None:
        inputs = inputs * cell.input_scale.weight
    for t, x in enumerate(inputs):
        if keep is not None:
            h, c = h * keep[t][:, None], c * keep[t][:, None]
        if mask is not None:
            h = h * (mask if mask.dim() == 2 else mask[t])
        x, h = multiplied(cell, x, h) if isinstance(cell, MLSTM) else mogrified(cell, x, h)
        h, c = plain_step(cell, x, h, c)
        outputs.append(h)
    return torch.stack(outputs), (h, c)


def roughened(cell: nn.Module) -> nn.Module:
    """In float64 and with every parameter far from a start at which terms vanish."""
    for parameter in cell.double().parameters():
        nn.init.normal_(parameter, std=0.7)
    return cell


def window(steps: int = T, streams: int = B) -> tuple[Tensor, State]:
    def some(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, requires_grad=True)

    return some(steps, streams, I), (some(streams, H), some(streams, H))


def everything(
    run: Callable[[Tensor, State], tuple[Tensor, State]], cell: nn.Module, inputs: Tensor, state: State
) -> list[Tensor]:
    """Outputs, last state and the gradients of everything, through all three at once."""
    outputs, (h, c) = run(inputs, state)
    generator = torch.Generator().manual_seed(1)
    score = sum(
        (torch.randn(one.shape, generator=generator, dtype=torch.float64) * one).sum()
        for one in (outputs, h, c)
    )
    return [outputs, h, c, *torch.autograd.grad(score, [inputs, *state, *cell.parameters()])]


def masks() -> list[Tensor | None]:
    return [None, torch.rand(B, H).double().bernoulli_(0.5) * 2, torch.rand(T, B, H).double() * 2]


def assert_equals_slow(
    cell: Cell, inputs: Tensor, state: State, mask: Tensor | None, keep: Tensor | None = None
) -> None:
    fast = everything(lambda x, s: cell(x, s, mask, keep), cell, inputs, state)
    wanted = everything(lambda x, s: slow(cell, x, s, mask, keep), cell, inputs, state)
    for one, other in zip(fast, wanted, strict=True):
        torch.testing.assert_close(one, other)
