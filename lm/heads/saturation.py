"""Saturation of the tanh layer of a head: contexts near −1 and 1, where tanh passes hardly any gradient.

With the output bias at zero, the contexts of a mixture may learn the frequencies of words. All tokens then
have nearly the same contexts, at the ends of tanh, and the layers below learn nothing for a while.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lm.heads.config import HeadConfig
from lm.heads.head import Head
from lm.heads.precision import precise

# after 500 updates on Switchboard, heads on a plateau had .013 at most, and others .6 or more
LEAST_DERIVATIVE = 0.05


class ContextWatch:
    """Mean of 1 − tanh²x over the inputs x of each layer of contexts of a head, while it runs.

    The mean is over tokens and components. Components are not measured one by one: where one is saturated,
    others still pass gradients. A tanh in bfloat16 passes less than this where its output rounds to 1.
    """

    def __init__(self, head: Head | None) -> None:
        self.layers: list[nn.Module] = []
        if head is not None and head.latent is not None and head.config.context_activation == "tanh":
            self._config, self.layers = head.config, [head.latent, *head.lower]
        self._sums, self._counts = [0.0] * len(self.layers), [0] * len(self.layers)

    @property
    def derivative(self) -> float:
        """The smallest of the layers' means; 1 if no layer with tanh ran."""
        means = [total / count for total, count in zip(self._sums, self._counts, strict=True) if count]
        return min(means, default=1.0)

    @property
    def saturated(self) -> bool:
        """True if :attr:`derivative` is below :data:`LEAST_DERIVATIVE`."""
        return self.derivative < LEAST_DERIVATIVE

    def note(self, *, trained: bool) -> str:
        """A warning about saturated contexts, or a line that they no longer are.

        ``trained``: the model began as one that was trained elsewhere, so that ``head.start`` has no effect.
        """
        found = f"the mean derivative of their tanh is {self.derivative:.2g}"
        if not self.saturated:
            return f"the head's contexts are no longer saturated: {found}"
        return (
            f"warning: the head's contexts are saturated: {found}, so that hardly any gradient passes."
            f" If this lasts, train another run with {' or '.join(_remedies(self._config, trained=trained))}"
        )

    def add(self, at: int, layer: nn.Module, inputs: Any, results: Tensor) -> None:
        """Add the results of layer ``at``, the inputs of its tanh: a forward hook once ``at`` is bound."""
        derivatives = 1 - torch.tanh(precise(results.detach())).square()
        self._sums[at] += float(derivatives.sum(dtype=torch.float64))
        self._counts[at] += results.numel()


@contextmanager
def watched_contexts(model: nn.Module) -> Iterator[ContextWatch]:
    """Watch the contexts of the head of a model while it runs. The gates of Mixtape are no contexts."""
    watch = ContextWatch(next((part for part in model.modules() if isinstance(part, Head)), None))
    hooks = [layer.register_forward_hook(partial(watch.add, at)) for at, layer in enumerate(watch.layers)]
    try:
        yield watch
    finally:
        for hook in hooks:
            hook.remove()


def _remedies(config: HeadConfig, *, trained: bool) -> list[str]:
    """Changes of which each alone avoids saturation, without those that a config has.

    Settings were measured on Switchboard. A rate of .3 saturates contexts on small talk also with these.
    """
    found = []
    if config.output_bias and config.start == "random" and not trained:
        found.append("--set head.start=frequencies")
    if config.context_scale < 4:
        found.append("--set head.context_scale=4")
    return [*found, "--set head.context_activation=none", "a lower optim.lr"]
