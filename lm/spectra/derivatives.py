"""Derivatives of a head: the gradients that it passes back, and the change of predictions that follows.

Godey & Artzi (2026, arXiv 2603.10145) measure this for softmax heads. The definition here is for every head.

Any distribution is a softmax of z = log P. So each head has V *effective logits* z(h) = log P(· | h), and the
gradient of −log P(y) at them is g = P − e_y, with or without components. A softmax's own logits differ from z
by one constant, to which g is orthogonal. A definition by the logits of the components would depend on their
number: K equal components divide g into K parts, although the model is the same.

Let J (V, S) be the derivative of z at the S numbers that the head reads, with the mean over words subtracted.
Then Jᵀg is the gradient at the states, and −JJᵀg the change of z after a small step of the states against it.

    share       ‖P_J g‖ / ‖g‖, where P_J projects onto the range of J: the part of g that a state can follow
    gain        ‖Jᵀg‖ / ‖g‖
    alignment   cosine of JJᵀg and g, at most the share: the part of the step that goes where g points

For a softmax J is the centred output matrix in every context. For a mixture J depends on the context, so
the changes in different contexts are not in one subspace of E dimensions. The words that are answered, which
a head may read beside the states, are constants.

T tokens · K components · E context size · S size of the states · V words.
"""

import copy
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from lm.heads.head import Head
from lm.heads.states import Layers
from lm.steps import OnAdvance, no_advance

ENTRIES = 1 << 22  # of the logits that are differentiated at once


@dataclass(frozen=True)
class HeadGradients:
    """Derivatives of a float64 head at fixed states of T tokens. Memory does not grow with T·V.

    Each of the ``parts`` of the text has the states (n, ·) of the last layer and of every lower layer that
    the head reads, with the source, and the targets (n,).
    """

    head: Head
    parts: Sequence[tuple[Layers, Tensor]]
    advance: OnAdvance = no_advance  # called with the tokens of each block

    @classmethod
    def of(cls, head: Head, parts: Iterable[tuple[Layers, Tensor]]) -> "HeadGradients":
        """Gradients of a head without its dropout."""
        copied = copy.deepcopy(head).double().eval().requires_grad_(False)
        return cls(copied, [(states.double(), targets) for states, targets in parts])

    @property
    def tokens(self) -> int:
        """T."""
        return sum(len(targets) for _, targets in self.parts)

    @property
    def size(self) -> int:
        """S."""
        return self.head.hidden_size + sum(self.head.lower_sizes)

    @property
    def rows(self) -> int:
        """Number of states that are differentiated at once."""
        components = self.head.output.rows_per_token
        return max(1, min(256, ENTRIES // (components * self.head.vocab_size)))

    def blocks(self) -> Iterator[tuple[Layers, Tensor]]:
        """Yield the states (n, ·) and targets (n,) of consecutive tokens."""
        for states, targets in self.parts:
            for start in range(0, len(targets), self.rows):
                block = slice(start, start + self.rows)
                yield states.rows(block), targets[block]
                self.advance(len(targets[block]))

    def at_logits(self) -> Iterator[Tensor]:
        """Yield g, (n, V)."""
        for states, targets in self.blocks():
            yield self.gradient(states, targets)[0]

    def at_states(self) -> Iterator[Tensor]:
        """Yield Jᵀg, (n, S)."""
        for states, targets in self.blocks():
            yield self.gradient(states, targets)[1]

    def of_update(self) -> Iterator[Tensor]:
        """Yield JJᵀg, (n, V)."""
        for states, targets in self.blocks():
            yield self.change(states, self.gradient(states, targets)[1])

    def gradient(self, states: Layers, targets: Tensor) -> tuple[Tensor, Tensor]:
        """g (n, V) and Jᵀg (n, S)."""
        states = states.map(lambda h: h.detach().requires_grad_())._replace(source=states.source)
        with torch.enable_grad():
            log_probs = self.head.log_probs(states)
            loss = -log_probs.gather(1, targets[:, None]).sum()
        parts = torch.autograd.grad(loss, (states.last, *states.lower))
        at_logits = log_probs.detach().exp()
        at_logits[torch.arange(len(targets)), targets] -= 1
        return at_logits, torch.cat(parts, 1)

    def change(self, states: Layers, tangents: Tensor) -> Tensor:
        """J times ``tangents`` (n, S), row by row: (n, V)."""
        parts = tangents.split([self.head.hidden_size, *self.head.lower_sizes], 1)
        with torch.enable_grad(), forward_ad.dual_level():  # the formula of training, not the in-place one
            last, *lower = map(_dual, (states.last, *states.lower), parts)
            log_probs = self.head.log_probs(Layers(last, tuple(lower), states.source))
            change = forward_ad.unpack_dual(log_probs).tangent
        assert change is not None
        change = change.detach()
        centred: Tensor = change - change.mean(1, keepdim=True)
        return centred

    def jacobian(self, token: int) -> Tensor:
        """J of one token transposed, (S, V)."""
        states, _ = self._at(token)
        directions = torch.eye(self.size, dtype=torch.float64, device=states.last.device).split(self.rows)
        found = []
        for part in directions:
            copies = torch.zeros(len(part), dtype=torch.int64, device=part.device)
            found.append(self.change(states.rows(copies), part))
        return torch.cat(found)

    def share(self, token: int) -> tuple[float, int] | None:
        """Share of a token, and the numerical rank of its J; None for a gradient of 0, which has no share.

        The Gram matrix of J has an eigenvalue for every squared singular value. Eigenvalues below V·ε of
        the largest count as zero, which are singular values below about 10⁻⁶ of the largest.
        """
        logits, at_states = self.gradient(*self._at(token))
        if not logits.any():
            return None
        jacobian = self.jacobian(token)
        values, vectors = torch.linalg.eigh(jacobian @ jacobian.T)
        kept = values > values[-1] * self.head.vocab_size * torch.finfo(values.dtype).eps
        along = (at_states @ vectors)[0, kept].square() / values[kept]
        return math.sqrt(float(along.sum())) / float(logits.norm()), int(kept.sum())

    def _at(self, token: int) -> tuple[Layers, Tensor]:
        """States (1, ·) and target (1,) of a token."""
        for states, targets in self.parts:
            if token < len(targets):
                one = slice(token, token + 1)
                return states.rows(one), targets[one]
            token -= len(targets)
        raise IndexError(token)


def _dual(primal: Tensor, tangent: Tensor) -> Tensor:
    with warnings.catch_warnings():  # torch compiles its own rules of forward mode in a deprecated way
        warnings.simplefilter("ignore", DeprecationWarning)
        dual: Tensor = forward_ad.make_dual(primal, tangent)
    return dual
