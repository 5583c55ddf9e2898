"""Blocks of attention and feed-forward parts, and stacks of them, with or without cross-attention.

Pre-norm (Xiong et al. 2020) and RMSNorm (Zhang and Sennrich 2019).

T time · B sequences · D size of the blocks · A heads · G heads of keys and values · d size of a head ·
S keys from before · M positions of a memory.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from lm.regularize import DropoutMasks, masked
from lm.trunks.attention import AttentionMask, CrossAttention, FeedForward, KeysValues, SelfAttention
from lm.trunks.config import TransformerConfig

EPS = 1e-6  # of RMSNorm


class Heard(NamedTuple):
    """A memory as the blocks of a stack attend to it."""

    layers: Sequence[KeysValues]  # of each block (B, G, M, d)
    visible: AttentionMask


class StackOutputs(NamedTuple):
    """Outputs of a stack."""

    outputs: Tensor  # (T, B, D), normalised
    lower: tuple[Tensor, ...]  # (T, B, D) normalised inputs of each block, the highest first
    known: tuple[KeysValues, ...]  # all keys and values of each block (B, G, S + T, d)


class Block(nn.Module):
    """One layer: attention, cross-attention if there is a memory, and a feed-forward part.

    Each part reads normalised inputs, and its outputs are added to the inputs.
    """

    def __init__(self, size: int, config: TransformerConfig, memory_size: int = 0) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size, EPS)
        self.attention = SelfAttention(size, config)
        self.cross_norm = nn.RMSNorm(size, EPS) if memory_size else None
        self.cross = CrossAttention(size, memory_size, config) if memory_size else None
        self.feedforward_norm = nn.RMSNorm(size, EPS)
        self.feedforward = FeedForward(size, config)


class BlockStack(nn.Module):
    """Blocks of one size, and a norm after the last one.

    Args:
        config: heads and feed-forward parts of the blocks.
        words: size of the inputs, which a matrix maps to ``size`` if they differ.
        size: D.
        layers: number of blocks.
        rate: dropout rate of the outputs of the parts of a block.
        masks: masks of dropout, shared by all steps or one per step.
        memory_size: size of a memory that the blocks attend to; 0 = none.
    """

    def __init__(
        self,
        config: TransformerConfig,
        words: int,
        size: int,
        layers: int,
        rate: float = 0.0,
        masks: DropoutMasks = "per_step",
        memory_size: int = 0,
    ) -> None:
        super().__init__()
        self.config, self.size, self.rate, self._masks = config, size, rate, masks
        self.enter = nn.Linear(words, size, bias=False) if words != size else None
        self.blocks = nn.ModuleList(Block(size, config, memory_size) for _ in range(layers))
        self.norm = nn.RMSNorm(size, EPS)
        self._initialise()

    def remember(self, memory: Tensor) -> tuple[KeysValues, ...]:
        """Keys and values of a memory (B, M, memory size) for each block."""
        return tuple(block.cross.remember(memory) for block in self._each() if block.cross is not None)

    def forward(
        self,
        words: Tensor,
        by: Tensor,
        visible: AttentionMask,
        past: Sequence[KeysValues] = (),
        heard: Heard | None = None,
    ) -> StackOutputs:
        """Read inputs (T, B, words).

        Args:
            by: rotations of their positions, by :func:`lm.trunks.attention.turns`.
            visible: keys that each position attends to, of ``past`` and of the inputs.
            past: keys and values from before, of each block.
            heard: the memory, for blocks with cross-attention.
        """
        # Autocast would keep the sums of all blocks in the precision of a projection.
        hidden = words if self.enter is None else self.enter(words).to(words.dtype)
        lower: list[Tensor] = []
        known: list[KeysValues] = []
        for number, block in enumerate(self._each()):
            read = block.attention_norm(hidden)
            lower.insert(0, read)
            found, cached = block.attention(read, by, past[number] if past else None, visible)
            known.append(cached)
            hidden = hidden + self._drop(found)
            if block.cross is not None and block.cross_norm is not None and heard is not None:
                found = block.cross(block.cross_norm(hidden), heard.layers[number], heard.visible)
                hidden = hidden + self._drop(found)
            hidden = hidden + self._drop(block.feedforward(block.feedforward_norm(hidden)))
        return StackOutputs(self.norm(hidden), tuple(lower), tuple(known))

    def floats(self, keys: float, memory: float = 0.0) -> float:
        """Numbers kept for backpropagation per token that attends to ``keys`` keys of its own.

        ``memory`` is the number of positions of a memory per token.
        """
        config, size = self.config, self.size
        shared = config.key_heads * (size // config.heads)
        attention = 6 * size + 4 * shared + 2 * shared * keys
        cross = 5 * size + 2 * shared * memory if memory else 0.0
        block = attention + cross + 6 * size + 4 * config.inner(size)
        return len(self.blocks) * block + 2 * size + (self.enter.in_features if self.enter else 0)

    def _each(self) -> Sequence[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def _drop(self, states: Tensor) -> Tensor:
        return masked(states, self.rate, self._masks, self.training)

    def _initialise(self) -> None:
        """Normal weights of variance 1 / inputs.

        The variance of matrices that end a part is divided by the number of parts (Radford et al. 2019).
        """
        parts = [
            part for part in self.modules() if isinstance(part, SelfAttention | CrossAttention | FeedForward)
        ]
        for part in parts:
            for matrix in part.children():
                if isinstance(matrix, nn.Linear):
                    fan = matrix.in_features * (len(parts) if matrix is part.last else 1)
                    nn.init.normal_(matrix.weight, std=fan**-0.5)
