"""Dynamic partitions of the vocabulary: Softmax-CPR (Chang et al. 2023, arXiv 2305.12289, § 3).

::

    every word                     logit of v = w_v · c_1 + b_v
    the words of the k_i highest   logit of v = w_v · r_i + b_v           except those of the k_(i−1) highest
    words of the source            logit of v = w_v · s + b_v + p · mean of L e_j over the places j of v

All contexts c_1, r_i, s and p are computed from the hidden state. A later line replaces the logits of an
earlier one. Ranks are those of the first line. Only the first line costs a product with the vocabulary. The
source is the text that is answered, and e_j is the encoder's state of its word j: the last term is a pointer.

N tokens · R sources · M distinct words of a source · P places · E context size · V words.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lm.errors import ConfigError
from lm.heads.loss_options import Output
from lm.heads.precision import precise

ABSENT = -1  # where there is no word


@dataclass(frozen=True)
class SourceWords:
    """The distinct words of R sources, the means of their keys, and the source of each token."""

    words: Tensor  # (R, M), ABSENT after the last of a source
    keys: Tensor  # (R, M, E), or (R, M, 0) without a pointer
    rows: Tensor  # (N,)

    def select(self, tokens: Tensor | slice) -> "SourceWords":
        """The same sources for some of the tokens, which may repeat."""
        return replace(self, rows=self.rows[tokens])

    @classmethod
    def of(cls, ids: Tensor, exists: Tensor, keys: Tensor) -> "SourceWords":
        """Distinct words of ids (R, P) where ``exists`` (R, P), in the order of their ids, for R tokens.

        keys: (R, P, E), of the places.
        """
        last = torch.iinfo(ids.dtype).max
        values, order = ids.masked_fill(~exists, last).sort(dim=1)
        numbers = F.pad(values[:, 1:] != values[:, :-1], (1, 0)).cumsum(1)  # (R, P) of the sorted words
        words = torch.full_like(ids[:, : int(numbers.max()) + 1], last).scatter(1, numbers, values)
        number = torch.empty_like(numbers).scatter(1, order, numbers)  # of the word of each place
        counts = torch.zeros_like(words).scatter_add(1, number, torch.ones_like(number))
        sums = keys.new_zeros(*words.shape, keys.shape[2]).scatter_add(
            1, number[..., None].expand_as(keys), keys
        )
        means = sums / counts.clamp(min=1)[..., None]
        return cls(words.masked_fill(words == last, ABSENT), means, torch.arange(len(ids), device=ids.device))


class SourceReader(nn.Module):
    """The part of a head that reads the words of a source.

    Args:
        word_size: size of the encoder's states of words, for a pointer; 0 = no pointer.
        size: E.
    """

    def __init__(self, word_size: int, size: int) -> None:
        super().__init__()
        self.keys = nn.Linear(word_size, size, bias=False) if word_size else None  # L

    def forward(self, ids: Tensor, exists: Tensor, states: Tensor, places: Tensor) -> SourceWords:
        """The words of sources.

        Args:
            ids, exists: (R, P) word ids, and where they are not padding.
            states: (Q, word_size) states of words.  places: (R, P) their rows.
        """
        keys = states[:, :0] if self.keys is None else self.keys(states)
        return SourceWords.of(ids, exists, precise(keys)[places])

    def logits(self, source: SourceWords | None, contexts: Tensor, output: Output) -> tuple[Tensor, Tensor]:
        """The words of each token's source, and their logits, both (N, M).

        contexts: (N, 1, E) s, or (N, 2, E) s and p.  Raises ValueError if there is no source.
        """
        if source is None:
            raise ValueError("a head that reads the source needs it beside the states, as Layers.source")
        vectors = F.embedding(source.words.clamp(min=0), output.weight)
        keys = torch.cat((vectors, source.keys.to(vectors.dtype)), 2)
        found = products_by_row(contexts.flatten(1), keys, source.rows)
        words = source.words[source.rows]
        if output.bias is not None:
            found = found + output.bias[words.clamp(min=0)]
        return words, found


def source_reader(kind: str, word_size: int, size: int) -> SourceReader | None:
    """The reader of ``head.source``, for an encoder's states of ``word_size``; 0 = the model has none.

    ConfigError if there is nothing to read.
    """
    if kind == "none":
        return None
    if not word_size:
        raise ConfigError(
            f'head.source = "{kind}": a language model or pretrained trunk has no source; set head.source ='
            ' "none"'
        )
    return SourceReader(word_size if kind == "pointer" else 0, size)


def products_by_row(queries: Tensor, keys: Tensor, rows: Tensor) -> Tensor:
    """Products (N, M) of each query (N, E) with the keys (R, M, E) of its row (N,)."""
    order = rows.argsort(stable=True)
    counts = rows.bincount(minlength=len(keys))
    padded = pad_sequence(queries[order].split(counts.tolist()), batch_first=True)  # (R, T, E)
    inside = torch.arange(padded.shape[1], device=rows.device) < counts[:, None]
    return (padded @ keys.mT)[inside][order.argsort()]


def reranked(logits: Tensor, contexts: Tensor, output: Output, candidates: Sequence[int]) -> Tensor:
    """Logits (n, V) with those of the highest words replaced.

    Args:
        contexts: (n, I, E) r_i.
        candidates: k_i, increasing.
    """
    if not candidates:
        return logits
    ranked = logits.detach().topk(candidates[-1]).indices  # (n, k)
    vectors = F.embedding(ranked, output.weight)  # (n, k, E)
    starts = (0, *candidates)
    values = torch.cat(
        [
            (vectors[:, start:end] @ context[..., None])[..., 0]
            for start, end, context in zip(starts, candidates, contexts.unbind(1), strict=False)
        ],
        1,
    )
    if output.bias is not None:
        values = values + output.bias[ranked]
    return logits.scatter(1, ranked, values)


def replaced(logits: Tensor, words: Tensor, values: Tensor) -> Tensor:
    """Logits (n, V) with those of some distinct words (n, M) replaced by ``values``, except ABSENT ones."""
    if not words.shape[1]:
        return logits
    places = words.masked_fill(words == ABSENT, logits.shape[1])
    return F.pad(logits, (0, 1)).scatter(1, places, values)[:, :-1]
