"""The transformer trunk: a stack with causal attention that reaches back over earlier windows.

A query attends to its own position and to ``span`` positions before it. Keys and values of earlier windows
are cached without gradients (as hidden states are in Dai et al. 2019). So no length of windows changes the
result, and text has no longest length.

T time · B streams · E size of the word vectors · D size of the blocks.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lm.regularize import DropoutMasks
from lm.trunks.attention import turns
from lm.trunks.blocks import BlockStack
from lm.trunks.cache import CacheState
from lm.trunks.config import TransformerConfig
from lm.trunks.trunk import Trunk, TrunkOutputs


class TransformerTrunk(Trunk[CacheState]):
    """A stack of blocks of equal size. What each block reads are its normalised inputs.

    Args:
        config: heads and feed-forward parts of the blocks.
        sizes: E, then D once for each block.
        span: number of tokens that attention reaches back.
        rate: dropout rate of the outputs of attention and of feed-forward parts.
        masks: masks of dropout, shared by all steps of a window or one per step.
    """

    def __init__(
        self,
        config: TransformerConfig,
        sizes: Sequence[int],
        span: int,
        rate: float = 0.0,
        masks: DropoutMasks = "shared",
    ) -> None:
        super().__init__()
        words, self.size, layers = sizes[0], sizes[1], len(sizes) - 1
        self.config, self.span = config, span
        self.stack = BlockStack(config, words, self.size, layers, rate, masks)
        self.lower_sizes = (self.size,) * layers

    def initial_state(self, streams: int) -> CacheState:
        """An empty cache."""
        layers, heads, size = len(self.lower_sizes), self.config.key_heads, self.size // self.config.heads
        return CacheState.empty(streams, layers, heads, size, self.span, self.stack.norm.weight)

    def state_from(self, tensors: dict[str, Tensor], device: torch.device) -> CacheState:
        return CacheState.of(tensors, device, len(self.lower_sizes))

    def forward(
        self, words: Tensor, state: CacheState, keep: Tensor | None = None
    ) -> TrunkOutputs[CacheState]:
        steps = len(words)
        by = turns(state.positions, steps, self.config, words, self.size // self.config.heads)
        outputs, lower, known = self.stack(words, by, state.visible(steps, keep, words), state.layers)
        return TrunkOutputs(outputs, lower, state.after(known, steps, keep))

    def dropout_rates(self) -> tuple[float, ...]:
        return (self.stack.rate,)

    def scale_dropout(self, factor: float) -> None:
        self.stack.rate *= factor

    def activations(self, steps: int, streams: int, device: torch.device) -> int:
        return round(steps * streams * self.stack.floats(1 + self.span / steps))
