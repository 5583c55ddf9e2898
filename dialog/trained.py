"""Trained dialog models, opened from a finished or unfinished run: scoring, decoding, inspection."""

import hashlib
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from dialog.batches import Example, ExampleEncoder, Item, backward_example, collate
from dialog.config import DialogConfig
from dialog.decoding.beam import beam_search
from dialog.decoding.config import DecodeConfig
from dialog.decoding.sampling import sample
from dialog.decoding.selection import best_by, expected_similarities, search_of, similarity_of
from dialog.decoding.steps import Hypothesis, Marks, StepFunction
from dialog.decoding.trace import BeamTrace, Candidate
from dialog.decoding.words import texts_of
from dialog.ensemble import Ensemble
from dialog.seq2seq import Seq2Seq
from dialog.task import EncodedDialogs, build_model, encode_dialogs, score_batches, score_items
from dialog.utterance import Dialog
from lm.engine.device import device_here, flushed_denormals
from lm.engine.state import load_model_tensors
from lm.errors import ConfigError, visible
from lm.heads.states import Layers
from lm.huggingface.starting import local
from lm.parallel.group import ALONE, Group
from lm.parallel.slices import joined
from lm.runs.checkpoint import CheckpointStore
from lm.runs.evaluations import loaded
from lm.runs.inputs import opened_run
from lm.steps import Check, OnProgress, no_progress, unchecked
from lm.text.tokenizers import BOS, DIALOG, PAD
from lm.text.vocabulary import Codec

CONTEXTS_TOGETHER = 64  # utterances of contexts that are scored together
NEVER_SAID = (PAD, BOS, DIALOG)  # tokens forbidden in responses; <unk> is allowed


@dataclass(frozen=True, slots=True)
class TargetScore:
    """Score of the true response of an example: nats and tokens, including ``</s>``.

    ``cut`` further tokens, beyond ``data.max_response``, were not scored.
    """

    dialog: int
    turn: int
    nll: float
    tokens: int
    cut: int = 0


@dataclass(frozen=True, slots=True)
class StepProbabilities:
    """Predictions of the model at the step that produced ``token``.

    ``prior`` is π of the step. Each entry of ``top`` is a word, its probability, and the share π_k·p_k of
    each component, one component for heads that do not mix probabilities. ``shares`` are those of ``token``.
    """

    token: str
    prob: float
    top: tuple[tuple[str, float, tuple[float, ...]], ...]
    prior: tuple[float, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True)
