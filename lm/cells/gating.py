"""Gating of input and state before the equations of a recurrent cell, with analytic gradients.

``Mogrify`` lets input and state gate each other in rounds (Melis et al. 2020). ``Multiply`` replaces the
state by its product with the input (Krause et al. 2016). A step works on the rows of one time step, and
writes the values that gradients need into buffers of all tokens. Each weight gradient is then one product
after the loop over time.

N tokens, packed time-major · R rows of a step · I input size · H hidden size · k rank.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from lm.cells.packing import rows_of

MaybeTensors = Sequence[Tensor | None]


class Gating(ABC):
    """Weights and buffers of one call, which the forward pass fills and the backward pass reads."""

    @abstractmethod
    def step(self, t: int, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Gate x (R, I) and h (R, H) of step t; returns both as the equations read them."""

    @abstractmethod
    def step_back(self, t: int, dx: Tensor, dh: Tensor) -> None:
        """Replace the gradients of the results of :meth:`step`, (R, I) and (R, H), by those of x and h."""

    @abstractmethod
    def results(self, inputs: Tensor, entering: Tensor) -> tuple[Tensor, Tensor]:
        """Gated x and h of all steps, from the inputs (N, I) and the states before them, (N, H)."""

    @abstractmethod
    def gradients(self, inputs: Tensor, entering: Tensor) -> list[Tensor | None]:
        """Gradient of each of the tensors, of its shape, after the last :meth:`step_back`."""


class Round(NamedTuple):
    """One gate 2σ(up (down s) + bias) of a Mogrifier, from the source s to the target, with its buffers."""

    down: Tensor | None  # (k, source); None for a gate of full rank
    up: Tensor  # (target, k), or (target, source)
    bias: Tensor | None  # (target,)
    inner: Tensor | None  # (N, k), down s
    gate: Tensor  # (N, target), initially the bias
    gated: Tensor  # (N, target), the target times its gate


class Mogrify(Gating):
    """Rounds of Melis et al. (2020), eqs. 1 and 2: odd rounds gate x by h, even rounds h by x.

    Args:
        tensors: tensors of every :class:`Round`, one after another.
        sizes: number of rows of every step.
        zigzag: True: gates read the latest x and h; False: the original ones (their §4.1).
    """

    def __init__(self, tensors: MaybeTensors, sizes: Sequence[int], zigzag: bool = True) -> None:
        self.sizes = sizes
        size = len(Round._fields)
        self.zigzag = zigzag
        self.rounds = [Round(*tensors[n : n + size]) for n in range(0, len(tensors), size)]  # type: ignore[arg-type]
        self._rows = [
            (rows_of(one.inner, sizes), rows_of(one.gate, sizes), rows_of(one.gated, sizes))
            for one in self.rounds
        ]

    def step(self, t: int, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        first, latest = (x, h), [x, h]
        for n, ((inner, gates, gated), one) in enumerate(zip(self._rows, self.rounds, strict=True)):
            target, source = n % 2, 1 - n % 2
            read, gate = latest[source] if self.zigzag else first[source], gates[t]
            if one.down is not None:
                read = torch.mm(read, one.down.t(), out=inner[t])
            gate.addmm_(read, one.up.t()).sigmoid_().mul_(2)
            latest[target] = torch.mul(latest[target], gate, out=gated[t])
        return latest[0], latest[1]

    def step_back(self, t: int, dx: Tensor, dh: Tensor) -> None:
        grads = (dx, dh)
        into = grads if self.zigzag else (torch.zeros_like(dx), torch.zeros_like(dh))
        for n in reversed(range(len(self.rounds))):
            one, (_, gates, gated), (d_inner, d_affine) = self.rounds[n], self._rows[n], self._slope_rows[n]
            target, source = n % 2, 1 - n % 2
            gate, d = gates[t], d_affine[t]
            torch.mul(grads[target], gated[t], out=d)
            d.addcmul_(d, gate, value=-0.5)  # d 2σ(z) = 2σ(z) (1 - 2σ(z) / 2) dz
            grads[target].mul_(gate)
            if one.down is None:
                into[source].addmm_(d, one.up)
            else:
                into[source].addmm_(torch.mm(d, one.up, out=d_inner[t]), one.down)
        if not self.zigzag:
            dx.add_(into[0])
            dh.add_(into[1])

    @cached_property
    def _slopes(self) -> list[tuple[Tensor | None, Tensor]]:
        """Buffers for the gradients of ``inner`` and of the arguments of the sigmoids in every round."""
        return [
            (None if one.inner is None else torch.empty_like(one.inner), torch.empty_like(one.gate))
            for one in self.rounds
        ]

    @cached_property
    def _slope_rows(self) -> list[tuple[Sequence[Tensor], Sequence[Tensor]]]:
        return [(rows_of(inner, self.sizes), rows_of(affine, self.sizes)) for inner, affine in self._slopes]

    def results(self, inputs: Tensor, entering: Tensor) -> tuple[Tensor, Tensor]:
        latest = [inputs, entering]
        for n, one in enumerate(self.rounds):
            latest[n % 2] = one.gated
        return latest[0], latest[1]

    def gradients(self, inputs: Tensor, entering: Tensor) -> list[Tensor | None]:
        found: list[Tensor | None] = []
        latest = [inputs, entering]
        for n, (_, _, bias, inner, _, gated) in enumerate(self.rounds):
            d_inner, d_affine = self._slopes[n]
            read = latest[1 - n % 2]
            found += [
                None if d_inner is None else d_inner.t() @ read,
                d_affine.t() @ (read if inner is None else inner),
                None if bias is None else d_affine.sum(0),
                *(None, None, None),
            ]
            if self.zigzag:
                latest[n % 2] = gated
        return found


class Multiply(Gating):
    """mLSTM of Krause et al. (2016): h becomes (W_mx x) ⊙ (W_mh h), without a nonlinearity.

    Args:
        tensors: W_mx x of all tokens (N, H), W_mh (H, H), buffers (N, H) for W_mh h and the product.
        sizes: number of rows of every step.
    """

    def __init__(self, tensors: MaybeTensors, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self._present = [tensor for tensor in tensors if tensor is not None]
        factor, _, linear, product = self._present
        self._factor, self._linear, self._product = (rows_of(one, sizes) for one in (factor, linear, product))

    def step(self, t: int, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        linear = torch.mm(h, self._present[1].t(), out=self._linear[t])
        return x, torch.mul(linear, self._factor[t], out=self._product[t])

    def step_back(self, t: int, dx: Tensor, dh: Tensor) -> None:
        d_factor, d_linear = self._slope_rows
        torch.mul(dh, self._linear[t], out=d_factor[t])
        torch.mm(torch.mul(dh, self._factor[t], out=d_linear[t]), self._present[1], out=dh)

    @cached_property
    def _slopes(self) -> tuple[Tensor, Tensor]:
        """Buffers for the gradients of the factor and of W_mh h."""
        return torch.empty_like(self._present[0]), torch.empty_like(self._present[0])

    @cached_property
    def _slope_rows(self) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        return rows_of(self._slopes[0], self.sizes), rows_of(self._slopes[1], self.sizes)

    def results(self, inputs: Tensor, entering: Tensor) -> tuple[Tensor, Tensor]:
        return inputs, self._present[3]

    def gradients(self, inputs: Tensor, entering: Tensor) -> list[Tensor | None]:
        d_factor, d_linear = self._slopes
        return [d_factor, d_linear.t() @ entering, None, None]
