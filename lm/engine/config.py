"""The schemas of optimiser and training engine."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from lm.config.section import MAX_SEED, Section, Size

Decay = Annotated[float, Field(ge=0, lt=1)]


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
    shards: Size = Field(
        1,
        description="number of parts of a batch, each with its own random numbers, that processes share out;"
        " as many processes or fewer may train, and their number changes nothing but the time",
    )
    reduction: Literal["exact", "fast"] = Field(
        "exact",
        description="sum of gradients over processes: exact gives the same bits for every number of them,"
        " fast sends less and agrees to rounding",
    )
    exchange_minutes: float = Field(
        10.0, gt=0, le=1440, description="minutes that processes wait for each other before they end"
    )
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
        description="paper: with the oddities of the authors' code, as listed in docs/reproduction.md",
    )
