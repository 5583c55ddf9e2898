"""Config schema of decoding, free of torch."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from lm.config.own_remedy import OwnRemedyError
from lm.config.section import MAX_SEED, Count, Owner, Positive, Section, Size
from lm.errors import require

Phrases = Annotated[tuple[str, ...], Field(strict=False, max_length=1000)]


class DecodeConfig(Section):
    """Decoding of responses: beam search or sampling."""

    owners: ClassVar[Mapping[str, Mapping[str, Owner]]] = {
        "method": {"groups": Owner("decode.method = beam", ("beam",))},
        "select": {
            "candidates": Owner("decode.select = mbr or mmi", ("mbr", "mmi")),
            "mbr_metric": Owner("decode.select = mbr", ("mbr",)),
            "mmi_run": Owner("decode.select = mmi", ("mmi",)),
            "mmi_weight": Owner("decode.select = mmi", ("mmi",)),
        },
    }
    readers: ClassVar[Mapping[str, Mapping[str, Owner]]] = {
        "method": dict.fromkeys(("beam", "groups", "diversity"), Owner("decode.method = beam", ("beam",)))
        | dict.fromkeys(
            ("temperature", "temperature_on", "top_k", "top_p", "seed"),
            Owner("decode.method = sample", ("sample",)),
        )
    }

    method: Literal["beam", "sample"] = Field("beam", description="decoding method: beam search or sampling")
    beam: Size = Field(10, description="beam width; 1 = greedy if length_penalty is 0")
    groups: Size = Field(
        1, description="number of groups of diverse beam search, which divide the beam; 1 = off"
    )
    diversity: float = Field(
        0.5,
        ge=0,
        le=1000,
        description="penalty in nats on a token for each hypothesis of earlier groups that takes it in the"
        " same step",
    )
    nbest: Size = Field(5, description="number of responses to keep")
    select: Literal["score", "mbr", "mmi"] = Field(
        "score",
        description="choice of the responses kept: by score, mbr by expected similarity to all candidates, or"
        " mmi by mutual information with the context",
    )
    candidates: Count = Field(0, description="mbr, mmi: number of responses to choose from; 0 = nbest")
    mbr_metric: Literal["bleu", "chrf"] = Field(
        "bleu", description="mbr: similarity of two responses: sentence BLEU or chrF"
    )
    mmi_run: str = Field(
        "",
        description="mmi: folder of a run trained with data.direction = backward, for"
        " log P(last utterance | response)",
    )
    mmi_weight: float = Field(
        0.5, ge=0, le=1000, description="mmi: factor on log P(last utterance | response) beside the score"
    )
    max_length: Size = Field(30, description="maximum length of a response in tokens without </s>")
    min_length: Count = Field(0, description="minimum length of a response in tokens without </s>")
    length_penalty: float = Field(
        0.0,
        ge=0,
        le=10,
        description="exponent of the length that divides a score; 0 = plain sum (the papers)",
    )
    no_repeat_ngram: Count = Field(
        0, description="size n of n-grams that must not repeat within a response; 0 = off"
    )
    block_context_ngram: Count = Field(
        0, description="size n of n-grams of the context that must not occur in a response; 0 = off"
    )
    begin: str = Field("", description="words that every response begins with")
    require: Phrases = Field(
        (), description='words and phrases that every response contains, as in ["next week", "rain"]'
    )
    forbid: Phrases = Field((), description="words and phrases that no response contains")
    temperature: Positive = Field(
        1.0, description="sampling temperature; method = beam with beam = 1 takes the most probable token"
    )
    temperature_on: Literal["mixture", "components"] = Field(
        "mixture", description="target of the temperature: the mixed distribution or every component's logits"
    )
    top_k: Count = Field(0, description="sample among the k most probable tokens; 0 = all")
    top_p: float = Field(1.0, gt=0, le=1, description="sample among the smallest set with this probability")
    products: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="precision of the head's products: float32, bfloat16, which changes some words, or auto,"
        " the faster one at training",
    )
    seed: int = Field(1, ge=0, le=MAX_SEED, description="seed of sampling")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in ("require", "forbid"):
            if not all(phrase.strip() for phrase in getattr(self, name)):
                raise ValueError(f"{name} has an empty phrase; leave it out")
        if self.beam % self.groups:
            raise OwnRemedyError(
                f"groups = {self.groups}: must divide beam = {self.beam}; choose another decode.groups or"
                " decode.beam"
            )
        if wrong := self.misplaced("method", (self.method,)):
            raise ValueError(f"{wrong}; decode.method is {self.method}, so leave groups at 1")
        if wrong := self.misplaced("select", (self.select,)):
            raise ValueError(f"{wrong}; decode.select is {self.select}")
        if 0 < self.candidates < self.nbest:
            raise ValueError(
                f"candidates = {self.candidates}: must be at least nbest = {self.nbest}; raise"
                " decode.candidates or lower decode.nbest"
            )
        if self.select == "mmi" and not self.mmi_run:
            raise ValueError("select = mmi: needs a backward run; set decode.mmi_run to its folder")
        if self.groups == 1 and self.diversity != type(self).model_fields["diversity"].default:
            raise ValueError("diversity does nothing with groups = 1; leave it out, or raise decode.groups")
        if self.min_length > self.max_length:
            raise ValueError(
                f"min_length = {self.min_length}: must be at most max_length = {self.max_length}; "
                "lower decode.min_length or raise decode.max_length"
            )
        return self

    @property
    def searched(self) -> int:
        """Number of responses that the search keeps: the candidates of a selection, or ``nbest``."""
        return self.nbest if self.select == "score" else self.candidates or self.nbest


def require_choice(config: DecodeConfig, given: Iterable[str]) -> None:
    """Raise ConfigError if ``select`` has a single candidate by one of the ``given`` keys.

    It decides nothing then. In the file of a run it may wait for more candidates.
    """
    asked = {key.removeprefix("decode.") for key in given} & {"select", "candidates", "nbest"}
    require(
        not asked or config.select == "score" or config.searched > 1,
        f"decode.select = {config.select}: has no effect on a single candidate; raise decode.candidates or"
        " decode.nbest above 1, or leave out decode.select",
    )


def _defaults(*names: str) -> dict[str, Any]:
    return {name: DecodeConfig.model_fields[name].default for name in names}


ONE_GROUP: Mapping[str, Any] = _defaults("groups", "diversity")  # for sampling and greedy search
ONE_BEAM: Mapping[str, Any] = {"method": "beam", "beam": 1, **ONE_GROUP}
_CHOICE = _defaults("length_penalty", "select", *DecodeConfig.owners["select"])
GREEDY: Mapping[str, Any] = {**ONE_BEAM, **_CHOICE}  # the most probable token at every step
