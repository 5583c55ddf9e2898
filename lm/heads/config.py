"""The schema of the output head: what is mixed, through which link function, from which contexts."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from lm.config.section import MAX_SIZE, Count, Section, Size

HeadKind = Literal["softmax", "sigsoftmax", "sigmoid", "relu", "moc", "mos", "moss", "mixtape", "plif", "doc"]


MIXTURES = ("moc", "mos", "moss", "mixtape", "doc")


Temperature = Literal["none", "constant", "contextual", "exponential", "additive", "sigmoid"]


class HeadConfig(Section):
    """The output head: what is mixed, through which link function, from which context vectors."""

    kind: HeadKind = Field(
        "softmax", description="softmax, sigsoftmax, sigmoid, relu, moc, mos, moss, mixtape, plif or doc"
    )
    components: int = Field(
        1,
        ge=1,
        le=MAX_SIZE,
        description="K, the number of mixed contexts (moc), logits (mixtape, a power of 2) or softmaxes"
        " (mos, moss, doc)",
    )
    embedding_size: int | None = Field(
        None, ge=1, le=MAX_SIZE, description="E, the size of a context vector; none is the hidden size"
    )
    tied: bool = Field(False, description="share the output matrix with the input embedding")
    output_bias: bool = Field(True, description="a bias for every word, shared by the components")
    latent_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="dropout of contexts that are not the states themselves, one mask for all time steps",
    )
    context_scale: float = Field(
        1.0, gt=0, description="factor on the tanh contexts of mixtures; 1 is the papers'"
    )
    learn_context_scale: bool = Field(False, description="learn the factor, starting from context_scale")
    learn_shift: bool = Field(False, description="learn the shift b of exp(z)·σ(z + b) (sigsoftmax, moss)")
    products: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="precision of the matrix products of the training loss: float32, bfloat16, or auto, the"
        " faster at the start of a training; statistics stay float32",
    )
    skip_below: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="mos, moss, doc: components with a smaller posterior at a token add nothing to its"
        " gradient of contexts and output matrix, which saves time; 0 is exact",
    )
    gate_size: int | None = Field(
        None,
        ge=1,
        le=MAX_SIZE,
        description="mixtape: size of the words' gate vectors; none is embedding_size",
    )
    gated_words: Count = Field(
        0, description="mixtape: so many most frequent words have gates of their own; 0 is all"
    )
    intervals: Size = Field(
        1000, description="plif: intervals, each with its slope, of the function of the logits"
    )
    interval_range: float = Field(20.0, gt=0, description="plif: they divide logits from - this to + this")
    lower_components: tuple[Count, ...] = Field(
        (),
        strict=False,
        description="doc: how many of the components come from the layer below the last, from the next"
        " below it, and so on down to the embedding",
    )
    prior_penalty: float = Field(
        0.0,
        ge=0,
        description="mos, moss, doc: weight of the squared coefficient of variation of the components' shares"
        " of a batch",
    )
    prior_penalty_of: Literal["batch", "streams"] = Field(
        "batch",
        description="prior_penalty compares shares of a batch, or those of every stream, as the authors' code"
        " of doc does: about 20 times as much",
    )
    shared_latent_mask: bool = Field(
        False, description="doc: latent_dropout has one mask for all components, as in the authors' code"
    )
    temperature: Temperature = Field(
        "none",
        description="what divides the logits: none, constant, or of the word in its context: contextual (as"
        " published, nearly constant), exponential, additive or sigmoid",
    )
    temperature_value: float = Field(2.0, gt=0, description="constant: the temperature")
    temperature_rank: int | None = Field(
        None, ge=1, le=MAX_SIZE, description="Q, the rank of the temperatures' matrix; none is embedding_size"
    )
    temperature_alpha: float = Field(1.0, gt=0, description="contextual: α of (softmax + α) / β")
    temperature_beta: float = Field(0.5, gt=0, description="contextual: β of (softmax + α) / β")
    temperature_lambda: float = Field(
        3.0, gt=1, description="exponential, additive: λ of λ^tanh and of tanh + λ"
    )
    temperature_low: float = Field(0.5, gt=0, description="sigmoid: the lowest temperature")
    temperature_high: float = Field(3.5, gt=0, description="sigmoid: the highest temperature")
    temperature_loss_scaling: bool = Field(
        False, description="training multiplies the loss, not its penalties, by the mean temperature"
    )

    @model_validator(mode="after")
    def _tempered(self) -> Self:
        contextual = ("contextual", "exponential", "additive", "sigmoid")
        owners = {
            "temperature_value": ("constant",),
            "temperature_rank": contextual,
            "temperature_alpha": ("contextual",),
            "temperature_beta": ("contextual",),
            "temperature_lambda": ("exponential", "additive"),
            "temperature_low": ("sigmoid",),
            "temperature_high": ("sigmoid",),
            "temperature_loss_scaling": ("constant", *contextual),
        }
        self._refuse_strangers("temperature", owners)
        if self.temperature_low >= self.temperature_high:
            raise ValueError(
                f"temperature_low = {self.temperature_low:g}: must be below temperature_high ="
                f" {self.temperature_high:g}"
            )
        return self

    @model_validator(mode="after")
    def _of_its_kind(self) -> Self:
        owners = {
            "gate_size": ("mixtape",),
            "gated_words": ("mixtape",),
            "intervals": ("plif",),
            "interval_range": ("plif",),
            "lower_components": ("doc",),
            "prior_penalty": ("mos", "moss", "doc"),
            "prior_penalty_of": ("mos", "moss", "doc"),
            "shared_latent_mask": ("doc",),
            "skip_below": ("mos", "moss", "doc"),
        }
        self._refuse_strangers("kind", owners)
        self._refuse_strangers("temperature", {"skip_below": ("none", "constant")})
        for name in ("gate_size", "gated_words", "prior_penalty"):
            if self.components == 1 and getattr(self, name) != HeadConfig.model_fields[name].default:
                raise ValueError(
                    f"{name} does nothing with components = 1; leave it out, or raise components"
                )
        if self.kind == "mixtape" and self.components & (self.components - 1):
            raise ValueError(
                f"components = {self.components}: mixtape divides them by a binary tree; choose 2, 4 or 8"
            )
        lower = sum(self.lower_components)
        if self.kind == "doc" and not 0 < lower < self.components:
            raise ValueError(
                f"lower_components = {list(self.lower_components)}: doc needs at least one component from"
                f" lower layers and one from the last; choose from 1 to {self.components - 1} of"
                f" head.components = {self.components}"
            )
        return self

    def _refuse_strangers(self, key: str, owners: Mapping[str, tuple[str, ...]]) -> None:
        """ValueError for a setting that other values of ``key`` have, where it is not at its default."""
        value = getattr(self, key)
        for name, owner in owners.items():
            if value not in owner and getattr(self, name) != HeadConfig.model_fields[name].default:
                raise ValueError(f"{name} belongs to head.{key} = {' or '.join(owner)}; it is {value}")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        mixes = self.kind in MIXTURES
        if not mixes and self.components != 1:
            raise ValueError(
                f"components = {self.components}: a {self.kind} head has one; set head.components = 1"
            )
        if not mixes and (self.learn_context_scale or self.context_scale != 1.0):
            raise ValueError(f"context_scale belongs to mixtures; remove it from a {self.kind} head")
        if self.learn_shift and self.kind not in ("sigsoftmax", "moss"):
            raise ValueError(f"learn_shift belongs to sigsoftmax and moss; remove it from a {self.kind} head")
        return self
