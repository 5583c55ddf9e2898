"""The first reading of a corpus: count its tokens, learn a tokenizer, build a vocabulary.

Memory grows with the number of distinct tokens, not with the length of the text.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lm.errors import ConfigError, DataError, require
from lm.language.corpora.pieces import Piece, TextLine
from lm.text.lines import InputLog
from lm.text.pretrained_tokenizer import PretrainedTokenizer
from lm.text.tokenizers import EOS_WORD, PLAIN, SentencePiece, StoredKind, Tokenizer, train_sentencepiece
from lm.text.vocabulary import Codec, Vocabulary, line_tokens

SAMPLE = 16 << 20  # characters (about as many bytes) of training text for sentencepiece


class TokenLine(NamedTuple):
    """A line as tokens; ``place`` is its FILE:LINE."""

    place: str
    line: TextLine
    tokens: list[str]


@dataclass(slots=True)
class SplitCounts:
    """Counts of one split; ``words`` includes line ends as ``<eos>``."""

    words: Counter[str] = field(default_factory=Counter)
    lines: int = 0
    characters: int = 0


def read_tokens(
    pieces: Iterable[Piece], tokenizer: Tokenizer, log: InputLog, *, blank_lines: bool = True
) -> Iterator[TokenLine]:
    """Yield the lines of a split as tokens, with or without blank ones.

    DataError, or entries of the log, for bad lines.
    """
    skip_blank = not blank_lines and tokenizer.kind != "byte"
    for piece in pieces:
        for line in piece.lines(log):
            if skip_blank and not line.text.strip():
                continue
            tokens = line_tokens(tokenizer, line.text)
            if EOS_WORD in tokens:
                remedy = f"remove {EOS_WORD}; every line end becomes one"
                reason = f"the text has {EOS_WORD}, the mark of line ends"
                log.bad(piece.name, line.number, reason, remedy, excerpt=line.text)
                continue
            yield TokenLine(f"{piece.name}:{line.number}", line, tokens)


def count_split(lines: Iterable[TokenLine]) -> SplitCounts:
    """Count a whole split."""
    counts = SplitCounts()
    for _, line, tokens in lines:
        counts.words.update(tokens)
        counts.characters += line.characters
        if line.ends:
            counts.words[EOS_WORD] += 1
            counts.lines += 1
    return counts


def learn_tokenizer(
    kind: StoredKind,
    train: Sequence[Piece],
    *,
    lowercase: bool,
    vocab_size: int,
    seed: int,
    log: InputLog,
    pretrained: Path | None = None,
) -> Tokenizer:
    """A tokenizer. Sentencepiece learns ``vocab_size`` − 2 pieces, besides ``<eos>`` and ``<unk>``.

    The tokenizer ``hf`` is that of the folder ``pretrained``, with its own vocabulary.
    """
    if pretrained is not None and kind == "hf":
        from lm.huggingface.pieces import read_tokenizer  # loads pydantic

        require_own(lowercase=lowercase, vocab_size=vocab_size)
        return read_tokenizer(pretrained)
    if kind not in ("unigram", "bpe"):
        return PLAIN[kind](lowercase)
    if vocab_size < 3:
        raise ConfigError(
            f"a {kind} tokenizer needs the size of its vocabulary; give --vocab-size 8000, or data.vocab_size"
            " in a config"
        )
    sample = _sample(train, random.Random(seed), InputLog(log.on_bad_line, log.command))
    return train_sentencepiece(kind, sample, vocab_size - 2, lowercase)


def require_own(*, lowercase: bool, vocab_size: int) -> None:
    """Raise ConfigError for options that a pretrained tokenizer decides itself."""
    for name, given in (("lowercase", lowercase), ("vocab_size", bool(vocab_size))):
        require(not given, f"{name}: the tokenizer of a pretrained model has its own; leave it out")


def _sample(pieces: Sequence[Piece], rng: random.Random, log: InputLog) -> list[str]:
    """Lines of a text: all of a short one, else lines of equal probability, once or twice ``SAMPLE``.

    The size of a dataset is not known before. So a sample that is full is thinned to half the share of lines.
    """
    kept, taken, share = list[tuple[float, str]](), 0, 1.0
    for line in (line.text for piece in pieces for line in piece.lines(log)):
        draw = rng.random()
        if draw >= share or not line.strip():
            continue
        kept.append((draw, line))
        taken += len(line)
        while taken > 2 * SAMPLE and len(kept) > 1:
            share /= 2
            kept = [(own, text) for own, text in kept if own < share]
            taken = sum(len(text) for _, text in kept)
    return [text for _, text in kept]


def build_vocabulary(
    tokenizer: Tokenizer, train: SplitCounts, others: Sequence[SplitCounts], *, size: int, of_all: bool
) -> Vocabulary:
    """The vocabulary of train or, with ``of_all``, of every split as in the authors' code.

    DataError if train has no word.
    """
    if train.words.total() == train.words[EOS_WORD]:
        raise DataError("the training text contains no token; check that it is the right file")
    if isinstance(tokenizer, PretrainedTokenizer):
        return Vocabulary(tokenizer.names, [train.words[name] for name in tokenizer.names], tokenizer.begin)
    counts: Mapping[str, int] = train.words
    outside: int | None = None
    if isinstance(tokenizer, SentencePiece):
        pieces = {piece: train.words[piece] for piece in tokenizer.pieces()}
        counts = pieces | {EOS_WORD: train.words[EOS_WORD]}
        outside = train.words.total() - sum(counts.values()) or None
    elif of_all:
        counts = dict.fromkeys((word for split in others for word in split.words), 0)
        counts = {**train.words, **{word: 0 for word in counts if word not in train.words}}
    if EOS_WORD not in counts:
        counts = {**counts, EOS_WORD: 0}
    if outside is None and any(word not in counts for split in others for word in split.words):
        outside = 0
    return Vocabulary.of_text(counts, size, outside)


def learn_codec(
    splits: Mapping[str, Sequence[Piece]], tokenizer: Tokenizer, *, size: int, log: InputLog
) -> Codec:
    """Tokenizer and vocabulary of ``train``. Words of other splits only decide if ``<unk>`` is needed."""
    counts = {name: count_split(read_tokens(pieces, tokenizer, log)) for name, pieces in splits.items()}
    train = counts.pop("train")
    return Codec(tokenizer, build_vocabulary(tokenizer, train, [*counts.values()], size=size, of_all=False))
