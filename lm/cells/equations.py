"""Equations of recurrent cells, step by step, with analytic gradients.

They read W x + b and the state as gated by :mod:`lm.cells.gating`. As there, a step works on its own rows,
and the values that gradients need are kept for all tokens.

N tokens, packed time-major · R rows of a step · H hidden size.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from lm.cells.packing import rows_of, shifted

_EPSILON = 1e-5  # added to variances that divide


class Equations(ABC):
    """The equations of one call; the backward pass uses the buffers that the forward pass filled.

    Args:
        kept: the buffers that :meth:`fresh` returned.
        weight_hh: (G·H, H), with the rows of one gate after another as in torch.
        extra: further learned parameters of the equations.
        sizes: number of rows of every step.
    """

    kinds: ClassVar[int]  # G, the number of gates and candidates
    of_inputs: Tensor  # gradient of W x + b (N, G·H); the rows of step t are final after :meth:`step_back`
    of_products: Tensor  # gradient of W_hh h (N, G·H), and of its bias if the equations have one

    def __init__(
        self, kept: Sequence[Tensor], weight_hh: Tensor, extra: Tensor | None, sizes: Sequence[int]
    ) -> None:
        self.kept, self.weight_hh, self.extra, self.sizes = kept, weight_hh, extra, sizes

    @staticmethod
    @abstractmethod
    def fresh(act: Tensor, hidden_size: int, extra: Tensor | None) -> tuple[Tensor, ...]:
        """Buffers: W x + b (N, G·H), later the activated gates; outputs (N, H); further ones."""

    @abstractmethod
    def step(self, t: int, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """State after step t, from the gated h (R, H) and c (R, H)."""

    @abstractmethod
    def open(self, gated: Tensor, c0: Tensor, mask: Tensor | None) -> None:
        """Prepare the backward pass, given gated h of all steps (N, H), initial c (R, H) and its mask."""

    @abstractmethod
    def step_back(self, t: int, dh: Tensor, dc: Tensor) -> None:
        """Replace the gradients (R, H) of the state after step t by those of the state it read, in place."""

    @cached_property
    def rows(self) -> list[Sequence[Tensor]]:
        """Rows of every kept buffer, step by step."""
        return [rows_of(one, self.sizes) for one in self.kept]

    @property
    def of_extra(self) -> Tensor | None:
        """Gradient of ``extra``, of its shape; None without it."""
        return None


class LstmEquations(Equations):
    """LSTM with gates i, f, g, o as in torch; keeps W x + b, h, c and tanh c."""

    kinds = 4
    capped: ClassVar[bool] = False

    @staticmethod
    def fresh(act: Tensor, hidden_size: int, extra: Tensor | None) -> tuple[Tensor, ...]:
        return act, *(act.new_empty(len(act), hidden_size) for _ in range(3))

    def step(self, t: int, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        a, outputs, cells, squashed = (rows[t] for rows in self.rows[:4])
        size = h.shape[1]
        a.addmm_(h, self._forwards)
        self._arguments(t, a)
        a[:, : 2 * size].sigmoid_()
        a[:, 2 * size : 3 * size].tanh_()
        a[:, 3 * size :].sigmoid_()
        i, f, g, o = a.chunk(4, 1)
        if self.capped:
            torch.minimum(i, 1 - f, out=i)
        c = torch.mul(f, c, out=cells).addcmul_(i, g)
        return torch.mul(o, torch.tanh(c, out=squashed), out=outputs), c

    def _arguments(self, t: int, a: Tensor) -> None:
        """Turn W x + b + W_hh h of step t, (R, 4H), into the arguments of the gates, in place."""

    def _arguments_back(self, t: int, grad: Tensor) -> Tensor:
        """Gradient of W x + b + W_hh h, from that of the arguments of the gates."""
        return grad

    @cached_property
    def _forwards(self) -> Tensor:
        return self.weight_hh.t()

    def open(self, gated: Tensor, c0: Tensor, mask: Tensor | None) -> None:
        act, _, cells, squashed = self.kept[:4]
        i, f, g, o = act.chunk(4, 1)
        of_i, of_f = g * i * (1 - i), shifted(cells, c0, self.sizes)
        if mask is not None:
            of_f *= mask
        if self.capped:  # if capped, also at equality as in lamb, i has the gradient of 1 - f
            held = i == 1 - f
            of_i, of_f = of_i.masked_fill(held, 0), of_f - g * held
        self._grads = self.of_inputs = self.of_products = torch.empty_like(act)
        self._slopes = [
            rows_of(one, self.sizes)
            for one in (
                torch.stack((of_i, of_f * f * (1 - f), i * (1 - g * g)), 1),  # d (gates i, f, g) / d c
                squashed * o * (1 - o),  # d gate o / d h
                o * (1 - squashed * squashed),  # d c / d h
                f,
                self._grads,
            )
        ]

    def step_back(self, t: int, dh: Tensor, dc: Tensor) -> None:
        of_cell, of_hidden, through, f, grad = (rows[t] for rows in self._slopes)
        size = dh.shape[1]
        dc.addcmul_(dh, through)
        torch.mul(of_cell, dc[:, None], out=grad[:, : 3 * size].unflatten(1, (3, size)))
        torch.mul(dh, of_hidden, out=grad[:, 3 * size :])
        dc *= f
        torch.mm(self._arguments_back(t, grad), self.weight_hh, out=dh)


class CappedLstmEquations(LstmEquations):
    """LSTM with the input gate min(i, 1 - f), so that |c| stays below 1."""

    capped = True


class NormalizedLstmEquations(LstmEquations):
    """LSTM with layer normalisation of the arguments of each gate: LN(W x + W_hh h) ⊙ gain + shift.

    LN is the function of Ba et al. (2016), here of the sum, over the units of a gate; c is not normalised.
    ``extra`` holds gains and shifts, (2, 4H). The cell also keeps the normalised sums, and the inverse
    standard deviation of each gate.
    """

    @staticmethod
    def fresh(act: Tensor, hidden_size: int, extra: Tensor | None) -> tuple[Tensor, ...]:
        plain = LstmEquations.fresh(act, hidden_size, extra)
        return *plain, torch.empty_like(act), act.new_empty(len(act), LstmEquations.kinds)

    def _arguments(self, t: int, a: Tensor) -> None:
        assert self.extra is not None
        gain, shift = self.extra
        normal, rates = self.rows[4][t], self.rows[5][t]
        of_gates = a.unflatten(1, (self.kinds, -1))
        found, _, rate = torch.native_layer_norm(of_gates, of_gates.shape[2:], None, None, _EPSILON)
        rates.copy_(rate[..., 0])
        torch.addcmul(shift, gain, normal.copy_(found.flatten(1)), out=a)

    def open(self, gated: Tensor, c0: Tensor, mask: Tensor | None) -> None:
        super().open(gated, c0, mask)
        self.of_inputs = self.of_products = torch.empty_like(self._grads)
        self._sum_rows = rows_of(self.of_inputs, self.sizes)

    def _arguments_back(self, t: int, grad: Tensor) -> Tensor:
        assert self.extra is not None
        normal = self.rows[4][t].unflatten(1, (self.kinds, -1))
        d = (grad * self.extra[0]).view_as(normal)
        d = d - d.mean(2, keepdim=True) - normal * (d * normal).mean(2, keepdim=True)
        return self._sum_rows[t].copy_(d.mul_(self.rows[5][t][..., None]).flatten(1))

    @property
    def of_extra(self) -> Tensor:
        return torch.stack(((self._grads * self.kept[4]).sum(0), self._grads.sum(0)))


class NormalizedCappedLstmEquations(NormalizedLstmEquations):
    """LSTM with layer normalisation and a capped input gate."""

    capped = True


class GruEquations(Equations):
    """GRU with gates r, z, n as in torch; keeps W x + b, h and W_hn h plus its bias ``extra``.

    c is returned unread.
    """

    kinds = 3

    @staticmethod
    def fresh(act: Tensor, hidden_size: int, extra: Tensor | None) -> tuple[Tensor, ...]:
        inner = act.new_zeros(len(act), hidden_size)
        if extra is not None:
            inner.copy_(extra)
        return act, torch.empty_like(inner), inner

    def step(self, t: int, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        a, outputs, inner = (rows[t] for rows in self.rows)
        gates, candidate = self._forwards
        size = h.shape[1]
        a[:, : 2 * size].addmm_(h, gates)
        a[:, : 2 * size].sigmoid_()
        inner.addmm_(h, candidate)
        r, z, n = a.chunk(3, 1)
        n.addcmul_(r, inner).tanh_()
        return torch.lerp(n, h, z, out=outputs), c

    @cached_property
    def _forwards(self) -> tuple[Tensor, Tensor]:
        size = self.weight_hh.shape[1]
        return self.weight_hh[: 2 * size].t(), self.weight_hh[2 * size :].t()

    def open(self, gated: Tensor, c0: Tensor, mask: Tensor | None) -> None:
        act, _, inner = self.kept
        r, z, n = act.chunk(3, 1)
        of_n = (1 - z) * (1 - n * n)
        of_z = (gated - n) * z * (1 - z)
        of_r = of_n * inner * r * (1 - r)
        self.of_inputs, self.of_products = torch.empty_like(act), torch.empty_like(act)
        self._slopes = [
            rows_of(one, self.sizes)
            for one in (
                torch.stack((of_r, of_z, of_n), 1),  # d (arguments of the gates) / d h, through x
                torch.stack((of_r, of_z, of_n * r), 1),  # through the state
                z,
                self.of_inputs,
                self.of_products,
            )
        ]

    def step_back(self, t: int, dh: Tensor, dc: Tensor) -> None:
        of_inputs, of_products, z, grad, grad_products = (rows[t] for rows in self._slopes)
        shape = (3, dh.shape[1])
        torch.mul(of_inputs, dh[:, None], out=grad.unflatten(1, shape))
        torch.mul(of_products, dh[:, None], out=grad_products.unflatten(1, shape))
        dh *= z
        dh.addmm_(grad_products, self.weight_hh)

    @property
    def of_extra(self) -> Tensor:
        return self.of_products[:, -self.weight_hh.shape[1] :].sum(0)
