"""``lm serve``: trained language models that continue texts, as models of the API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from lm.config.section import MAX_SIZE
from lm.console.terminal import sanitize
from lm.heads.registry import head_label
from lm.language.generate import (
    GenerateOptions,
    TextWriter,
    generator_of,
    next_tokens,
    prompt_ids,
    read_prompt,
)
from lm.language.trained import TrainedLm
from lm.runs.checkpoint import CheckpointStore
from lm.runs.evaluations import loaded
from lm.serve.answers import Answer, Choice, Token
from lm.serve.batching import Job
from lm.serve.failure import ApiError, wrong_value
from lm.serve.protocol import ChatRequest, CompletionRequest, InspectRequest, refused
from lm.steps import Check


class FurtherOptions(BaseModel):
    """Options of ``lm generate`` that the API lacks, given in ``decode``."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    top_k: Annotated[int, Field(ge=0, le=MAX_SIZE)] = 0
    temperature_on: Literal["mixture", "components"] = "mixture"
    unknown: bool = True


@dataclass(frozen=True, slots=True)
class _Wish:
    """The body of a query: a prompt, its options, and the form of the answer."""

    prompt: str
    ids: Sequence[int]
    options: GenerateOptions
    stops: tuple[str, ...]
    listed: int | None


class ServedLm:
    """A run of a language model that continues prompts, as ``lm generate`` does."""

    def __init__(self, trained: TrainedLm, weights: str | None, created: int) -> None:
        self.trained, self.fingerprint, self.created = trained, (weights or "")[:12], created

    @classmethod
    def load(cls, run: Path, checkpoint: str = "best") -> "ServedLm":
        """Open a run. Raises the errors of ``TrainedLm.load``."""
        trained, weights = loaded(run, checkpoint, TrainedLm.load)
        return cls(trained, weights, int(CheckpointStore.of(run).folder.stat().st_mtime))

    @property
    def about(self) -> Mapping[str, Any]:
        """Head and vocabulary."""
        head = self.trained.config.head
        return {
            "head": head_label(head.kind, head.components),
            "components": head.components,
            "vocabulary": len(self.trained.codec.vocabulary),
        }

    def chat_job(self, request: ChatRequest) -> NoReturn:
        """Raise ApiError: a language model holds no conversation."""
        raise ApiError(404, "this model has no chat; use /v1/completions", param="model")

    def inspect_job(self, request: InspectRequest) -> NoReturn:
        """Raise ApiError, as :meth:`chat_job`."""
        self.chat_job(request)

    def completion_jobs(self, request: CompletionRequest) -> list[Job]:
        """A job for every prompt."""
        options = generating(request)
        # A seed is of one request, so requests with different seeds are written together.
        group = (id(self), replace(options, seed=0, count=1))
        codec = self.trained.codec
        return [
            Job(
                group,
                self._answers,
                _Wish(prompt, prompt_ids(codec, prompt, "prompt"), options, request.stop, request.listed),
                options.count,
            )
            for prompt in request.prompt
        ]

    def _answers(self, jobs: Sequence[Job], check: Check) -> list[Answer]:
        wishes: list[_Wish] = [job.body for job in jobs]
        texts = [_Growing(self.trained, wish) for wish in wishes for _ in range(wish.options.count)]
        starts = [read_prompt(self.trained, wish.ids, check) for wish in wishes]
        counts = [wish.options.count for wish in wishes]
        rows = [start for start, count in zip(starts, counts, strict=True) for _ in range(count)]
        generators = [generator_of(w.options.seed, n) for w in wishes for n in range(w.options.count)]
        for tokens, log_probs in next_tokens(self.trained, rows, generators, wishes[0].options):
            check()
            for text, token, row in zip(texts, tokens.tolist(), log_probs, strict=True):
                text.add(token, row)
            if all(text.ended for text in texts):
                break
        written = iter(texts)
        return [
            Answer(tuple(next(written).choice() for _ in range(count)), len(wish.ids))
            for wish, count in zip(wishes, counts, strict=True)
        ]


class _Growing:
    """A text that grows until it contains a stop."""

    def __init__(self, trained: TrainedLm, wish: _Wish) -> None:
        self._vocabulary, self._wish = trained.codec.vocabulary, wish
        self._writer = TextWriter(trained.codec, wish.prompt)
        self._tokens: list[Token] = []
        self._said = ""
        self.ended = False

    def add(self, token: int, log_probs: Tensor) -> None:
        """Append a token, given log P of every word (V,)."""
        if self.ended:
            return
        listed, names = self._wish.listed, self._vocabulary.tokens
        text = sanitize(self._writer.add(token))
        if listed is None:
            self._tokens.append(Token(sanitize(names[token]), text))
        else:
            best = log_probs.topk(min(listed, len(names))) if listed else None
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True) if best else ()
            top = tuple((sanitize(names[index]), value) for index, value in pairs)
            self._tokens.append(Token(sanitize(names[token]), text, float(log_probs[token]), top))
        self._said += text
        self.ended = any(stop in self._said for stop in self._wish.stops)

    def choice(self) -> Choice:
        """The text up to its stop."""
        return Choice(tuple(self._tokens), finished=False).until(self._wish.stops)


def generating(request: CompletionRequest) -> GenerateOptions:
    """Options of a request: those of ``lm generate``, with the parameters that it gives.

    The temperature 0 is greedy. Further options are in ``decode``. ApiError for impossible ones.
    """
    try:
        further = FurtherOptions.model_validate(request.decode)
    except ValidationError as error:
        raise refused(error, FurtherOptions, "decode") from None
    greedy = request.temperature == 0
    useless = {"top_k": greedy, "temperature_on": greedy or request.temperature is None}
    for name in request.decode:
        if useless.get(name):
            raise wrong_value(f"decode.{name}", "has no effect at this temperature; leave it out")
    given = {"max_tokens": request.limit, "top_p": request.top_p, "seed": request.seed}
    known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if greedy:
        known["top_k"] = 1
    elif request.temperature is not None:
        known["temperature"] = request.temperature
    return GenerateOptions(count=request.n, **(further.model_dump() | known))
