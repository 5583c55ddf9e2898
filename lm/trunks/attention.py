"""Parts of transformers: attention with rotary positions (Su et al. 2021), and feed-forward parts.

Queries may share keys and values (Ainslie et al. 2023). SwiGLU is that of Shazeer (2020).

T time · B sequences · D size of the layer · A heads · G heads of keys and values · d size of a head ·
S keys from before · M positions of a memory.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lm.trunks.config import TransformerConfig

KeysValues = tuple[Tensor, Tensor]  # each (B, G, S, d)


def select_rows(layers: Iterable[KeysValues], rows: Tensor | slice) -> tuple[KeysValues, ...]:
    """Keys and values of some streams, which may repeat, in every layer."""
    return tuple((keys[rows], values[rows]) for keys, values in layers)


def tokens_in(layers: Sequence[KeysValues]) -> int:
    """Number of tokens whose keys and values are kept."""
    return layers[0][0].shape[2] if layers else 0


class AttentionMask(NamedTuple):
    """Keys that each query attends to: those of a mask, all up to its own position, or all."""

    mask: Tensor | None = None  # added to the scores: 0 or -inf, broadcast to (B, A, T, keys)
    causal: bool = False


def added(visible: Tensor, like: Tensor) -> AttentionMask:
    """Mask from ``visible`` (..., T, keys) bool."""
    return AttentionMask(
        torch.zeros(visible.shape, dtype=like.dtype, device=like.device).masked_fill_(~visible, -torch.inf)
    )


def turns(positions: Tensor, steps: int, config: TransformerConfig, like: Tensor, head_size: int) -> Tensor:
    """Rotations of the steps after ``positions`` (B,), complex (T, B or 1, 1, d / 2).

    Angles are computed in float64. So they are exact to float32 for 10⁸ positions.
    """
    if bool((positions == positions[0]).all()):
        positions = positions[:1]
    numbers = torch.arange(0, head_size, 2, dtype=torch.float64)
    frequencies = config.rotary_base ** (-numbers / head_size)
    places = torch.arange(steps)[:, None] + positions
    angles = places.to(torch.float64)[..., None, None] * frequencies
    dtype = torch.complex128 if like.dtype == torch.float64 else torch.complex64
    return torch.polar(torch.ones_like(angles), angles).to(like.device, dtype)


def rotated(vectors: Tensor, by: Tensor) -> Tensor:
    """Turn neighbouring pairs of numbers of vectors (T, B, heads, d)."""
    pairs = torch.view_as_complex(vectors.to(by.dtype.to_real()).unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * by).flatten(-2).to(vectors.dtype)


class SelfAttention(nn.Module):
    """Attention of a sequence to itself and to keys and values from before."""

    def __init__(self, size: int, config: TransformerConfig) -> None:
        super().__init__()
        self.heads, self.key_heads = config.heads, config.key_heads
        self.head_size = size // config.heads
        self.project = nn.Linear(size, (self.heads + 2 * self.key_heads) * self.head_size, bias=False)
        self.last = nn.Linear(size, size, bias=False)

    def matrix_blocks(self) -> dict[str, int]:
        """Number of equal blocks of queries, keys and values."""
        return {"project.weight": self.heads // self.key_heads + 2}

    def forward(
        self, inputs: Tensor, by: Tensor, past: KeysValues | None, visible: AttentionMask
    ) -> tuple[Tensor, KeysValues]:
        """Outputs (T, B, D) of inputs (T, B, D), and all keys and values, those from before first.

        ``by`` are the :func:`turns` of the T positions.
        """
        vectors = self.project(inputs).unflatten(-1, (-1, self.head_size))
        turned = rotated(vectors[..., : self.heads + self.key_heads, :], by)
        queries, keys = turned.permute(1, 2, 0, 3).split((self.heads, self.key_heads), 1)
        values = vectors[..., self.heads + self.key_heads :, :].permute(1, 2, 0, 3)
        if past is not None:
            keys, values = torch.cat((past[0], keys), 2), torch.cat((past[1], values), 2)
        return self.last(attended(queries, keys, values, visible)), (keys, values)


class CrossAttention(nn.Module):
    """Attention of a sequence to a memory."""

    def __init__(self, size: int, memory_size: int, config: TransformerConfig) -> None:
        super().__init__()
        self.heads, self.key_heads = config.heads, config.key_heads
        self.head_size = size // config.heads
        self.query = nn.Linear(size, size, bias=False)
        self.project = nn.Linear(memory_size, 2 * self.key_heads * self.head_size, bias=False)
        self.last = nn.Linear(size, size, bias=False)

    def matrix_blocks(self) -> dict[str, int]:
        """Number of blocks: keys and values."""
        return {"project.weight": 2}

    def remember(self, memory: Tensor) -> KeysValues:
        """Keys and values of a memory (B, M, ·)."""
        vectors = self.project(memory).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
        keys, values = vectors.split(self.key_heads, 1)
        return keys, values

    def forward(self, inputs: Tensor, memory: KeysValues, visible: AttentionMask) -> Tensor:
        """Outputs (T, B, D) of inputs (T, B, D)."""
        queries = self.query(inputs).unflatten(-1, (-1, self.head_size)).permute(1, 2, 0, 3)
        outputs: Tensor = self.last(attended(queries, *memory, visible))
        return outputs


def attended(queries: Tensor, keys: Tensor, values: Tensor, visible: AttentionMask) -> Tensor:
    """Weighted values (T, B, D) of queries (B, A, T, d)."""
    grouped = queries.shape[1] != keys.shape[1]
    outputs = F.scaled_dot_product_attention(
        queries, keys, values, visible.mask, is_causal=visible.causal, enable_gqa=grouped
    )
    return outputs.permute(2, 0, 1, 3).flatten(2)


class FeedForward(nn.Module):
    """The feed-forward part of a block."""

    def __init__(self, size: int, config: TransformerConfig) -> None:
        super().__init__()
        inner = config.inner(size)
        self.gated = config.feedforward == "swiglu"
        self.widen = nn.Linear(size, 2 * inner if self.gated else inner, bias=False)
        self.last = nn.Linear(inner, size, bias=False)

    def matrix_blocks(self) -> dict[str, int]:
        """Number of blocks: the gate and what it multiplies."""
        return {"widen.weight": 1 + self.gated}

    def forward(self, inputs: Tensor) -> Tensor:
        wide = self.widen(inputs)
        if self.gated:
            gate, wide = wide.chunk(2, -1)
            wide = F.silu(gate) * wide
        else:
            wide = F.gelu(wide)
        outputs: Tensor = self.last(wide)
        return outputs
