"""Recurrent layer whose cell gates input and state before its equations.

GRUs ignore c, of any width, and return it unchanged except for its mask. Callers can therefore treat every
state as (h, c).

T time · B streams · N tokens, packed time-major · R sequences · I input size · H hidden size.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lm.cells.equations import (
    CappedLstmEquations,
    Equations,
    LstmEquations,
    NormalizedCappedLstmEquations,
    NormalizedLstmEquations,
)
from lm.cells.gating import Gating, MaybeTensors
from lm.cells.packing import CellState
from lm.cells.unrolled import UNMASKED, Cell, CellWeights, Masks, activations, unrolled
from lm.regularize import dropout


class Reading(NamedTuple):
    """Gating of a call: its type, its tensors, and if it changes the input."""

    gating: Callable[[MaybeTensors, Sequence[int]], Gating]
    tensors: MaybeTensors = ()
    changes_input: bool = False


class GatedLayer(nn.Module, ABC):
    """One layer of LSTM or GRU equations with one bias vector; subclasses provide the gating.

    Parameters are initialised as in ``torch.nn.LSTM``. In training, every call draws a new mask of recurrent
    weights.
    """

    def __init__(self, sizes: tuple[int, int], equations: type[Equations], weight_dropout: float) -> None:
        super().__init__()
        self.input_size, self.hidden_size = sizes
        self.equations, self.weight_dropout = equations, weight_dropout
        self.truncated = False
        self.weight_ih = self._uniform(equations.kinds * self.hidden_size, self.input_size)
        self.weight_hh = self._uniform(equations.kinds * self.hidden_size, self.hidden_size)
        self.bias = self._uniform(equations.kinds * self.hidden_size)
        self.inner_bias: nn.Parameter | None = None
        self.input_scale: Scale | None = None
        self.gain: Scale | None = None

    @property
    def state_bound(self) -> float:
        """Bound of |h| in every unit, without dropout and from a zero state; infinite where none is known.

        It is 1 for the equations alone. An LSTM has h = o ⊙ tanh(c), for any c and any gating. A GRU has a
        mean of tanh and the state that it reads, which a gating must not enlarge.
        """
        return 1.0

    def matrix_blocks(self) -> dict[str, int]:
        """Number of gates whose matrices are blocks of rows of a parameter, or of its left factor (4H, k)."""
        names = ("weight_ih", "weight_hh")
        factors = [f"parametrizations.{name}.original0" for name in names]
        return dict.fromkeys((*names, *factors), self.equations.kinds)

    def _uniform(self, *shape: int) -> nn.Parameter:
        bound = self.hidden_size**-0.5
        return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

    def truncate(self) -> None:
        """Initialise weights and biases as the code of Melis et al. (2020) does; gates are unchanged.

        All are normal, truncated at two standard deviations. The deviation is (1.3 / n)^½ before the
        truncation and n^-½ after it, where n is the fan-in of a matrix, and H for biases. The mean is 0,
        except 1 for the bias of a forget gate.
        """
        for parameter in self.parameters(recurse=False):
            count = parameter.shape[1] if parameter.dim() == 2 else self.hidden_size
            fill_truncated(parameter, start_deviation(count))
        if issubclass(self.equations, LstmEquations):
            with torch.no_grad():
                self.bias[self.hidden_size : 2 * self.hidden_size] += 1
        self.truncated = True

    def scale_inputs(self) -> None:
        """Multiply every unit of the inputs by a learned factor, before all gating."""
        self.input_scale = Scale(self.input_size)

    def factorise(self, rank: int) -> None:
        """Make W_ih and W_hh products of two matrices, of full rank if ``rank`` is above it.

        The factors are initialised so that the products have the variance of the matrices.
        """
        for name in ("weight_ih", "weight_hh"):
            product = Product(min(rank, *getattr(self, name).shape))
            parametrize.register_parametrization(self, name, product)

    def normalise(self) -> None:
        """Apply layer normalisation to the arguments of an LSTM's gates; the bias becomes its shift."""
        is_capped = self.equations is CappedLstmEquations
        self.equations = NormalizedCappedLstmEquations if is_capped else NormalizedLstmEquations
        self.gain = Scale(len(self.bias))

    def forward(
        self, inputs: Tensor, state: CellState, state_mask: Tensor | None = None, keep: Tensor | None = None
    ) -> tuple[Tensor, CellState]:
        """Run over one window.

        Args:
            inputs: (T, B, I), after their dropout.
            state: (h, c), each (B, H).
            state_mask: constant factor on h as each step reads it, before all gating: (B, H) for all steps,
                or (T, B, H). Outputs and the returned state are not masked.
            keep: (T, B), 0 for steps that read h and c as zero, else 1.

        Returns:
            Outputs (T, B, H) and the last state, in the precision of the parameters, also under autocast.
        """
        steps, streams = inputs.shape[:2]
        masks = self._masks(steps, state_mask, keep)
        outputs, last = self.packed(inputs.flatten(0, 1), [streams] * steps, state, masks)
        return outputs.unflatten(0, (steps, streams)), last

    def _masks(self, steps: int, state_mask: Tensor | None, keep: Tensor | None) -> Masks:
        """Masks of :meth:`forward`, for every token."""
        h = None if state_mask is None else state_mask.expand(steps, -1, self.hidden_size).flatten(0, 1)
        if keep is None:
            return Masks(h)
        c = keep.flatten()[:, None].to(self.bias.dtype)
        return Masks(c if h is None else h * c, c)

    def packed(
        self, inputs: Tensor, sizes: Sequence[int], state: CellState | None = None, masks: Masks = UNMASKED
    ) -> tuple[Tensor, CellState]:
        """Run over packed sequences.

        Args:
            inputs: (N, I), after their dropout.
            sizes: number of sequences at each time step, non-increasing.
            state: (h, c), each (R, H); zeros if omitted.
            masks: of h, as in :meth:`forward`, and of c.

        Returns:
            Outputs (N, H) and the last state of every sequence.

        Raises:
            ValueError: there is no time step.
        """
        if not sizes:
            raise ValueError("no time step to read; give at least one")
        with torch.autocast(inputs.device.type, enabled=False):
            recurrent = dropout(self.weight_hh, self.weight_dropout, self.training)
            if state is None:
                zeros = recurrent.new_zeros(sizes[0], self.hidden_size)
                state = (zeros, zeros)
            state = (state[0].to(recurrent.dtype), state[1].to(recurrent.dtype))
            return self._run(self._scaled(inputs.to(recurrent.dtype)), sizes, state, recurrent, masks)

    def gate_values(
        self, inputs: Tensor, state: CellState, state_mask: Tensor | None = None, keep: Tensor | None = None
    ) -> Tensor:
        """Gate values of :meth:`forward`, (T, B, G, H), in torch's order; without weight dropout."""
        steps, streams = inputs.shape[:2]
        masks = self._masks(steps, state_mask, keep)
        with torch.no_grad(), torch.autocast(inputs.device.type, enabled=False):
            recurrent = self.weight_hh
            h, c = (part.to(recurrent.dtype) for part in state)
            rows = self._scaled(inputs.flatten(0, 1).to(recurrent.dtype))
            cell, rows, weights, tensors = self._call(rows, recurrent)
            found = activations(cell, rows, [streams] * steps, (h, c), weights, tensors, masks)
        return found.view(steps, streams, self.equations.kinds, self.hidden_size)

    def _run(
        self, inputs: Tensor, sizes: Sequence[int], state: CellState, recurrent: Tensor, masks: Masks
    ) -> tuple[Tensor, CellState]:
        cell, rows, weights, tensors = self._call(inputs, recurrent)
        return unrolled(cell, rows, sizes, state, weights, tensors, masks)

    def _scaled(self, inputs: Tensor) -> Tensor:
        return inputs if self.input_scale is None else self.input_scale(inputs)

    def _call(self, inputs: Tensor, recurrent: Tensor) -> tuple[Cell, Tensor, CellWeights, MaybeTensors]:
        """Arguments of :func:`lm.cells.unrolled.unrolled` for a call."""
        gating, tensors, changes_input = self._reading(inputs)
        weight: Tensor | None = self.weight_ih
        bias: Tensor | None = self.bias
        extra: Tensor | None = self.inner_bias
        if self.gain is not None:
            bias, extra = None, torch.stack((self.gain.weight, self.bias))
        if not changes_input:  # then one product serves all tokens
            inputs, weight, bias = nn.functional.linear(inputs, self.weight_ih, bias), None, None
        return Cell(gating, self.equations), inputs, CellWeights(weight, recurrent, bias, extra), tensors

    @abstractmethod
    def _reading(self, inputs: Tensor) -> Reading:
        """Gating of a call, with buffers for its inputs (N, I)."""


class Scale(nn.Module):
    """Learned factor of every unit, initially 1."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.weight


class Product(nn.Module):
    """Product of two matrices of a rank, initialised to the variance of the matrix that it replaces."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left @ right

    def right_inverse(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = matrix.shape
        left, right = matrix.new_empty(rows, self.rank), matrix.new_empty(self.rank, columns)
        if not matrix.is_meta:  # on the meta device, arithmetic makes torch load its compiler
            deviation = float(matrix.std() ** 2 / self.rank) ** 0.25
            nn.init.normal_(left, std=deviation)
            nn.init.normal_(right, std=deviation)
        return left, right


def start_deviation(count: int) -> float:
    """Standard deviation before truncation at two deviations; after it, n^-½ with n = ``count``."""
    return float((1.3 / count) ** 0.5)


def fill_truncated(tensor: Tensor, deviation: float) -> Tensor:
    """Fill from a normal distribution truncated at two standard deviations."""
    return nn.init.trunc_normal_(tensor, std=deviation, a=-2 * deviation, b=2 * deviation)