class TrainedModel:
    """A model with the codec and config of its run."""

    config: DialogConfig
    codec: Codec
    model: Seq2Seq | Ensemble
    device: torch.device
    group: Group = ALONE  # whose processes share the contexts of ``nll`` and ``respond``

    @classmethod
    def load(cls, run: Path, checkpoint: str = "best", device: torch.device | None = None) -> Self:
        """Open a run at a checkpoint: ``best``, ``last``, ``average-best`` (of the k best) or ``step-N``.

        Without ``device``, it is ``train.device`` of the run, or the CPU if CUDA is missing. StorageError if
        the folder is not a dialog run, or its checkpoint is missing, corrupt or foreign.
        """
        config, codec = opened_run(run, DialogConfig)
        config = local(config, run)
        model = build_model(config, codec)
        weights = CheckpointStore.of(run).weights(checkpoint)
        load_model_tensors(model, weights)
        device = device or device_here(config.train)
        return cls(config, codec, model.to(device).eval(), device)

    @classmethod
    def ensemble_of(cls, members: Sequence[Self], names: Sequence[object]) -> Self:
        """The ensemble of models, or the only one, with the config of the first.

        ``names`` are for messages. ConfigError if vocabularies or the encoding of examples differ.
        """
        first = members[0]
        if len(members) == 1:
            return first
        models = []
        for member, name in zip(members, names, strict=True):
            own = list(_members(member.model))
            # a copy, as a server also answers by the model itself
            models += own if member.device == first.device else [deepcopy(m).to(first.device) for m in own]
            if member.codec.fingerprint != first.codec.fingerprint:
                raise ConfigError(
                    f"{name}: has another vocabulary than {names[0]}; an ensemble needs runs of one training"
                    " corpus, tokenizer and vocabulary size"
                )
            for key in ("context", "max_tokens", "max_response", "last_response", "direction"):
                if (own := getattr(member.config.data, key)) != (its := getattr(first.config.data, key)):
                    raise ConfigError(
                        f"{name}: has data.{key} = {own}, but {names[0]} has {its}; an ensemble needs runs"
                        " that read the same examples"
                    )
        return replace(first, model=Ensemble(models).eval())

    def nll(self, dialogs: Sequence[Dialog]) -> list[TargetScore]:
        """Score every true response, in the order of ``list_examples``."""
        data = encode_dialogs(dialogs, self.codec, self.config)

        def scores(own: range) -> Iterator[list[float]]:
            for nll, tokens in score_items(self.model, data, self.device, own):
                yield from map(list, zip(nll.tolist(), tokens.tolist(), strict=True))

        pairs = joined(self.group, len(score_batches(data)), scores)
        return [
            TargetScore(example.dialog, example.turn, nll, int(tokens), item.cut)
            for example, item, (nll, tokens) in zip(data.examples, data.items, pairs, strict=True)
        ]

    @property
    def first(self) -> Seq2Seq:
        """The model, or the first one of an ensemble."""
        return _members(self.model)[0]

    def readings(self, data: EncodedDialogs) -> Iterator[tuple[Layers, Tensor]]:
        """Yield hidden states (n, ·) and targets (n,), batch by batch; of an ensemble by the first model."""
        for indices in score_batches(data):
            batch = data.batch(indices).to(self.device)
            with torch.no_grad():
                hidden, targets, _ = self.first.hidden(batch)
            yield hidden, targets

    def require(self, decode: DecodeConfig) -> None:
        """Raise the errors of a decoding that depend on no context, before any work."""
        texts_of(decode, self.codec, self.marks, ())
        if decode.select == "mmi":
            backward_run(Path(decode.mmi_run))

    @flushed_denormals()
    @torch.no_grad()
    def respond(
        self,
        examples: Sequence[Example],
        decode: DecodeConfig,
        batch_size: int = 16,
        progress: OnProgress = no_progress,
        seeds: Sequence[int] | None = None,
        check: Check = unchecked,
    ) -> list[list[Hypothesis]]:
        """Decode the n best responses to every example's context, best first.

        The batch size changes scores by no more than the rounding of float32 products, except where that
        changes the ranks of words in a cpr head.
        ``progress`` is called after every batch.

        Contexts of similar length are decoded together. A sampled response depends only on the seed and the
        context, not on the rest of the batch. ``seeds``, one an example, replace ``decode.seed``. ``check``
        is called at every step, and may raise to end the work.
        """
        encoder = self.example_encoder()  # examples of a dialog share utterances
        items = [encoder.item(example) for example in examples]
        order = sorted(range(len(items)), key=lambda i: sum(map(len, items[i].context)))
        batches = [order[at : at + batch_size] for at in range(0, len(order), batch_size)]
        seeds = seeds or [decode.seed] * len(items)

        def decoded(own: range) -> Iterator[list[Any]]:
            mine, done = batches[own.start : own.stop], 0
            for chosen in mine:
                hypotheses = self._decode(
                    [items[i] for i in chosen], search_of(decode), [seeds[i] for i in chosen], check
                )
                check()
                if decode.select != "score":
                    hypotheses = self._selected([examples[i] for i in chosen], hypotheses, decode, check)
                yield from ([astuple(h) for h in best] for best in hypotheses)
                done += len(chosen)
                progress(done, sum(map(len, mine)))

        answers = dict(zip(chain(*batches), joined(self.group, len(batches), decoded), strict=True))
        return [
            [Hypothesis(tuple(tokens), *rest) for tokens, *rest in answers[index]]
            for index in range(len(items))
        ]

    def _selected(
        self,
        examples: Sequence[Example],
        found: Sequence[Sequence[Hypothesis]],
        decode: DecodeConfig,
        check: Check,
    ) -> list[list[Hypothesis]]:
        """The responses that ``decode.select`` chooses among candidates."""
        texts = [[self.codec.decode(one.tokens) for one in group] for group in found]
        if decode.select == "mbr":
            similarity = similarity_of(decode.mbr_metric)
            scores = [expected_similarities(group, similarity, check) for group in texts]
        else:
            nll = backward_run(Path(decode.mmi_run)).context_nll(examples, texts, check)
            scores = [
                [one.score - decode.mmi_weight * other for one, other in zip(group, nats, strict=True)]
                for group, nats in zip(found, nll, strict=True)
            ]
        return [best_by(*group, decode.nbest) for group in zip(found, scores, strict=True)]

    @torch.no_grad()
    def context_nll(
        self, examples: Sequence[Example], responses: Sequence[Sequence[str]], check: Check = unchecked
    ) -> list[list[float]]:
        """−log P(last utterance | response) in nats by a backward model, for several responses a context.

        Li et al. (2016), MMI-bidi. 0 where nothing was said before. ``check`` is called before every batch,
        and may raise to end the work.
        """
        encoder = self.example_encoder(self.config.data.max_response)
        pairs = [
            (example, text) for example, texts in zip(examples, responses, strict=True) for text in texts
        ]
        asked = [
            (place, encoder.item(one))
            for place, (example, text) in enumerate(pairs)
            if (one := backward_example(example, text)) is not None
        ]
        nll = [0.0] * len(pairs)
        for at in range(0, len(asked), CONTEXTS_TOGETHER):
            check()
            part = asked[at : at + CONTEXTS_TOGETHER]
            batch = collate([item for _, item in part], self.codec.vocabulary.pad).to(self.device)
            for (place, _), nats in zip(part, self.model.nll(batch).tolist(), strict=True):
                nll[place] = nats
        each = iter(nll)
        return [[next(each) for _ in texts] for texts in responses]

    def weighed(
        self, example: Example, decode: DecodeConfig, check: Check = unchecked
    ) -> list[list[Candidate]]:
        """Continuations that beam search weighed at every step for one example, the most probable first.

        ``check`` is called at every step, and may raise to end the work.
        """
        trace = BeamTrace()
        self._decode([self.example_encoder().item(example)], search_of(decode), [decode.seed], check, trace)
        return trace.steps

    @torch.no_grad()
    def token_probabilities(
        self, example: Example, tokens: Sequence[int], top: int = 5, check: Check = unchecked
    ) -> list[StepProbabilities]:
        """Predictions at every token of a response and its ``</s>``, with the shares of the components.

        ``check`` is called at every step, and may raise to end the work.
        """
        vocabulary = self.codec.vocabulary
        said = [*tokens, vocabulary.eos]
        state = self._start([self.example_encoder().item(example)])
        before = self.codec.response_start
        steps = []
        for token in said:
            check()
            log_probs, state = self.model.component_step(torch.tensor([before], device=self.device), state)
            joint = log_probs[0].double().exp()  # (K, V) π_k·p_k
            mixed = joint.sum(0)
            best = mixed.topk(min(top, len(vocabulary))).indices.tolist()
            rows = tuple((vocabulary.tokens[v], float(mixed[v]), tuple(joint[:, v].tolist())) for v in best)
            prior = tuple(joint.sum(1).tolist())
            shares = tuple(joint[:, token].tolist())
            steps.append(
                StepProbabilities(vocabulary.tokens[token], float(mixed[token]), rows, prior, shares)
            )
            before = token
        return steps

    def example_encoder(self, max_response: int = 0) -> ExampleEncoder:
        """Converter of examples to token ids; the maximum tokens of a response are 0 for no limit."""
        data = self.config.data
        return ExampleEncoder(self.codec, data.max_tokens, max_response, data.context)

    def _start(self, items: Sequence[Item]) -> Any:
        return self.model.start(collate(items, self.codec.vocabulary.pad).to(self.device))

    @property
    def marks(self) -> Marks:
        """Start and end of a response, and the tokens that none contains."""
        vocabulary = self.codec.vocabulary
        forbidden = [index for index in vocabulary.ids(NEVER_SAID) if index != vocabulary.unk]
        return Marks(self.codec.response_start, vocabulary.eos, forbidden)

    @torch.no_grad()
    def _decode(
        self,
        items: Sequence[Item],
        decode: DecodeConfig,
        seeds: Sequence[int],
        check: Check = unchecked,
        trace: BeamTrace | None = None,
    ) -> list[list[Hypothesis]]:
        marks, state = self.marks, self._start(items)
        components = decode.method == "sample" and decode.temperature_on == "components"
        model_step: StepFunction[Any] = self.model.stepper(
            decode.temperature if components else 1.0, decode.products == "bfloat16"
        )

        def step(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
            check()
            return model_step(tokens, state)

        texts = texts_of(decode, self.codec, marks, [item.context for item in items])
        if decode.method == "beam":
            return beam_search(step, state, len(items), decode, marks, texts, trace)
        own = [_seed(item, seed) for item, seed in zip(items, seeds, strict=True)]
        return sample(step, state, len(items), decode, marks, own, texts)


def backward_run(run: Path) -> TrainedModel:
    """The model of a backward run, opened once. Raises ConfigError for a forward run, and StorageError."""
    return _backward_run(run, CheckpointStore.of(run).fingerprint("best"))


@lru_cache(maxsize=2)  # of the two runs of a comparison
def _backward_run(run: Path, weights: str | None) -> TrainedModel:
    model = TrainedModel.load(run)
    if model.config.data.direction != "backward":
        raise ConfigError(
            f"decode.mmi_run {visible(run)}: trained forward; train one with data.direction = backward"
        )
    if (context := model.config.data.context) != 1:
        raise ConfigError(
            f"decode.mmi_run {visible(run)}: trained with data.context = {context}, so that a response is the"
            " end of a dialog to it; train it anew with data.context = 1"
        )
    return model


def _members(model: Seq2Seq | Ensemble) -> Sequence[Seq2Seq]:
    return [model] if isinstance(model, Seq2Seq) else model.models


def _seed(item: Item, seed: int) -> int:
    digest = hashlib.sha256(np.int64(seed).tobytes())
    for utterance, floor in zip(item.context, item.floors, strict=True):
        digest.update(np.asarray((floor, *utterance), dtype=np.int64).tobytes())
    return int.from_bytes(digest.digest()[:7], "little")


def open_models(runs: Sequence[Path], checkpoint: str) -> tuple[TrainedModel, list[str | None]]:
    """The model of a run, or the ensemble of several, and the fingerprint of the weights of each.

    Raises the errors of :meth:`TrainedModel.load` and :meth:`TrainedModel.ensemble_of`.
    """
    members = [loaded(run, checkpoint, TrainedModel.load) for run in runs]
    joined = TrainedModel.ensemble_of([model for model, _ in members], [visible(run) for run in runs])
    return joined, [weights for _, weights in members]


def require_forward(model: TrainedModel, run: Path) -> None:
    """Raise ConfigError for a model that says the utterances before a response."""
    if model.config.data.direction == "backward":
        raise ConfigError(f"{visible(run)}: a backward run, for decode.mmi_run; chat with a forward run")
