"""The typed configuration sections that language models and dialog models share.

Kept free of torch, so that a misspelt key is reported before anything heavy is imported. Every section
is frozen and strict: unknown keys and ill-typed values are errors. ``lm.config`` reads TOML into them.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from lm.section import MAX_LAYERS, MAX_SEED, MAX_SIZE, Count, Section, Size

HeadKind = Literal["softmax", "sigsoftmax", "sigmoid", "relu", "moc", "mos", "moss", "mixtape", "plif", "doc"]
MIXTURES = ("moc", "mos", "moss", "mixtape", "doc")
Temperature = Literal["none", "constant", "contextual", "exponential", "additive", "sigmoid"]
CellKind = Literal["lstm", "mogrifier", "mlstm", "gru", "mogrifier_gru"]
Decay = Annotated[float, Field(ge=0, lt=1)]
RESAMPLES = 10_000  # of a paired bootstrap, unless another number is asked for


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


class CellSettings(Section):
    """What recurrent cells are like, apart from which one it is."""

    rounds: int = Field(
        5,
        ge=0,
        le=MAX_LAYERS,
        description="mogrifiers: how often input and state gate each other before a step",
    )
    rank: int = Field(0, ge=0, le=MAX_SIZE, description="mogrifiers: rank of the gates' matrices; 0 is full")
    gate_bias: bool = Field(True, description="mogrifiers: whether gates have biases")
    zigzag: bool = Field(True, description="mogrifiers: gates read the latest input and state, not the first")
    cap_input_gate: bool = Field(
        False, description="LSTM cells: the input gate is at most 1 - the forget gate"
    )
    input_scale: bool = Field(False, description="whether every unit of the inputs has a learned factor")
    weight_rank: Count = Field(
        0, description="largest rank of W_ih and W_hh, as products of two; 0 is one matrix each"
    )
    layer_norm: bool = Field(
        False, description="LSTM cells: whether what each gate squashes is normalised over its units"
    )
    init: Literal["uniform", "truncated"] = Field(
        "uniform",
        description="uniform, or truncated normal by the size of what is read, with the forget gate's bias"
        " around 1, as in the code of the Mogrifier",
    )

    def misplaced(self, kinds: Collection[CellKind]) -> str | None:
        """A setting that was changed though none of the kinds has it, and whose it is; or nothing."""
        for name, (owner, having) in _OWNERS.items():
            default = CellSettings.model_fields[name].default
            if getattr(self, name) != default and not having.intersection(kinds):
                return f"{name} belongs to {owner}"
        return None

    def of(self, kind: CellKind) -> "CellConfig":
        """A cell of this kind; it reads those of the settings that it has."""
        return CellConfig.model_construct(kind=kind, **self.model_dump())


_MOGRIFIERS: tuple[str, frozenset[CellKind]] = ("the mogrifier", frozenset({"mogrifier", "mogrifier_gru"}))
_OWNERS: dict[str, tuple[str, frozenset[CellKind]]] = {
    **dict.fromkeys(("rounds", "rank", "gate_bias", "zigzag"), _MOGRIFIERS),
    **dict.fromkeys(
        ("cap_input_gate", "layer_norm"), ("LSTM cells", frozenset({"lstm", "mogrifier", "mlstm"}))
    ),
}


class CellConfig(CellSettings):
    """A recurrent cell: of every layer of a language model, or, by its kind, of a part of a dialog model."""

    kind: CellKind = Field("lstm", description="lstm, mogrifier, mlstm, gru or mogrifier_gru")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if wrong := self.misplaced((self.kind,)):
            raise ValueError(f"{wrong}; remove it from a {self.kind} cell")
        return self

    @property
    def mogrifies(self) -> bool:
        """Whether input and state gate each other."""
        return self.kind in ("mogrifier", "mogrifier_gru")

    @property
    def is_gru(self) -> bool:
        """Whether the equations are those of a GRU, which has no c."""
        return self.kind in ("gru", "mogrifier_gru")

    @property
    def is_plain(self) -> bool:
        """Whether torch has this cell."""
        other_gates = (self.cap_input_gate or self.layer_norm) and not self.is_gru
        other_weights = self.input_scale or self.weight_rank > 0 or self.init != "uniform"
        return self.kind in ("lstm", "gru") and not other_gates and not other_weights

    @property
    def floats(self) -> int:
        """Per unit and step, what backpropagation keeps: gates, outputs, and those of the gating."""
        gating = 2 * self.rounds if self.mogrifies else 3 * (self.kind == "mlstm")
        normalised = 4 if self.layer_norm and not self.is_gru else 0
        return (4 if self.is_gru else 6) + gating + normalised + self.input_scale


class OptimConfig(Section):
    """Optimiser, learning-rate schedule, clipping and weight averaging."""

    name: Literal["adam", "adamw", "sgd"] = Field("adam", description="adam, adamw or sgd")
    lr: float = Field(1e-3, gt=0, description="peak learning rate")
    betas: tuple[Decay, Decay] = Field(
        (0.9, 0.999), strict=False, description="moment decay rates of Adam and AdamW"
    )
    eps: float = Field(1e-8, gt=0, description="denominator term of Adam and AdamW")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(0.0, ge=0, description="L2 for Adam and SGD, decoupled for AdamW")
    clip_norm: float = Field(5.0, ge=0, description="largest global gradient norm; 0 does not clip")
    schedule: Literal["constant", "cosine", "one_cycle", "plateau"] = Field(
        "constant", description="constant, cosine, one_cycle or plateau"
    )
    warmup_steps: int = Field(
        0,
        ge=0,
        description="steps of warm-up: along a cosine from lr / 25 in one_cycle, linear in the others",
    )
    decay_steps: int = Field(
        0, ge=0, description="cosine, one_cycle: the step at which the lowest rate is reached"
    )
    min_lr_ratio: float = Field(0.0, ge=0, le=1, description="lowest rate after a decay, as a share of lr")
    plateau_factor: float = Field(0.5, gt=0, lt=1, description="plateau: factor after stale validations")
    plateau_patience: int = Field(
        0, ge=0, description="plateau: stale validations that are forgiven before a drop"
    )
    average: Literal["none", "ema", "uniform"] = Field(
        "none", description="weights that are evaluated and saved as best"
    )
    ema_decay: float = Field(
        0.999,
        gt=0,
        lt=1,
        description="decay of the exponential average, which is corrected for its beginning",
    )
    average_start: int = Field(
        0,
        ge=0,
        description="step after which averaging begins; with average_patience, at the latest, unless it is 0",
    )
    average_trigger: int = Field(
        0,
        ge=0,
        description="NT-ASGD: averaging begins where a validation is worse than the best of all but the"
        " latest so many (5 in the papers); 0: average_start decides",
    )
    average_patience: int = Field(
        0,
        ge=0,
        description="averaging begins where the best validation is so many validations old (lamb);"
        " 0: average_start decides",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.schedule in ("cosine", "one_cycle") and self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f"decay_steps: the {self.schedule} schedule needs optim.decay_steps > optim.warmup_steps"
            )
        for name in ("average_trigger", "average_patience"):
            if getattr(self, name) and self.average == "none":
                raise ValueError(f'{name}: needs averages to begin; set optim.average = "uniform"')
        if self.average_trigger and self.average_patience:
            raise ValueError("average_patience: average_trigger is set, too; set one of them to 0")
        return self


class TrainConfig(Section):
    """The engine: how long, how often to validate and to save, and on what."""

    seed: int = Field(1, ge=0, le=MAX_SEED, description="seeds initialisation, data order and dropout")
    max_steps: int = Field(0, ge=0, description="stop after so many updates; 0 is no limit")
    max_epochs: int = Field(0, ge=0, description="stop after so many passes over the data; 0 is no limit")
    max_minutes: float = Field(
        0.0, ge=0, description="stop after so much training time, resumes included; 0 is no limit"
    )
    batch_size: Size = Field(16, description="dialog segments (dialog) or streams (lm) in a batch")
    accumulate: Size = Field(1, description="batches whose gradients make one update")
    validate_every: int = Field(0, ge=0, description="updates between validations; 0 is once an epoch")
    patience: int = Field(
        0, ge=0, description="stop after so many validations without a better one; 0 never stops early"
    )
    min_delta: float = Field(
        0.0, ge=0, description="nats a token that count as better, for patience and for the plateau schedule"
    )
    stop_trigger: int = Field(
        0,
        ge=0,
        description="stop where a validation is worse than the best of all but the latest so many (5 in the"
        " papers' finetuning); 0 never does",
    )
    start_from: str = Field(
        "", description="lm: run whose best weights training starts from, as in finetuning"
    )
    checkpoint_every: int = Field(
        0, ge=0, description="updates between checkpoints; 0 is at validations only"
    )
    checkpoint_minutes: float = Field(
        5.0,
        ge=0,
        description="a checkpoint is written at the latest after so many minutes; 0 is by steps only",
    )
    keep_best: int = Field(1, ge=1, description="how many of the best checkpoints are kept")
    keep_last: int = Field(2, ge=1, description="how many of the newest checkpoints are kept")
    log_every: int = Field(50, ge=1, description="updates between lines of metrics.jsonl")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="bfloat16 runs the model under autocast; cells that torch does not have stay in float32",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto takes CUDA where there is one")
    threads: int = Field(
        0, ge=0, le=1024, description="CPU threads of the training; 0 leaves the choice to torch"
    )
    compat: Literal["none", "paper"] = Field(
        "none",
        description="paper: with the oddities of the authors' code, as listed in docs/language_models.md",
    )
