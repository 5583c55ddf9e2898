"""The schema of the output head: what is mixed, through which link function, from which contexts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from lm.config.section import MAX_SIZE, Count, Owner, Section, Size
from lm.heads.registry import HEADS, kinds_with

MIXTURES = tuple(kind for kind, row in HEADS.items() if row.is_mixture)
if TYPE_CHECKING:
    HeadKind = str
else:
    HeadKind = Literal[tuple(HEADS)]
Temperature = Literal["none", "constant", "contextual", "exponential", "additive", "sigmoid"]


_CONTEXTUAL = ("contextual", "exponential", "additive", "sigmoid")
_TEMPERATURES = {
    "temperature_value": ("constant",),
    "temperature_rank": _CONTEXTUAL,
    "temperature_alpha": ("contextual",),
    "temperature_beta": ("contextual",),
    "temperature_lambda": ("exponential", "additive"),
    "temperature_low": ("sigmoid",),
    "temperature_high": ("sigmoid",),
    "temperature_loss_scaling": ("constant", *_CONTEXTUAL),
    "skip_below": ("none", "constant"),
}


def _owners(key: str, values: Mapping[str, Sequence[str]]) -> dict[str, Owner]:
    return {name: Owner(f"head.{key} = {' or '.join(some)}", some) for name, some in values.items()}


class HeadConfig(Section):
    """The output head: what is mixed, through which link function, from which context vectors."""

    owners: ClassVar[Mapping[str, Mapping[str, Owner]]] = {
        "temperature": _owners("temperature", _TEMPERATURES),
        "kind": _owners("kind", {name: kinds_with(name) for row in HEADS.values() for name in row.fields}),
    }
    kind: HeadKind = Field("softmax", description=f"{', '.join([*HEADS][:-1])} or {[*HEADS][-1]}")
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
    def _own_fields(self) -> Self:
        for key in ("temperature", "kind"):
            value = getattr(self, key)
            if wrong := self.misplaced(key, (value,)):
                raise ValueError(f"{wrong}; it is {value}")
        for name in ("gate_size", "gated_words", "prior_penalty"):
            if self.components == 1 and getattr(self, name) != HeadConfig.model_fields[name].default:
                raise ValueError(
                    f"{name} does nothing with components = 1; leave it out, or raise components"
                )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.temperature_low >= self.temperature_high:
            raise ValueError(
                f"temperature_low = {self.temperature_low:g}: must be below temperature_high ="
                f" {self.temperature_high:g}"
            )
        if self.kind not in MIXTURES and self.components != 1:
            raise ValueError(
                f"components = {self.components}: a {self.kind} head has one; set head.components = 1"
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
