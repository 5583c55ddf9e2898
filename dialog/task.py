"""Training task of a dialog model for :mod:`lm.engine.loop`, and scoring of encoded dialogs."""

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
from dialog.ensemble import Ensemble
from dialog.seq2seq import Seq2Seq
from dialog.utterance import Dialog
from lm.engine.update import StepLoss
from lm.parallel.shards import slice_of
from lm.text.tokenizers import UNK
from lm.text.vocabulary import Codec

SCORED_TOGETHER = 16  # segments in a batch without gradients


class DialogTask:
    """Training task: batches of a corpus, loss and validation of a model.

    A batch has ``train.batch_size`` segments, which are runs of neighbouring responses of a dialog. They are
    drawn from the whole corpus, in an order that depends only on the seed and the epoch.
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
        self.config, self.device = config, device
        self.model = model.to(device)
        self.train = encode_dialogs(train, codec, config)
        self.valid = encode_dialogs(valid, codec, config)

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of the training and validation data, which a resumed run compares."""
        return {"train_sha256": fingerprint(self.train.items), "valid_sha256": fingerprint(self.valid.items)}

    def epoch_length(self) -> int:
        """Number of batches in an epoch, before long ones are divided."""
        return -(-len(self.train.runs) // self.config.train.batch_size)

    def epoch(self, number: int, start: int) -> Iterator[list[int]]:
        """Examples of the batches of an epoch from ``start`` on: a pure function of (seed, number, index)."""
        runs = self.train.runs
        order = [runs[i] for i in epoch_order(len(runs), self.config.train.seed, number)]
        yield from self.train.grouped(order, self.config.train.batch_size, start)

    def shard(self, batch: list[int], index: int, count: int) -> list[int] | None:
        """Neighbouring examples of a batch."""
        return batch[slice_of(len(batch), index, count)] or None

    def loss(self, examples: list[int]) -> StepLoss:
        """Summed loss of examples of the training split."""
        batch = self.train.batch(examples).to(self.device)
        objective, nll = self.model.objective(batch)
        return StepLoss(objective, nll.detach(), tokens=int(batch.lengths.sum()))

    def skipped(self, batches: Sequence[list[int]]) -> None:
        """Does nothing, since there is no state."""

    def validation(self) -> Iterator[tuple[float, int]]:
        """Σ nll in nats, and tokens, of batches of the validation split."""
        for nll, lengths in score_items(self.model, self.valid, self.device):
            yield float(nll.sum()), int(lengths.sum())

    def state(self) -> dict[str, Tensor]:
        """Empty: no state is carried between batches."""
        return {}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Does nothing, since there is no state."""


class EncodedDialogs:
    """Examples of a corpus in token ids, and the segments from which batches are made."""

    def __init__(self, examples: Sequence[Example], codec: Codec, data: DataConfig) -> None:
        self.examples = examples
        self.items = encode_examples(examples, codec, data.max_tokens, data.max_response, data.context)
        self.runs = segments(examples, data.segment)
        self._padded, self._pad = data.padded, codec.vocabulary.pad

    def grouped(self, runs: Sequence[range], size: int, start: int = 0) -> Iterator[list[int]]:
        """Batches of :func:`dialog.batches.grouped`, with at most the tokens that ``describe`` assumes.

        Only a single longer response may exceed them.
        """
        return grouped(runs, size, self.items, size * self._padded, start)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Batch the examples of the given indices."""
        return collate([self.items[i] for i in indices], self._pad)


def encode_dialogs(dialogs: Sequence[Dialog], codec: Codec, config: DialogConfig) -> EncodedDialogs:
    """Convert all examples of the dialogs to token ids."""
    data = config.data
    examples = list_examples(dialogs, data.context, data.last_response, data.direction == "backward")
    return EncodedDialogs(examples, codec, data)


def score_batches(data: EncodedDialogs) -> list[list[int]]:
    """Numbers of the examples of each batch of neighbouring examples, for scoring."""
    return [*data.grouped(data.runs, SCORED_TOGETHER)]


def score_items(
    model: Seq2Seq | Ensemble,
    data: EncodedDialogs,
    device: torch.device,
    only: range | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield nats (R,) and tokens (R,) of the responses of each of :func:`score_batches`, in order.

    ``only`` restricts them to a range of the batches.
    """
    training = model.training
    model.eval()
    try:
        batches = score_batches(data)
        for indices in batches if only is None else batches[only.start : only.stop]:
            batch = data.batch(indices).to(device)
            lengths = torch.empty_like(batch.lengths).index_copy_(0, batch.order.cpu(), batch.lengths)
            with torch.no_grad():
                nll = model.nll(batch).cpu()
            yield nll, lengths
    finally:
        model.train(training)


def build_model(config: DialogConfig, codec: Codec) -> Seq2Seq:
    """Build an untrained model for the vocabulary of a codec."""
    return Seq2Seq(config, len(codec.vocabulary), codec.vocabulary.ids([UNK])[0])
