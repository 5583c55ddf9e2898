"""Config schema of the output head."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from lm.config.own_remedy import OwnRemedyError
from lm.config.section import Above, Count, NotNegative, Owner, Positive, Rate, Section, Size
from lm.heads.registry import HEADS, kinds_with

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
    """Output head: kind, link function, context vectors and temperature."""

    owners: ClassVar[Mapping[str, Mapping[str, Owner]]] = {
        "temperature": _owners("temperature", _TEMPERATURES),
        "kind": _owners("kind", {name: kinds_with(name) for row in HEADS.values() for name in row.fields}),
    }
    readers: ClassVar[Mapping[str, Mapping[str, Owner]]] = {
        "components": dict.fromkeys(("prior_bias", "skip_below"), Owner("more components", Above(1))),
        "latent_dropout": {"shared_latent_mask": Owner("head.latent_dropout above 0", Above(0))},
        "prior_penalty": {"prior_penalty_of": Owner("a head.prior_penalty above 0", Above(0))},
    }
    kind: HeadKind = Field(
        "softmax", description=f"kind of head: {', '.join([*HEADS][:-1])} or {[*HEADS][-1]}"
    )
    components: Size = Field(
        1,
        description="number of components K: contexts (moc), logits (mixtape, a power of 2) or softmaxes"
        " (mos, moss, doc, mfs, cpr) that are mixed",
    )
    embedding_size: Size | None = Field(None, description="size E of a context vector; none = hidden size")
    tied: bool = Field(False, description="share the output matrix with the input embedding")
    start: Literal["random", "frequencies", "pretrained"] = Field(
        "random",
        description="initial parameters. frequencies: random, but the output bias begins at the frequencies"
        " of words in training. pretrained: the head begins as the output layer of the model of model.trunk",
    )
    output_bias: bool = Field(True, description="add a bias for every word, shared by the components")
    latent_dropout: Rate = Field(
        0.0, description="dropout rate of contexts, except plain hidden states; one mask for all time steps"
    )
    context_activation: Literal["tanh", "none"] = Field(
        "tanh",
        description="function of the contexts of mixtures: tanh as in the papers, or none, which can begin as"
        " the output layer of a pretrained model",
    )
    context_scale: Positive = Field(1.0, description="factor on the contexts of mixtures; 1 in the papers")
    learn_context_scale: bool = Field(
        False, description="learn the factor on the contexts, starting from context_scale"
    )
    prior_bias: bool = Field(
        False,
        description="moc, mos, moss, doc, mfs, cpr: add a bias of every component to the logits of the prior."
        " A doc head needs it to begin as a pretrained output layer",
    )
    learn_shift: bool = Field(False, description="learn the shift b of exp(z)·σ(z + b) (sigsoftmax, moss)")
    products: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="precision of the matrix products of the training loss: float32, bfloat16, or auto,"
        " which takes bfloat16 if it is clearly faster; statistics stay float32",
    )
    skip_below: Rate = Field(
        0.0,
        description="mos, moss, doc: minimum posterior of a component at a token for its gradients of"
        " contexts and output matrix. Gradients below are skipped to save time; 0 = exact",
    )
    gate_size: Size | None = Field(
        None, description="mixtape: size of the words' gate vectors; none = embedding_size"
    )
    gated_words: Count = Field(
        0, description="mixtape: number of most frequent words with own gates; 0 = all"
    )
    intervals: Size = Field(
        1000, description="plif: number of intervals of the function of logits, each with its slope"
    )
    interval_range: float = Field(
        20.0, gt=0, le=1000, description="plif: largest absolute logit that the intervals cover"
    )
    lower_components: tuple[Count, ...] = Field(
        (),
        strict=False,
        description="doc: numbers of components from each layer below the last, the highest layer first, down"
        " to the embedding",
    )
    partitions: Size = Field(
        1,
        description="mfs: number of parts of the vocabulary, each with a context of its own in the first"
        " component. Word v is in part v mod partitions",
    )
    facet_layers: Count = Field(
        0, description="mfs, cpr: number of layers below the last that every context reads, too"
    )
    candidates: tuple[Size, ...] = Field(
        (),
        strict=False,
        description="cpr: numbers of most probable words, increasing; words between two numbers have a"
        " context of their own",
    )
    source: Literal["none", "words", "pointer"] = Field(
        "none",
        description="cpr in dialog models: contexts for words of the dialog: one for their output vectors"
        " (words), and one for the encoder's states (pointer)",
    )
    prior_penalty: NotNegative = Field(
        0.0,
        description="mos, moss, doc, mfs, cpr: weight of the penalty on unequal use of components, their"
        " squared coefficient of variation in a batch; 0 = off",
    )
    prior_penalty_of: Literal["batch", "streams"] = Field(
        "batch",
        description="sums that prior_penalty compares: of a batch, or of every stream as in the authors' code"
        " of doc, which gives about 20 times the penalty",
    )
    label_smoothing: Rate = Field(
        0.0,
        description="share of the training loss that is the mean −log P of all words; 0 = off. Perplexity is"
        " without it",
    )
    unlikelihood: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="weight of −Σ log(1 − P(w)) in the training loss, over the words w before a token, other"
        " than the token; 0 = off",
    )
    past_decode: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="weight of −log P(present word), decoded from the distribution of the next word, in the"
        " training loss (PDR, Brahma 2018; 0.001 there); 0 = off",
    )
    shared_latent_mask: bool = Field(
        False, description="doc: use one mask of latent_dropout for all components, as in the authors' code"
    )
    temperature: Temperature = Field(
        "none",
        description="divisor of the logits: none, constant, or one for each word in its context: contextual"
        " (as published, nearly constant), exponential, additive or sigmoid",
    )
    temperature_value: Positive = Field(2.0, description="constant: the temperature")
    temperature_rank: Size | None = Field(
        None, description="rank Q of the temperatures' matrix; none = embedding_size"
    )
    temperature_alpha: Positive = Field(1.0, description="contextual: α of (softmax + α) / β")
    temperature_beta: Positive = Field(0.5, description="contextual: β of (softmax + α) / β")
    temperature_lambda: float = Field(
        3.0, gt=1, description="exponential, additive: λ of λ^tanh and of tanh + λ"
    )
    temperature_low: Positive = Field(0.5, description="sigmoid: the lowest temperature")
    temperature_high: Positive = Field(3.5, description="sigmoid: the highest temperature")
    temperature_loss_scaling: bool = Field(
        False, description="multiply the training loss, but not prior_penalty, by the mean temperature"
    )

    @property
    def lower_layers(self) -> int:
        """Number of layers below the last that the head reads."""
        return self.facet_layers or len(self.lower_components)

    @property
    def source_contexts(self) -> int:
        """Number of contexts of a token for the words of the source."""
        return ("none", "words", "pointer").index(self.source)

    @property
    def own_contexts(self) -> int:
        """Number of contexts of a token that belong to the first component, besides its first."""
        return self.partitions - 1 + len(self.candidates) + self.source_contexts

    @property
    def contexts(self) -> int:
        """Number of contexts of a token: K, and those of parts of the vocabulary."""
        return self.components + self.own_contexts

    @model_validator(mode="after")
    def _own_fields(self) -> Self:
        for key in ("temperature", "kind"):
            value = getattr(self, key)
            if wrong := self.misplaced(key, (value,)):
                raise ValueError(f"{wrong}; head.{key} is {value}")
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
        if not HEADS[self.kind].is_mixture and self.components != 1:
            raise ValueError(
                f"components = {self.components}: a {self.kind} head has one; set head.components = 1"
            )
        if self.start == "frequencies" and not self.output_bias:
            raise OwnRemedyError(
                'start = "frequencies": needs a bias; set head.output_bias = true, or head.start = "random"'
            )
        if self.kind == "mixtape" and self.components & (self.components - 1):
            raise OwnRemedyError(
                f"components = {self.components}: mixtape divides them by a binary tree; choose 2, 4 or 8"
            )
        if self.skip_below and (self.label_smoothing or self.unlikelihood or self.past_decode):
            raise ValueError(
                f"skip_below = {self.skip_below:g}: skips no gradient with label_smoothing, unlikelihood or"
                " past_decode; set it to 0"
            )
        if any(one >= other for one, other in pairwise(self.candidates)):
            raise ValueError(f"candidates = {list(self.candidates)}: must increase, as in [20, 100]")
        lower = sum(self.lower_components)
        if self.kind == "doc" and self.components == 1:
            raise OwnRemedyError("components = 1: doc needs at least two, of different layers; choose more")
        if self.kind == "doc" and not 0 < lower < self.components:
            raise OwnRemedyError(
                f"lower_components = {list(self.lower_components)}: doc needs at least one component from"
                f" lower layers and one from the last; choose from 1 to {self.components - 1} of"
                f" head.components = {self.components}"
            )
        return self
