"""Trained dialog models, opened from a finished or unfinished run: scoring, decoding, inspection."""

import hashlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from dialog.batches import Encoder, Example, Item, collate
from dialog.beam import Hypothesis, Marks, beam_search
from dialog.config import DecodeConfig, DialogConfig
from dialog.corpora.corpus import Dialog
from dialog.decoder import DecoderState
from dialog.sampling import sample
from dialog.seq2seq import Seq2Seq
from dialog.task import build_model, encode_dialogs, score_items
from lm.engine.device import device_here
from lm.engine.state import load_model_tensors
from lm.parallel.group import ALONE, Group
from lm.parallel.shards import slice_of
from lm.runs.checkpoint import CheckpointStore
from lm.runs.inputs import opened_run
from lm.steps import OnProgress, no_progress
from lm.text.vocabulary import BOS, DIALOG, PAD, Codec

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

    ``prior`` is π of the step. Each entry of ``top`` is a word, its probability, and the part π_k·p_k of each
    component, one component for heads that do not mix probabilities.
    """

    token: str
    prob: float
    top: tuple[tuple[str, float, tuple[float, ...]], ...]
    prior: tuple[float, ...]


@dataclass(frozen=True)
class TrainedModel:
    """A model with the codec and config of its run."""

    config: DialogConfig
    codec: Codec
    model: Seq2Seq
    device: torch.device
    group: Group = ALONE  # whose processes share the contexts of ``nll`` and ``respond``

    @classmethod
    def load(cls, run: Path, checkpoint: str = "best", device: torch.device | None = None) -> Self:
        """Open a run folder.

        Args:
            run: folder of the training run.
            checkpoint: ``best``, ``last``, ``average`` (of the k best) or ``step-N``.
            device: device of the model; None = ``train.device`` of the run, or the CPU if CUDA is missing.

        Raises:
            StorageError: the folder is not a dialog run, or its checkpoint is missing, corrupt or foreign.
        """
        config, codec = opened_run(run, DialogConfig)
        model = build_model(config, codec)
        weights = CheckpointStore(run / "checkpoints").weights(checkpoint)
        load_model_tensors(model, weights)
        device = device or device_here(config.train)
        return cls(config, codec, model.to(device).eval(), device)

    def nll(self, dialogs: Sequence[Dialog]) -> list[TargetScore]:
        """Score every true response, in the order of ``list_examples``."""
        data = encode_dialogs(dialogs, self.codec, self.config)
        part = self.group.rank, self.group.size
        own = [
            (float(nats), int(count))
            for nll, tokens in score_items(self.model, data, self.codec, self.device, part)
            for nats, count in zip(nll.tolist(), tokens.tolist(), strict=True)
        ]
        pairs = chain.from_iterable(self.group.gather(own))
        return [
            TargetScore(example.dialog, example.turn, nll, tokens, item.cut)
            for example, item, (nll, tokens) in zip(data.examples, data.items, pairs, strict=True)
        ]

    @torch.no_grad()
    def respond(
        self,
        examples: Sequence[Example],
        decode: DecodeConfig,
        batch_size: int = 16,
        progress: OnProgress = no_progress,
    ) -> list[list[Hypothesis]]:
        """Decode the n best responses to every example's context, best first.

        The batch size changes scores by no more than the rounding of float32 products.
        ``progress`` is called after every batch.

        Contexts of similar length are decoded together. A sampled response depends only on ``decode.seed``
        and the context, not on the rest of the batch.
        """
        items = [self._item(example) for example in examples]
        order = sorted(range(len(items)), key=lambda i: sum(map(len, items[i].context)))
        batches = [order[at : at + batch_size] for at in range(0, len(order), batch_size)]
        own = batches[slice_of(len(batches), self.group.rank, self.group.size)]
        found: list[tuple[int, list[Any]]] = []
        for chosen in own:
            hypotheses = self._decode([items[i] for i in chosen], decode)
            found += [(i, [astuple(h) for h in best]) for i, best in zip(chosen, hypotheses, strict=True)]
            progress(len(found), sum(map(len, own)))
        answers = dict(chain.from_iterable(self.group.gather(found)))
        return [
            [Hypothesis(tuple(tokens), *rest) for tokens, *rest in answers[index]]
            for index in range(len(items))
        ]

    @torch.no_grad()
    def token_probabilities(
        self, example: Example, tokens: Sequence[int], top: int = 5
    ) -> list[StepProbabilities]:
        """Predictions at every token of a response and its ``</s>``, with the parts of the components."""
        vocabulary = self.codec.vocabulary
        said = [*tokens, vocabulary.eos]
        state = self._start([self._item(example)])
        before = vocabulary.bos
        steps = []
        for token in said:
            words = self.model.embedding(torch.tensor([before], device=self.device))
            hidden, state = self.model.decoder.step(words, state)
            joint = self.model.head.component_log_probs(hidden)[0].double().exp()  # (K, V) π_k·p_k
            mixed = joint.sum(0)
            best = mixed.topk(min(top, len(vocabulary))).indices.tolist()
            rows = tuple((vocabulary.tokens[v], float(mixed[v]), tuple(joint[:, v].tolist())) for v in best)
            prior = tuple(joint.sum(1).tolist())
            steps.append(StepProbabilities(vocabulary.tokens[token], float(mixed[token]), rows, prior))
            before = token
        return steps

    def _item(self, example: Example) -> Item:
        return Encoder(self.codec, self.config.data.max_tokens).item(example)

    def _start(self, items: Sequence[Item]) -> DecoderState:
        return self.model.start(collate(items, self.codec.vocabulary.pad).to(self.device))

    def _decode(self, items: Sequence[Item], decode: DecodeConfig) -> list[list[Hypothesis]]:
        vocabulary = self.codec.vocabulary
        forbidden = [index for index in vocabulary.ids(NEVER_SAID) if index != vocabulary.unk]
        marks = Marks(vocabulary.bos, vocabulary.eos, forbidden)
        state = self._start(items)
        operand = self.model.head.output.rounded() if decode.products == "bfloat16" else None
        step = partial(self.model.step, operand=operand)
        if decode.method == "beam":
            return beam_search(step, state, len(items), decode, marks)
        temperature = decode.temperature if decode.temperature_on == "components" else 1.0
        step = partial(step, component_temperature=temperature)
        seeds = [_seed(item, decode.seed) for item in items]
        return sample(step, state, len(items), decode, marks, seeds)


def _seed(item: Item, seed: int) -> int:
    """Seed derived from the context and the user's seed."""
    digest = hashlib.sha256(np.int64(seed).tobytes())
    for utterance, floor in zip(item.context, item.floors, strict=True):
        digest.update(np.asarray((floor, *utterance), dtype=np.int64).tobytes())
    return int.from_bytes(digest.digest()[:7], "little")
