"""Config schema of transformers."""

from typing import Literal, Self

from pydantic import Field, model_validator

from lm.config.section import MAX_LAYERS, MAX_SIZE, Count, Section

_MULTIPLE = 8  # divides feed-forward sizes that follow from the width


class TransformerConfig(Section):
    """Layers of transformers: pre-norm with RMSNorm, rotary positions, no biases."""

    heads: int = Field(4, ge=1, le=MAX_LAYERS, description="number of attention heads of a layer")
    kv_heads: int = Field(
        0,
        ge=0,
        le=MAX_LAYERS,
        description="number of heads of keys and values, each shared by a group of heads; 0 = heads",
    )
    feedforward: Literal["swiglu", "gelu"] = Field(
        "swiglu", description="function of the feed-forward part: swiglu (Shazeer 2020) or gelu"
    )
    feedforward_size: Count = Field(
        0,
        le=MAX_SIZE,
        description="hidden size of the feed-forward part. 0 = four times the layer's size for gelu, 8/3"
        " of it for swiglu, rounded up to a multiple of 8",
    )
    rotary_base: float = Field(
        10_000.0, gt=1, description="base of the wavelengths of rotary positions (Su et al. 2021)"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads = {self.kv_heads}: must divide heads = {self.heads}; 0 = as many as heads"
            )
        return self

    @property
    def key_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def multiple(self) -> int:
        """Number that divides every size of a layer: rotary positions take pairs of each head's numbers."""
        return 2 * self.heads

    def inner(self, size: int) -> int:
        """Hidden size of the feed-forward part of a layer."""
        if self.feedforward_size:
            return self.feedforward_size
        return 4 * size if self.feedforward == "gelu" else -(-8 * size // (3 * _MULTIPLE)) * _MULTIPLE

    def misfit(self, size: int) -> str | None:
        """Reason why a layer cannot have a size, if it cannot."""
        if size % self.multiple == 0:
            return None
        lower = size - size % self.multiple or self.multiple
        return (
            f"{size}: must be a multiple of {self.multiple}, twice transformer.heads = {self.heads};"
            f" {lower} would fit"
        )
