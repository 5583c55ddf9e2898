"""Recurrent cells by their equations, written out step by step, for autograd."""

import torch
from torch import Tensor, nn

from lm.cells import MLSTM, Gate, Mogrifier, MogrifierGRU
from lm.equations import CappedLstmEquations
from lm.gated import GatedLayer

State = tuple[Tensor, Tensor]


def plain_step(cell: GatedLayer, x: Tensor, h: Tensor, c: Tensor) -> State:
    """The LSTM equations, with the cap of lamb; those of torch's GRU."""
    if isinstance(cell, MogrifierGRU):
        size = cell.hidden_size
        of_x, of_h = x @ cell.weight_ih.t() + cell.bias, h @ cell.weight_hh.t()
        r, z = torch.sigmoid((of_x + of_h)[:, : 2 * size]).chunk(2, 1)
        n = torch.tanh(of_x[:, 2 * size :] + r * (of_h[:, 2 * size :] + cell.inner_bias))
        return (1 - z) * n + z * h, c
    i, f, g, o = (x @ cell.weight_ih.t() + h @ cell.weight_hh.t() + cell.bias).chunk(4, 1)
    i, f = torch.sigmoid(i), torch.sigmoid(f)
    c = f * c + (torch.minimum(i, 1 - f) if cell.equations is CappedLstmEquations else i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gate_of(gate: nn.Module, source: Tensor) -> Tensor:
    assert isinstance(gate, Gate)
    matrix = gate.up if gate.down is None else gate.up @ gate.down
    return 2 * torch.sigmoid(source @ matrix.t() + (0 if gate.bias is None else gate.bias))


def mogrified(cell: GatedLayer, x: Tensor, h: Tensor) -> State:
    assert isinstance(cell, Mogrifier)
    first = (x, h)
    for number, gate in enumerate(cell.gates, start=1):
        if number % 2:
            x = gate_of(gate, h if cell.zigzag else first[1]) * x
        else:
            h = gate_of(gate, x if cell.zigzag else first[0]) * h
    return x, h


def multiplied(cell: MLSTM, x: Tensor, h: Tensor) -> State:
    return x, (x @ cell.weight_mx.t()) * (h @ cell.weight_mh.t())


def slow(cell: nn.Module, inputs: Tensor, state: State, mask: Tensor | None) -> tuple[Tensor, State]:
    """One window, step after step, by autograd."""
    assert isinstance(cell, GatedLayer)
    h, c = state
    outputs = []
    for t, x in enumerate(inputs):
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
