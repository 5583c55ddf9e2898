"""Examples from dialogs, and batches of examples as tensors.

Following Zhao et al. (2017), every dialog begins with the pseudo-utterance ``<d>``, and every utterance
except the last is a response to at most ``context`` earlier ones. Their loader groups dialogs of equal length
and drops incomplete groups. Ours keeps every example.

U distinct utterances of a batch · R responses · S context utterances · L tokens of an utterance · T tokens
of a response.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise

import numpy as np
import torch
from torch import Tensor

from dialog.prompts import Prompts
from dialog.utterance import Dialog, Utterance
from lm.text.tokenizers import DIALOG
from lm.text.vocabulary import Codec

START = Utterance(speaker="", text=DIALOG)  # the pseudo-utterance, without a speaker


@dataclass(frozen=True, slots=True)
class Example:
    """A response and its context. ``dialog`` and ``turn`` count from 0 in the corpus."""

    dialog: int
    turn: int
    context: tuple[Utterance, ...]
    responder: str
    response: Utterance


def list_examples(
    dialogs: Sequence[Dialog], context: int = 9, last: bool = False, backward: bool = False
) -> list[Example]:
    """List the examples of dialogs in order: one per utterance, except the last ones unless ``last``.

    ``backward`` reads every dialog from its end, so that an utterance is predicted from those after it.
    """
    examples = []
    for number, dialog in enumerate(dialogs):
        utterances = dialog.utterances[::-1] if backward else dialog.utterances
        history = (START, *utterances)
        for turn, response in enumerate(utterances if last else utterances[:-1]):
            heard = history[max(0, turn + 1 - context) : turn + 1]
            examples.append(Example(number, turn, heard, response.speaker, response))
    return examples


def next_example(said: Sequence[Utterance], responder: str, context: int = 9) -> Example:
    """Example of ``list_examples`` for the next utterance of ``responder``, with an empty response."""
    return Example(0, len(said), (START, *said)[-context:], responder, Utterance(responder, ""))


def backward_example(example: Example, response: str) -> Example | None:
    """Example of a backward model: the last utterance of the context, from ``response`` after it.

    None if nothing was said before.
    """
    last = example.context[-1]
    if last == START:
        return None
    return Example(0, 1, (Utterance(example.responder, response),), last.speaker, last)


@dataclass(frozen=True, slots=True)
class Item:
    """An example in token ids with ``<s>`` and ``</s>``. ``floors`` is 1 for the responder's utterances."""

    context: tuple[tuple[int, ...], ...]
    floors: tuple[int, ...]
    response: tuple[int, ...]
    cut: int = 0  # tokens cut from the response


class ExampleEncoder:
    """Converts examples to token ids with a codec, and caches utterances.

    With a chat template, the context is one utterance: the prompt without its last token. The response begins
    with that token.

    Args:
        max_tokens: maximum tokens of a context utterance, including ``<s>`` and ``</s>``.
        max_response: maximum tokens of a response, likewise; 0 = no limit.
        context: maximum number of utterances of a context, by which prompts are cut.
    """

    def __init__(self, codec: Codec, max_tokens: int, max_response: int = 0, context: int = 9) -> None:
        self.codec, self.max_tokens, self.max_response = codec, max_tokens, max_response
        self._prompts = Prompts(codec, max_tokens, context * max_tokens) if codec.chat else None
        self._words: dict[str, tuple[int, ...]] = {}
        self._seen: dict[tuple[str, int], tuple[int, ...]] = {}

    def utterance(self, utterance: Utterance) -> tuple[int, ...]:
        """Ids of ``<s>`` … ``</s>``, cut at the end to ``max_tokens``."""
        return self._marked(utterance.text, self.max_tokens)

    def item(self, example: Example) -> Item:
        """Convert an example to token ids."""
        text, responder = self._response(example.response.text), example.responder
        response = self._marked(text, self.max_response or len(self._encoded(text)) + 2)
        if self._prompts is None:
            context = tuple(self.utterance(u) for u in example.context)
            floors = tuple(int(u.speaker == responder) for u in example.context)
        else:
            context, floors = (self._prompts.ids(example.context, responder)[:-1],), (0,)
        return Item(
            context=context,
            floors=floors,
            response=response,
            cut=len(self._encoded(text)) + 2 - len(response),
        )

    def _response(self, text: str) -> str:
        """Text of a response with the blanks that a chat template puts around it."""
        return text if self.codec.chat is None else text.join((self.codec.chat.before, self.codec.chat.after))

    def _encoded(self, text: str) -> tuple[int, ...]:
        ids = self._words.get(text)
        if ids is None:
            ids = self._words[text] = tuple(self.codec.encode(text))
        return ids

    def _marked(self, text: str, most: int) -> tuple[int, ...]:
        """First ``most`` tokens of a text, including ``<s>`` and ``</s>``. Equal tuples are stored once."""
        vocabulary, words = self.codec.vocabulary, self._encoded(text)[: most - 2]
        key = (text, len(words))
        if key not in self._seen:
            self._seen[key] = (self.codec.response_start, *words, vocabulary.eos)
        return self._seen[key]


