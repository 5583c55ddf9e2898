"""Saturation of the tanh layer of a head: contexts near −1 and 1, where tanh passes hardly any gradient.

The contexts of a head without much factor may become the bias of the frequent words, where the output bias
begins at zero. The model below then learns nothing until the output bias has grown.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lm.heads.head import Head
from lm.heads.precision import precise

# after 500 updates on Switchboard, heads on a plateau had .013 at most, and others .5 or more
LEAST_DERIVATIVE = 0.05


class TanhDerivative:
    """Mean of 1 − tanh²x over the inputs x of the tanh layers that it was shown."""

    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    @property
    def mean(self) -> float:
        """The mean, and 1 if nothing was shown."""
        return self._sum / self._count if self._count else 1.0

    @property
    def saturated(self) -> bool:
        """True if the mean is below :data:`LEAST_DERIVATIVE`."""
        return self.mean < LEAST_DERIVATIVE

    def show(self, inputs: Tensor) -> None:
        """Add inputs of any shape."""
        self._sum += float((1 - torch.tanh(precise(inputs.detach())).square()).sum(dtype=torch.float64))
        self._count += inputs.numel()


@contextmanager
def watched_contexts(model: nn.Module) -> Iterator[TanhDerivative]:
    """Measure the tanh layers of all heads in a model while it runs; other heads add nothing."""
    found = TanhDerivative()

    def show(module: nn.Module, inputs: Any, output: Tensor) -> None:
        found.show(output)

    heads = [part for part in model.modules() if isinstance(part, Head)]
    tanh = [head for head in heads if head.latent is not None and head.config.context_activation == "tanh"]
    layers = [layer for head in tanh for layer in (head.latent, *head.lower) if layer is not None]
    hooks = [layer.register_forward_hook(show) for layer in layers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def saturation_note(derivative: float) -> str:
    """A warning about contexts with a mean derivative of tanh."""
    return (
        f"warning: the head's contexts are saturated: the mean derivative of their tanh is {derivative:.1e},"
        " so that hardly any gradient passes. If this lasts, train another run with head.start ="
        ' "frequencies", a larger head.context_scale, or a lower optim.lr'
    )
