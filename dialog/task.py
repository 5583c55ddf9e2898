"""Training a dialog model: the task that the engine of :mod:`lm.engine.loop` runs."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dialog.batches import (
    Batch,
    Example,
    collate,
    encode_examples,
    epoch_order,
    fingerprint,
    grouped,
    list_examples,
    segments,
)
from dialog.config import DataConfig, DialogConfig
from dialog.corpora.corpus import Dialog
from dialog.seq2seq import Seq2Seq
from lm.engine.update import StepLoss
from lm.stop import Poll
from lm.text.vocabulary import UNK, Codec

SCORED_TOGETHER = 16  # segments in a batch where no gradient is wanted


class DialogTask:
    """Examples of a corpus, the model, and how they meet.

    A batch is ``train.batch_size`` segments, runs of neighbouring responses of a dialog, drawn from all
    over the corpus in an order that depends on the seed and the epoch alone.
    """

    def __init__(
        self,
        config: DialogConfig,
        codec: Codec,
        model: Seq2Seq,
        train: Sequence[Dialog],
        valid: Sequence[Dialog],
        device: torch.device,
    ) -> None:
        self.config, self.codec, self.device = config, codec, device
        self.model = model.to(device)
        self.train = encode_dialogs(train, codec, config)
        self.valid = encode_dialogs(valid, codec, config)

    @property
    def fingerprints(self) -> dict[str, str]:
        """What the model is trained and validated on, as hashes; a resumed run compares them."""
        return {"train_sha256": fingerprint(self.train.items), "valid_sha256": fingerprint(self.valid.items)}

    def epoch_length(self) -> int:
        """Batches in an epoch, where none is divided for its long responses."""
        return -(-len(self.train.runs) // self.config.train.batch_size)

    def epoch(self, number: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch from ``start`` on: a pure function of (seed, number, index)."""
        runs = self.train.runs
        order = [runs[i] for i in epoch_order(len(runs), self.config.train.seed, number)]
        for indices in self.train.grouped(order, self.config.train.batch_size, start):
            yield self.train.batch(indices, self.codec.vocabulary.pad).to(self.device)

    def loss(self, batch: Batch) -> StepLoss:
        """The summed loss of a batch."""
        objective, nll = self.model.objective(batch)
        return StepLoss(objective, nll.detach(), tokens=int(batch.lengths.sum()))

    def validate(self, poll: Poll) -> dict[str, float]:
        """Nats a token on the validation split, corpus-level: Σ nll / Σ tokens."""
        total, tokens = 0.0, 0
        for nll, lengths in score_items(self.model, self.valid, self.codec, self.device, poll):
            total += float(nll.sum())
            tokens += int(lengths.sum())
        return {"nll": total / tokens, "tokens": float(tokens)}

    def state(self) -> dict[str, Tensor]:
        """Nothing is carried from batch to batch."""
        return {}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Nothing to restore."""


class EncodedDialogs:
    """The examples of a corpus in token ids, and the segments that batches are made of."""

    def __init__(self, examples: Sequence[Example], codec: Codec, data: DataConfig) -> None:
        self.examples = examples
        self.items = encode_examples(examples, codec, data.max_tokens, data.max_response)
        self.runs = segments(examples, data.segment)
        self._padded = data.padded

    def grouped(self, runs: Sequence[range], size: int, start: int = 0) -> Iterator[list[int]]:
        """The batches of :func:`dialog.batches.grouped`, with no more tokens than ``describe`` reckons with.

        Only a single response may have more.
        """
        return grouped(runs, size, self.items, size * self._padded, start)

    def batch(self, indices: Sequence[int], pad: int) -> Batch:
        """The examples of these numbers as one batch."""
        return collate([self.items[i] for i in indices], pad)


def encode_dialogs(dialogs: Sequence[Dialog], codec: Codec, config: DialogConfig) -> EncodedDialogs:
    """All examples of the dialogs in token ids."""
    examples = list_examples(dialogs, config.data.context, config.data.last_response)
    return EncodedDialogs(examples, codec, config.data)


def score_items(
    model: Seq2Seq, data: EncodedDialogs, codec: Codec, device: torch.device, poll: Poll
) -> Iterator[tuple[Tensor, Tensor]]:
    """For batches of neighbouring examples, in order: nats (R,) and tokens (R,) of every response."""
    training = model.training
    model.eval()
    try:
        for indices in data.grouped(data.runs, SCORED_TOGETHER):
            poll()
            batch = data.batch(indices, codec.vocabulary.pad).to(device)
            lengths = torch.empty_like(batch.lengths).index_copy_(0, batch.order.cpu(), batch.lengths)
            with torch.no_grad():
                nll = model.nll(batch).cpu()
            yield nll, lengths
    finally:
        model.train(training)


def build_model(config: DialogConfig, codec: Codec) -> Seq2Seq:
    """A freshly initialised model for a vocabulary."""
    return Seq2Seq(config, len(codec.vocabulary), codec.vocabulary.ids([UNK])[0])
