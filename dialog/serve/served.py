"""``dialog serve``: trained dialog models as chat models of the API."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from dialog.batches import Example, next_example
from dialog.chat.conversation import spoken
from dialog.chat.transcript import HUMAN, MODEL, one_line
from dialog.config import FRAME
from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Hypothesis
from dialog.decoding.trace import Candidate
from dialog.serve.settings import decoding, require_short_phrases
from dialog.trained import StepProbabilities, TrainedModel, open_models, require_forward
from dialog.utterance import Utterance
from lm.console.terminal import sanitize
from lm.heads.registry import head_label
from lm.runs.checkpoint import CheckpointStore
from lm.serve.answers import Answer, Choice, Token
from lm.serve.batching import Job
from lm.serve.failure import wrong_value
from lm.serve.protocol import MAX_TOKENS, ChatRequest, CompletionRequest, InspectRequest
from lm.steps import Check
from lm.text.vocabulary import Codec

SPEAKERS = {"user": HUMAN, "assistant": MODEL}
_NEAR = 8  # tokens that are decoded together to find the text of the last one


@dataclass(frozen=True, slots=True)
class _Wish:
    """The body of a job: what was said, how to decode the reply, and the form of the answer."""

    example: Example
    decode: DecodeConfig
    count: int
    stops: tuple[str, ...] = ()
    listed: int | None = None


class ServedDialog:
    """A dialog run, or an ensemble of ``members``, that answers requests.

    The user is the human of a chat, the assistant is the model.
    """

    def __init__(
        self,
        model: TrainedModel,
        weights: str | None,
        created: int,
        members: "Sequence[ServedDialog]" = (),
    ) -> None:
        self.model, self.fingerprint, self.created = model, (weights or "")[:12], created
        self._members = members

    @classmethod
    def load(cls, run: Path, checkpoint: str = "best", decode: DecodeConfig | None = None) -> "ServedDialog":
        """Open a run. ``decode`` replaces its settings. ConfigError for a backward run, or bad settings.

        StorageError as :meth:`TrainedModel.load`.
        """
        model, [weights] = open_models([run], checkpoint)
        require_forward(model, run)
        decode = decode or model.config.decode
        model.require(decode)
        model = replace(model, config=model.config.model_copy(update={"decode": decode}))
        return cls(model, weights, int(CheckpointStore.of(run).folder.stat().st_mtime))

    @classmethod
    def ensemble_of(cls, members: Mapping[str, "ServedDialog"]) -> "ServedDialog":
        """The ensemble of several runs by name, which shares their weights and has the settings of the first.

        Raises ConfigError if the runs do not fit together.
        """
        models = list(members.values())
        weights = hashlib.sha256("+".join(one.fingerprint for one in models).encode()).hexdigest()
        model = TrainedModel.ensemble_of([one.model for one in models], list(members))
        return cls(model, weights, max(one.created for one in models), models)

    @property
    def about(self) -> Mapping[str, Any]:
        """Head, components, and settings of decoding, without folders of the server."""
        heads = [one.model.config.head for one in self._members or [self]]
        return {
            "head": "; ".join(head_label(head.kind, head.components) for head in heads),
            "components": sum(head.components for head in heads),
            "vocabulary": len(self.model.codec.vocabulary),
            "decode": self.model.config.decode.model_dump(exclude={"mmi_run"}),
        }

    def chat_job(self, request: ChatRequest) -> Job:
        """A job for the reply to a conversation."""
        said = [Utterance(SPEAKERS[one.role], one_line(one.text)) for one in request.messages]
        return self._job(said, request)

    def completion_jobs(self, request: CompletionRequest) -> list[Job]:
        """A job for every prompt. Its lines are said in turn, the last one by the human."""
        jobs = []
        for prompt in request.prompt:
            lines = [line for line in prompt.splitlines() if line.strip()] or [""]
            speakers = [(HUMAN, MODEL)[(len(lines) - 1 - place) % 2] for place in range(len(lines))]
            said = [Utterance(*pair) for pair in zip(speakers, map(one_line, lines), strict=True)]
            jobs.append(self._job(said, request))
        return jobs

    def inspect_job(self, request: InspectRequest) -> Job:
        """A job for the distributions at every word of one reply, and the candidates of the beam."""
        job = self.chat_job(request)
        inspected = partial(self._inspected, choice=request.choice, top=request.top)
        return Job(object(), inspected, job.body)

    def _job(self, said: Sequence[Utterance], request: ChatRequest | CompletionRequest) -> Job:
        usual, data = self.model.config.decode, self.model.config.data
        room = data.max_response - FRAME if self.model.config.model.trunk else MAX_TOKENS
        decode = decoding(request, usual, min(room, MAX_TOKENS))
        require_short_phrases(decode, usual, self.model.codec)
        example = next_example(said, MODEL, self.model.config.data.context)
        # A seed is of one request, so requests with different seeds are decoded together.
        group = (id(self), decode.model_copy(update={"seed": 0}))
        wish = _Wish(example, decode, request.n, request.stop, request.listed)
        rows = decode.beam if decode.method == "beam" else decode.searched
        return Job(group, self._answers, wish, rows)

    def _answers(self, jobs: Sequence[Job], check: Check) -> list[Answer]:
        wishes: list[_Wish] = [job.body for job in jobs]
        found = self.model.respond(
            [wish.example for wish in wishes],
            wishes[0].decode,
            batch_size=len(wishes),
            seeds=[wish.decode.seed for wish in wishes],
            check=check,
        )
        return [self._answer(wish, best, check) for wish, best in zip(wishes, found, strict=True)]

    def _answer(self, wish: _Wish, found: Sequence[Hypothesis], check: Check) -> Answer:
        choices = [self._choice(wish, one, check).until(wish.stops) for one in found[: wish.count]]
        item = self.model.example_encoder().item(wish.example)
        return Answer(tuple(choices) or (Choice((), finished=True),), sum(map(len, item.context)))

    def _choice(self, wish: _Wish, found: Hypothesis, check: Check) -> Choice:
        check()
        codec = self.model.codec
        texts = pieces(codec, found.tokens)
        names = [sanitize(name) for name in codec.vocabulary.words(found.tokens)]
        if wish.listed is None:
            tokens = [Token(name, text) for name, text in zip(names, texts, strict=True)]
        else:
            steps = self.model.token_probabilities(wish.example, found.tokens, max(wish.listed, 1), check)
            tokens = [
                Token(name, text, log(step.prob), _top(step, wish.listed))
                for name, text, step in zip(names, texts, steps, strict=False)  # steps have </s>, too
            ]
        return Choice(tuple(tokens), found.finished)

    def _inspected(self, jobs: Sequence[Job], check: Check, *, choice: int, top: int) -> list[dict[str, Any]]:
        (wish,) = (job.body for job in jobs)
        (found,) = self.model.respond([wish.example], wish.decode, seeds=[wish.decode.seed], check=check)
        if choice >= len(found):
            raise wrong_value("choice", f"the search found {len(found)} replies, counted from 0")
        best = found[choice]
        beam = self.model.weighed(wish.example, wish.decode, check) if wish.decode.method == "beam" else []
        steps = self.model.token_probabilities(wish.example, best.tokens, top, check)
        texts = [*pieces(self.model.codec, best.tokens), *([""] if best.finished else [])]
        weighed = chain(beam, repeat([]))
        return [
            {
                "object": "chat.inspection",
                "choice": choice,
                "replies": [self._reply(one) for one in found],
                "steps": [self._step(*row, check) for row in zip(texts, steps, weighed, strict=False)],
            }
        ]

    def _reply(self, found: Hypothesis) -> dict[str, Any]:
        text = spoken(self.model.codec, found.tokens)
        return {
            "text": text, "score": found.score, "log_prob": found.log_prob, "finished": found.finished
        }  # fmt: skip

    def _step(
        self, text: str, step: StepProbabilities, beam: Sequence[Candidate], check: Check
    ) -> dict[str, Any]:
        check()
        top = [
            {"token": sanitize(token), "probability": probability, "shares": shares}
            for token, probability, shares in step.top
        ]
        candidates = [
            {"text": spoken(self.model.codec, one.tokens), "log_prob": one.log_prob, "fate": one.fate}
            for one in beam
        ]
        return {
            "token": sanitize(step.token), "text": text, "probability": step.prob, "shares": step.shares,
            "prior": step.prior, "top": top, "beam": candidates,
        }  # fmt: skip


def pieces(codec: Codec, tokens: Sequence[int]) -> list[str]:
    """The text that each token appends to :func:`~dialog.chat.conversation.spoken`; joined, they are it.

    The tokens before it decide how a token is written. A few are enough for all tokenizers of words, so the
    others are decoded only where these do not fit the text.
    """
    text, shown, found = spoken(codec, tokens), 0, list[str]()
    for end in range(1, len(tokens) + 1):
        near = tokens[max(0, end - _NEAR) : end]
        before, said = spoken(codec, near[:-1]), spoken(codec, near)
        added = said.removeprefix(before)
        if end == len(tokens) or not said.startswith(before) or not text.startswith(added, shown):
            whole = spoken(codec, tokens[:end])
            added = whole[shown:] if text.startswith(whole) else ""
        found.append(added)
        shown += len(added)
    return found


def log(probability: float) -> float:
    """The logarithm of a probability in nats; -inf of 0."""
    return math.log(probability) if probability > 0 else -math.inf


def _top(step: StepProbabilities, count: int) -> tuple[tuple[str, float], ...]:
    return tuple((sanitize(token), log(prob)) for token, prob, _ in step.top[:count])
