"""Cached keys and values of a transformer that reads streams window by window.

T time · B streams · G heads of keys and values · S cached positions · d size of a head.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from lm.trunks.attention import AttentionMask, KeysValues, added, select_rows
from lm.trunks.trunk import TrunkState


@dataclass(frozen=True)
class CacheState(TrunkState):
    """Keys and values of the last tokens of B streams, in every layer.

    Streams may see different numbers of tokens, always the last ones. S is the largest of these numbers.
    """

    layers: tuple[KeysValues, ...]  # each (B, G, S, d), keys rotated to their positions
    positions: Tensor  # (B,) int64 on the CPU: number of tokens read
    lengths: Tensor  # (B,) int64 on the CPU: number of cached positions that the stream sees
    span: int  # the largest S

    @classmethod
    def empty(cls, streams: int, layers: int, heads: int, head_size: int, span: int, like: Tensor) -> Self:
        """State of streams before their first token, with the type and device of ``like``."""
        nothing = like.new_empty(streams, heads, 0, head_size)
        none = torch.zeros(streams, dtype=torch.long, device="cpu")
        return cls(((nothing, nothing),) * layers, none, none, span)

    @property
    def streams(self) -> int:
        return len(self.positions)

    @property
    def size(self) -> int:
        """S."""
        return self.layers[0][0].shape[2]

    def select(self, rows: Tensor | slice) -> Self:
        layers = select_rows(self.layers, rows)
        chosen = rows if isinstance(rows, slice) else rows.cpu()
        return replace(
            self, layers=layers, positions=self.positions[chosen], lengths=self.lengths[chosen]
        )._trimmed()

    def replaced(self, rows: slice, new: Self) -> Self:
        size = max(self.size, new.size)

        def patched(old: Tensor, part: Tensor) -> Tensor:
            whole = _widened(old, size).clone()
            whole[rows] = _widened(part, size)
            return whole

        pairs = zip(self.layers, new.layers, strict=True)
        layers = tuple((patched(k, n), patched(v, m)) for (k, v), (n, m) in pairs)
        positions, lengths = self.positions.clone(), self.lengths.clone()
        positions[rows], lengths[rows] = new.positions, new.lengths
        return replace(self, layers=layers, positions=positions, lengths=lengths)._trimmed()

    def joined(self, others: Sequence[Self]) -> Self:
        states = (self, *others)
        size = max(state.size for state in states)
        layers = tuple(
            (
                torch.cat([_widened(keys, size) for keys, _ in one]),
                torch.cat([_widened(values, size) for _, values in one]),
            )
            for one in zip(*(state.layers for state in states), strict=True)
        )
        positions, lengths = (
            torch.cat(parts) for parts in zip(*((one.positions, one.lengths) for one in states), strict=True)
        )
        return replace(self, layers=layers, positions=positions, lengths=lengths)

    def forgetting(self, kept: Tensor) -> Self:
        return replace(self, lengths=self.lengths * kept.cpu())._trimmed()

    def detached(self) -> Self:
        return replace(self, layers=tuple((keys.detach(), values.detach()) for keys, values in self.layers))

    def tensors(self) -> dict[str, Tensor]:
        named = {"positions": self.positions, "lengths": self.lengths}
        for layer, (keys, values) in enumerate(self.layers):
            named |= {
                f"keys{layer}": _widened(keys, self.span),
                f"values{layer}": _widened(values, self.span),
            }
        return named

    @classmethod
    def of(cls, tensors: dict[str, Tensor], device: torch.device, layers: int) -> Self:
        """State from the result of :meth:`tensors`."""
        pairs = [(tensors[f"keys{n}"].to(device), tensors[f"values{n}"].to(device)) for n in range(layers)]
        counts = (tensors["positions"].cpu(), tensors["lengths"].cpu())
        return cls(tuple(pairs), *counts, pairs[0][0].shape[2])._trimmed()

    def after(self, cached: Iterable[KeysValues], steps: int, keep: Tensor | None) -> Self:
        """State after a window, from all keys and values of its layers (B, G, S + T, d)."""
        lengths = self.lengths + steps
        if keep is not None:
            since = steps - _last_reset(keep.cpu())  # tokens from the last reset on, more than T for none
            lengths = torch.where(since <= steps, since, lengths)
        lengths = lengths.clamp(max=self.span)
        return replace(
            self, layers=tuple(cached), positions=self.positions + steps, lengths=lengths
        )._trimmed()

    def visible(self, steps: int, keep: Tensor | None, like: Tensor) -> AttentionMask:
        """Keys that the next T tokens attend to: themselves and up to ``span`` tokens before them."""
        size, even = self.size, bool((self.lengths == self.size).all()) and keep is None
        if even and (steps == 1 or (not size and steps <= self.span + 1)):
            return AttentionMask(causal=steps > 1)
        queries = torch.arange(size, size + steps, device=like.device)[:, None]
        keys = torch.arange(size + steps, device=like.device)
        mask = (keys <= queries) & (keys >= queries - self.span)  # (T, S + T)
        if not even:
            known = keys >= size - self.lengths.to(like.device)[:, None]
            mask = mask & known[:, None, None]  # (B, 1, T, S + T)
        if keep is not None:
            parts = F.pad((~keep).long().cumsum(0).t(), (size, 0))  # (B, S + T) resets so far
            mask = mask & (parts[:, None, None] == parts[:, None, size:, None])
        return added(mask, like)

    def _trimmed(self) -> Self:
        """The same state with the smallest S, which depends on nothing but what streams see."""
        size = int(self.lengths.max())
        if size == self.size:
            return self
        first = self.size - size
        return replace(
            self, layers=tuple((keys[:, :, first:], values[:, :, first:]) for keys, values in self.layers)
        )


def _widened(cached: Tensor, size: int) -> Tensor:
    """Cached keys or values with positions before them that no stream sees."""
    missing = size - cached.shape[2]
    return F.pad(cached, (0, 0, missing, 0)) if missing else cached


def _last_reset(keep: Tensor) -> Tensor:
    """Step of the last false entry of every column (T, B) → (B,), -1 for none."""
    steps = torch.arange(len(keep))[:, None]
    return torch.where(keep, -1, steps).amax(0)