@dataclass(frozen=True)
class Batch:
    """Items as tensors. Equal utterances are stored, and therefore encoded, once."""

    utterances: Tensor  # (U, L) padded token ids
    utterance_lengths: Tensor  # (U,) on the CPU
    context: Tensor  # (R, S) rows of ``utterances``, padded at the end with 0
    context_lengths: Tensor  # (R,) on the CPU
    floors: Tensor  # (R, S)
    inputs: Tensor  # (R, T) responses from <s> on
    targets: Tensor  # (R, T) responses up to </s>
    lengths: Tensor  # (R,) on the CPU, longest first
    order: Tensor  # (R,) index of each row's item

    def to(self, device: torch.device) -> "Batch":
        """Move the batch to a device, except the lengths, which packing needs on the CPU."""
        if device.type == "cpu":
            return self
        names = ("utterances", "context", "floors", "inputs", "targets", "order")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def collate(items: Sequence[Item], pad: int) -> Batch:
    """Batch items. Rows are ordered by response length, so that packing need not sort."""
    rows = sorted(range(len(items)), key=lambda row: -len(items[row].response))
    known: dict[tuple[int, ...], int] = {}
    context = [[known.setdefault(u, len(known)) for u in items[row].context] for row in rows]
    responses = [items[row].response for row in rows]
    return Batch(
        utterances=_pad(list(known), pad),
        utterance_lengths=torch.tensor([len(u) for u in known]),
        context=_pad(context, 0),
        context_lengths=torch.tensor([len(c) for c in context]),
        floors=_pad([items[row].floors for row in rows], 0),
        inputs=_pad([r[:-1] for r in responses], pad),
        targets=_pad([r[1:] for r in responses], pad),
        lengths=torch.tensor([len(r) - 1 for r in responses]),
        order=torch.tensor(rows),
    )


def _pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    table = np.full((len(rows), int(lengths.max())), value, dtype=np.int64)
    table[np.arange(table.shape[1]) < lengths[:, None]] = [token for row in rows for token in row]
    return torch.from_numpy(table)


def encode_examples(
    examples: Iterable[Example], codec: Codec, max_tokens: int, max_response: int = 0, context: int = 9
) -> list[Item]:
    """Convert examples to token ids, see :class:`ExampleEncoder`."""
    encoder = ExampleEncoder(codec, max_tokens, max_response, context)
    return [encoder.item(example) for example in examples]


def segments(examples: Sequence[Example], size: int) -> list[range]:
    """Split examples into runs of at most ``size`` neighbours of one dialog, 0 = whole dialogs.

    Returns ranges of indices. Neighbours share most of their context, so a batch of segments encodes each
    utterance once. Batches of single examples would encode it up to ``context`` times.
    """
    starts = [i for i, e in enumerate(examples) if i == 0 or e.dialog != examples[i - 1].dialog]
    runs = []
    for start, end in pairwise((*starts, len(examples))):
        step = size or end - start
        runs += [range(at, min(at + step, end)) for at in range(start, end, step)]
    return runs


def epoch_order(count: int, seed: int, epoch: int) -> list[int]:
    """Permutation that depends only on its arguments, so that training can resume at any position."""
    order: list[int] = np.random.default_rng([seed, epoch]).permutation(count).tolist()
    return order


def grouped(
    runs: Sequence[range], size: int, items: Sequence[Item], most: int, start: int = 0
) -> Iterator[list[int]]:
    """Yield the example indices of each batch, from batch number ``start`` on.

    A batch has ``size`` runs. If its padded responses exceed ``most`` tokens, it is divided. So memory
    depends on the longest single response, not on the sum.
    """
    return islice(_grouped(runs, size, items, most), start, None)


def _grouped(runs: Sequence[range], size: int, items: Sequence[Item], most: int) -> Iterator[list[int]]:
    for at in range(0, len(runs), size):
        piece, longest = list[int](), 0
        for index in chain.from_iterable(runs[at : at + size]):
            length = len(items[index].response)
            if piece and (len(piece) + 1) * max(longest, length) > most:
                yield piece
                piece, longest = [], 0
            piece.append(index)
            longest = max(longest, length)
        yield piece


def fingerprint(items: Iterable[Item]) -> str:
    """SHA-256 of items in token ids, which depends on text, speakers, order, dialogs and vocabulary."""
    digest = hashlib.sha256()
    for item in items:
        for row in (*item.context, item.floors, item.response):
            digest.update(np.asarray((len(row), *row), dtype=np.int64).tobytes())
    return digest.hexdigest()
