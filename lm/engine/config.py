"""The schemas of optimiser and training engine."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from lm.config.section import MAX_SEED, Above, Owner, Section, Size

Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimConfig(Section):
    """Optimiser, learning-rate schedule, clipping and weight averaging."""

    owners: ClassVar[Mapping[str, Mapping[str, Owner]]] = {
        "name": {"muon_momentum": Owner("optim.name = muon", ("muon",))}
    }
    readers: ClassVar[Mapping[str, Mapping[str, Owner]]] = {
        "name": {
            "momentum": Owner("--set optim.name=sgd", ("sgd",)),
            "betas": Owner("another optimiser", ("adam", "adamw", "muon")),
            "eps": Owner("another optimiser", ("adam", "adamw", "muon")),
        },
        "schedule": {
            "decay_steps": Owner("the schedule cosine or one_cycle", ("cosine", "one_cycle")),
            "min_lr_ratio": Owner("another schedule", ("cosine", "one_cycle", "plateau")),
            "plateau_factor": Owner("--set optim.schedule=plateau", ("plateau",)),
            "plateau_patience": Owner("--set optim.schedule=plateau", ("plateau",)),
        },
        "weight_decay": {"weight_decay_of": Owner("--set optim.weight_decay above 0", Above(0))},
        "average": {
            "ema_decay": Owner("--set optim.average=ema", ("ema",)),
            "average_start": Owner("an average", ("ema", "uniform")),
        },
    }
    name: Literal["adam", "adamw", "muon", "sgd"] = Field(
        "adam",
        description="adam, adamw, sgd or muon. muon: Muon for hidden matrices, AdamW for embeddings, output"
        " matrices and vectors; matrices of pretrained networks are taken whole",
    )
    lr: float = Field(1e-3, gt=0, description="peak learning rate")
    trunk_lr_ratio: float = Field(
        1.0, gt=0, description="factor on the learning rate of all parameters except the head's"
    )
    betas: tuple[Decay, Decay] = Field(
        (0.9, 0.999), strict=False, description="moment decay rates of Adam and AdamW, also beside Muon"
    )
    eps: float = Field(1e-8, gt=0, description="term added to the denominator of Adam and AdamW")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD")
    muon_momentum: Decay = Field(0.95, description="decay rate of the Nesterov momentum of Muon")
    weight_decay: float = Field(
        0.0, ge=0, description="factor of weight decay: L2 for Adam and SGD, decoupled for AdamW and Muon"
    )
    weight_decay_of: Literal["all", "matrices"] = Field(
        "all",
        description="parameters with weight decay: all, as in AWD-LSTM, or matrices, without biases, gains"
        " and the learned factor on contexts",
    )
    clip_norm: float = Field(5.0, ge=0, description="largest global gradient norm; 0 = no clipping")
    schedule: Literal["constant", "cosine", "one_cycle", "plateau"] = Field(
        "constant", description="learning-rate schedule: constant, cosine, one_cycle or plateau"
    )
    warmup_steps: int = Field(
        0,
        ge=0,
        description="number of warm-up updates: a cosine from lr / 25 in one_cycle, linear in the others",
    )
    decay_steps: int = Field(
        0, ge=0, description="cosine, one_cycle: number of updates after which the lowest rate is reached"
    )
    min_lr_ratio: float = Field(0.0, ge=0, le=1, description="lowest rate, as a share of lr")
    plateau_factor: float = Field(0.5, gt=0, lt=1, description="plateau: factor on the rate at each drop")
    plateau_patience: int = Field(
        0,
        ge=0,
        description="plateau: number of validations without improvement that cause no drop yet",
    )
    average: Literal["none", "ema", "uniform"] = Field(
        "none", description="average of weights that is evaluated and used: none, ema or uniform"
    )
    ema_decay: float = Field(
        0.999, gt=0, lt=1, description="decay of the exponential average, per update; bias-corrected"
    )
    average_start: int = Field(
        0,
        ge=0,
        description="number of updates before averaging; with average_patience: averaging begins at the"
        " latest at the next validation after these updates, 0 = no limit",
    )
    average_trigger: int = Field(
        0,
        ge=0,
        description="NT-ASGD window n, in validations: average once the loss exceeds the best one older"
        " than n (5 in the papers); 0 = average_start decides",
    )
    average_patience: int = Field(
        0,
        ge=0,
        description="number of validations without a new best after which averaging begins"
        " (Melis et al. 2020); 0 = average_start decides",
    )

    @model_validator(mode="after")
    def _own_fields(self) -> Self:
        if wrong := self.misplaced("name", (self.name,)):
            raise ValueError(f"{wrong}; optim.name is {self.name}")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.schedule in ("cosine", "one_cycle") and self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f"decay_steps: the {self.schedule} schedule needs optim.decay_steps > optim.warmup_steps"
            )
        for name in ("average_trigger", "average_patience"):
            if getattr(self, name) and self.average == "none":
                raise ValueError(f'{name}: needs an average of weights; set optim.average = "uniform"')
        for name in ("average_patience", "average_start"):
            if self.average_trigger and getattr(self, name):
                raise ValueError(f"{name}: excludes average_trigger, which is also set; set one of them to 0")
        return self


class TrainConfig(Section):
    """Training: limits, validation, checkpoints, precision and device."""

    readers: ClassVar[Mapping[str, Mapping[str, Owner]]] = {
        "shards": dict.fromkeys(
            ("reduction", "exchange_minutes"), Owner("--set train.shards=2, or more", Above(1))
        )
    }

    seed: int = Field(1, ge=0, le=MAX_SEED, description="seed of initialisation, data order and dropout")
    max_steps: int = Field(0, ge=0, description="number of updates to stop after; 0 = no limit")
    max_epochs: int = Field(0, ge=0, description="number of passes over the data to stop after; 0 = no limit")
    max_minutes: float = Field(
        0.0,
        ge=0,
        description="minutes of training after which it stops, all sittings included; a last validation"
        " comes on top; 0 = no limit",
    )
    batch_size: Size = Field(16, description="number of dialog segments (dialog) or streams (lm) in a batch")
    shards: Size = Field(
        1,
        description="number of shards of a batch, each with its own random numbers, divided among processes."
        " At most as many processes can train; their number affects only the speed.",
    )
    reduction: Literal["exact", "fast"] = Field(
        "exact",
        description="sum of gradients over processes. exact: the same bits for any number of processes."
        " fast: less memory, equal up to rounding.",
    )
    exchange_minutes: float = Field(
        10.0, gt=0, le=1440, description="minutes that processes wait for each other before they fail"
    )
    accumulate: Size = Field(1, description="number of batches in an update")
    validate_every: int = Field(
        0, ge=0, description="number of updates between validations; 0 = once an epoch"
    )
    patience: int = Field(
        0, ge=0, description="number of validations without improvement to stop after; 0 = no early stopping"
    )
    min_delta: float = Field(
        0.0, ge=0, description="smallest improvement in nats a token, for patience and the plateau schedule"
    )
    stop_trigger: int = Field(
        0,
        ge=0,
        description="number of validations; stop once the loss exceeds the best one older than these (5 in"
        " the papers' finetuning); 0 = off",
    )
    start_from: str = Field(
        "", description="lm: run whose best weights the training starts from, for finetuning"
    )
    freeze: Literal["none", "trunk"] = Field(
        "none",
        description="parameters that training leaves as they are. trunk: all except those of the head, of"
        " which a tied embedding is one",
    )
    checkpoint_every: int = Field(
        0,
        ge=0,
        description="updates between checkpoints; 0 = only at validations and by checkpoint_minutes",
    )
    checkpoint_minutes: float = Field(5.0, ge=0, description="most minutes between checkpoints; 0 = no limit")
    keep_best: int = Field(1, ge=1, description="number of best checkpoints to keep")
    keep_last: int = Field(2, ge=1, description="number of newest checkpoints to keep")
    log_every: int = Field(50, ge=1, description="number of updates between lines of metrics.jsonl")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="bfloat16 runs the model under autocast, except cells that torch does not have. It also"
        " runs the iteration of Muon",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="auto, cpu or cuda; auto = CUDA if available"
    )
    threads: int = Field(0, ge=0, le=1024, description="number of CPU threads; 0 = torch's default")
    compat: Literal["none", "paper"] = Field(
        "none", description="paper: with the deviations of the authors' code that docs/reproduction.md lists"
    )

    @property
    def shard_size(self) -> int:
        """Number of segments or streams in the largest shard of a batch."""
        return -(-self.batch_size // self.shards)
