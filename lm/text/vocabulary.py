"""Vocabulary, and the codec of a tokenizer and a vocabulary: text ↔ token ids.

There are two kinds of vocabulary. In a dialog's, ``<s>`` and ``</s>`` enclose every utterance, ``<pad>``
fills batches, and unknown words are ``<unk>``. A language model reads one running text in which every line
ends in ``<eos>``. Its vocabulary has ``<unk>`` only if the text contains it or rare words were cut.

A codec is stored in its run. ``vocabulary.json`` is a list of ``[token, count]`` in the order of the ids.
The tokenizer is in ``tokenizer.json`` and, for sentencepiece, ``tokenizer.model``.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from string import punctuation
from typing import TYPE_CHECKING, Any, Self, get_args

from lm.disk.jsonfile import MAX_JSON
from lm.disk.regular import open_file
from lm.disk.storage import write_atomic
from lm.errors import ConfigError, DataError, StorageError, visible
from lm.text.pretrained_tokenizer import PretrainedTokenizer
from lm.text.tokenizers import (
    BOS,
    DIALOG,
    EOS,
    EOS_WORD,
    PAD,
    PLAIN,
    SIZE_KEYS,
    SPACE,
    SPECIALS,
    UNK,
    SentencePiece,
    Tokenizer,
    TokenizerKind,
    WordPunct,
    train_sentencepiece,
)

if TYPE_CHECKING:
    from lm.text.chat_form import ChatForm


RESTORE = "restore it from a copy (a language model's is in its prepared text), or train into another --run"
CODEC_FILES = ("tokenizer.json", "tokenizer.model", "vocabulary.json")
_FOREIGN = 0.5  # share of unknown tokens
_UNKNOWN = "\uffff"  # a noncharacter, which no text and so no vocabulary contains


class Vocabulary:
    """Tokens with their ids and counts in training.

    A dialog vocabulary is ``framed``: ``<pad>`` is 0, ``<unk>`` is 1, the others follow by falling
    frequency, and ``eos`` is ``</s>``. In a language model's, all tokens are ordered by falling frequency.
    Its ``eos`` and ``bos`` are ``<eos>``, and ``unk`` is None if it has no ``<unk>``. Vocabularies of
    pretrained tokenizers have the tokenizer's order, and ``begin`` is the ``bos`` of a language model's.
    """

    unk: int | None

    def __init__(self, tokens: Sequence[str], counts: Sequence[int], begin: int | None = None) -> None:
        self.tokens = tuple(tokens)
        self.counts = tuple(counts)
        self._ids = {token: index for index, token in enumerate(self.tokens)}
        if len(self._ids) != len(self.tokens) or len(self.counts) != len(self.tokens):
            raise ValueError("repeated token, or different numbers of tokens and counts")
        marked = all(mark in self._ids for mark in (PAD, UNK, BOS, EOS))
        first = self.tokens[:2] == (PAD, UNK) or EOS_WORD not in self._ids
        self.framed = marked and first and begin is None
        if not self.framed and EOS_WORD not in self._ids:
            raise ValueError(f"a vocabulary must have {EOS_WORD}, or {PAD}, {UNK}, {BOS} and {EOS}")
        self.bos, self.eos = (
            self._ids[mark] for mark in ((BOS, EOS) if self.framed else (EOS_WORD, EOS_WORD))
        )
        if begin is not None:
            self.bos = begin
        self.unk, self.pad = self._ids.get(UNK), self._ids.get(PAD, 0)

    @classmethod
    def build(cls, counts: Mapping[str, int], size: int, required: Sequence[str] = (BOS, EOS)) -> Self:
        """Build a dialog vocabulary: ``<pad>``, ``<unk>`` and the ``size`` most frequent tokens.

        The definition is that of Zhao et al. (2017). Ties go to the token that comes first in ``counts``.
        ``required`` tokens are kept regardless of their count, instead of the least frequent others.
        ``<unk>`` has the total count of dropped tokens. Raises ConfigError if ``size`` is too small for the
        required tokens.
        """
        if size < len(required):
            raise ConfigError(
                f"a vocabulary of {size}: needs at least {len(required)}, for {' '.join(required)};"
                f" raise {SIZE_KEYS}"
            )
        candidates = dict.fromkeys(required, 0) | {t: n for t, n in counts.items() if t not in (PAD, UNK)}
        free = size - len(required)
        others = [token for token in candidates if token not in required]
        others = sorted(others, key=lambda token: -candidates[token])[:free]  # stable: ties keep their order
        kept = set(others).union(required)
        ranked = sorted(
            (token for token in candidates if token in kept), key=lambda token: -candidates[token]
        )
        unknown = sum(counts.values()) - sum(candidates[token] for token in ranked)
        return cls((PAD, UNK, *ranked), (0, unknown, *(candidates[token] for token in ranked)))

    @classmethod
    def of_text(cls, counts: Mapping[str, int], size: int = 0, outside: int | None = None) -> Self:
        """Build a language model's vocabulary: the tokens of ``counts`` by falling frequency.

        ``counts`` has the number of lines as ``<eos>``. Ties go to the token that comes first in ``counts``.
        ``size`` is the maximum number of tokens, 0 = no limit. The least frequent tokens beyond it become
        ``<unk>``. ``outside`` is the number of training tokens missing from ``counts``, which are ``<unk>``,
        too. None = no text has such tokens. Raises ConfigError if ``size`` is too small for any word.
        """
        words = sorted((t for t in counts if t not in (EOS_WORD, UNK)), key=lambda token: -counts[token])
        marks = {EOS_WORD: counts.get(EOS_WORD, 0)}
        if UNK in counts or outside is not None or (size and len(words) + 1 > size):
            marks[UNK] = counts.get(UNK, 0) + (outside or 0)
        if size:
            room = size - len(marks)
            if room < 1:
                raise ConfigError(
                    f"a vocabulary of {size}: too small for a word besides {' '.join(marks)};"
                    f" raise {SIZE_KEYS}"
                )
            if UNK in marks:
                marks[UNK] += sum(counts[token] for token in words[room:])
            words = words[:room]
        kept = marks | {token: counts[token] for token in words}
        order = {token: place for place, token in enumerate(dict.fromkeys((*counts, *marks)))}
        ranked = sorted(kept, key=lambda token: (-kept[token], order[token]))
        return cls(ranked, [kept[token] for token in ranked])

    def ids(self, tokens: Iterable[str]) -> list[int]:
        """Ids of tokens, including special ones, with ``<unk>`` for unknown tokens.

        Raises KeyError with the unknown token if the vocabulary has no ``<unk>``.
        """
        if self.unk is None:
            return [self._ids[token] for token in tokens]
        get, unk = self._ids.get, self.unk
        return [get(token, unk) for token in tokens]

    def words(self, ids: Iterable[int]) -> list[str]:
        return [self.tokens[index] for index in ids]

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, token: object) -> bool:
        return token in self._ids


class Codec:
    """A tokenizer and a vocabulary, which convert text to ids and back."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        self._words = {t: i for i, t in enumerate(vocabulary.tokens) if t not in SPECIALS}

    @property
    def chat(self) -> "ChatForm | None":
        """The chat template of a pretrained tokenizer for dialogs, if it has one."""
        return self.tokenizer.chat if isinstance(self.tokenizer, PretrainedTokenizer) else None

    @property
    def response_start(self) -> int:
        """Id of the token before a response: ``<s>``, or the last one of a chat template's prompt."""
        return self.vocabulary.bos if self.chat is None else self.chat.first

    def expected_counts(self) -> list[int]:
        """Counts of tokens in training, but of ``<unk>`` at least as many as there are words that occur once.

        That number of new words is expected in another text of this length (Good 1953). Learned pieces and
        those of pretrained tokenizers are never new.
        """
        counts, unknown = list(self.vocabulary.counts), self.vocabulary.unk
        if unknown is not None and self.tokenizer.kind in PLAIN:
            counts[unknown] = max(counts[unknown], counts.count(1))
        return counts

    def encode(self, text: str, place: str = "") -> list[int]:
        """Ids of an utterance without ``<s>`` and ``</s>``, or of a language model's line with ``<eos>``.

        Raises DataError with the word and ``place`` for an unknown word if the vocabulary has no ``<unk>``.

        A typed special token such as ``<s>`` is an unknown word, with two exceptions. The exact text ``<d>``
        is the pseudo-utterance that opens a dialog. ``<unk>`` is one unknown token, so that it survives
        :meth:`decode` and encoding again. Pretrained tokenizers, and those of characters and learned pieces
        in language models, know its characters instead.
        """
        if not self.vocabulary.framed:
            return self.line_ids(line_tokens(self.tokenizer, text), place)
        if text == DIALOG:
            return self.vocabulary.ids([DIALOG])
        unknown = self.vocabulary.ids([UNK])[0]
        return [self._words.get(token, unknown) for token in tokens_of(self.tokenizer, text)]

    def line_ids(self, tokens: Sequence[str], place: str = "") -> list[int]:
        """Ids of a tokenized line, with ``<eos>``. Raises DataError as :meth:`encode` does."""
        try:
            ids = self.vocabulary.ids(tokens)
        except KeyError as error:
            where = f"{visible(place)}: " if place else ""
            raise DataError(
                f"{where}the vocabulary has neither the word {error.args[0]!r} nor {UNK}; "
                f"train with the text as one of the splits, or with a smaller vocabulary, which has {UNK}"
            ) from error
        ids.append(self.vocabulary.eos)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text for display, without ``<pad>``, ``<s>`` and ``</s>``. ``<eos>`` becomes a line end."""
        words = self.vocabulary.words(ids)
        if self.vocabulary.framed:
            return self.tokenizer.join([word for word in words if word not in (PAD, BOS, EOS)])
        lines: list[list[str]] = [[]]
        for word in words:
            if word == EOS_WORD:
                lines.append([])
            else:
                lines[-1].append(word)
        return "\n".join(map(self.tokenizer.join, lines))

    def _settings(self) -> bytes:
        """Content of ``tokenizer.json``."""
        settings: dict[str, Any] = {"kind": self.tokenizer.kind, "lowercase": self.tokenizer.lowercase}
        if isinstance(self.tokenizer, SentencePiece | PretrainedTokenizer):
            settings["model_sha256"] = hashlib.sha256(self.tokenizer.model).hexdigest()
        return json.dumps(settings, indent=1).encode()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of tokenizer and vocabulary, equal if and only if two codecs give the same ids."""
        known = json.dumps(self.vocabulary.tokens).encode() + self._settings()
        return hashlib.sha256(known).hexdigest()

    def save(self, folder: Path) -> None:
        """Write the codec into an existing folder. Raises StorageError on failure."""
        pairs = list(zip(self.vocabulary.tokens, self.vocabulary.counts, strict=True))
        write_atomic(folder / "tokenizer.json", self._settings())
        write_atomic(folder / "vocabulary.json", json.dumps(pairs, ensure_ascii=False, indent=0).encode())
        if isinstance(self.tokenizer, SentencePiece | PretrainedTokenizer):
            write_atomic(folder / "tokenizer.model", self.tokenizer.model)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the files of :meth:`save`. Raises StorageError if one is missing, damaged or foreign."""
        path = folder / "tokenizer.json"
        try:
            settings = json.loads(_read(path))
            kind, lowercase = settings["kind"], settings["lowercase"]
            if kind in ("unigram", "bpe", "hf"):
                path = folder / "tokenizer.model"
                model = _read(path)
                if hashlib.sha256(model).hexdigest() != settings["model_sha256"]:
                    raise ValueError("its SHA-256 differs from that in tokenizer.json")
                stored = PretrainedTokenizer(model) if kind == "hf" else SentencePiece(kind, model, lowercase)
                tokenizer: Tokenizer = stored
            else:
                tokenizer = PLAIN[kind](lowercase)
            path = folder / "vocabulary.json"
            tokens, counts = zip(*json.loads(_read(path)), strict=True)
            if not all(isinstance(token, str) for token in tokens):
                raise ValueError("tokens must be strings")
            "".join(tokens).encode()  # ValueError for half of a surrogate pair, which no text has
            begin = tokenizer.begin if isinstance(tokenizer, PretrainedTokenizer) else None
            return cls(tokenizer, Vocabulary(tokens, counts, begin))
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
            raise StorageError(f"{path}: {reason}; {RESTORE}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StorageError(f"{path}: damaged or foreign; {RESTORE}") from error


def unknown_words(codec: Codec, text: str, most: int = 8) -> str:
    """Message ``unknown: zürich, qqq`` with the words of a text that become ``<unk>``, or an empty string."""
    vocabulary = codec.vocabulary
    if vocabulary.unk is None or (vocabulary.framed and text == DIALOG):
        return ""
    tokens = codec.tokenizer.split(text.replace(UNK, " ").replace("\n", " "))
    known = SPECIALS if vocabulary.framed else ()
    missing = dict.fromkeys(t.strip(f"{SPACE} ")[:40] for t in tokens if t in known or t not in vocabulary)
    words = [word for word in missing if word.strip(punctuation)]
    rest = f" and {len(words) - most:,} more" if len(words) > most else ""
    return f"unknown: {', '.join(words[:most])}{rest}" if words else ""


def _read(path: Path) -> bytes:
    with open_file(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_JSON:
            raise ValueError("larger than any file of a codec")
        return file.read()


def require_known(unknown: float, source: object) -> None:
    """Raise DataError if over half of a text is unknown, so that it is of another language or spelling."""
    if unknown > _FOREIGN:
        raise DataError(
            f"{source}: {unknown:.0%} of its tokens are unknown to the run;"
            " evaluate text in the language and spelling of the training text"
        )


def tokens_of(tokenizer: Tokenizer, text: str) -> list[str]:
    """Tokens of a text in which ``<unk>`` is an unknown word, as in corpora that have replaced rare words."""
    if UNK not in text or isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer.split(text)
    return [UNK if _UNKNOWN in token else token for token in tokenizer.split(text.replace(UNK, _UNKNOWN))]


def line_tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    """Tokens of a language model's line. ``<unk>`` is one of them for a tokenizer of words."""
    return tokens_of(tokenizer, text) if isinstance(tokenizer, WordPunct) else tokenizer.split(text)


def build_codec(
    kind: TokenizerKind,
    texts: Iterable[str],
    *,
    vocab_size: int,
    lowercase: bool = True,
    extra_counts: Mapping[str, int] | None = None,
) -> Codec:
    """Build tokenizer and vocabulary from only the training texts.

    ``extra_counts`` are the counts of special tokens in training: ``<s>``, ``</s>`` and, for dialogs,
    ``<d>``. Special tokens are always among the ``vocab_size`` most frequent. The vocabulary has
    ``vocab_size`` + 2 tokens, or fewer if the texts have fewer. Raises ConfigError for an unknown kind or a
    size too small for the special tokens, DataError for empty texts.
    """
    if kind not in get_args(TokenizerKind):
        raise ConfigError(f"data.tokenizer = {kind!r}: must be one of {', '.join(get_args(TokenizerKind))}")
    extra = {BOS: 0, EOS: 0} | dict(extra_counts or {})
    if kind in ("unigram", "bpe"):
        texts = list(texts)
        tokenizer: Tokenizer = train_sentencepiece(kind, texts, vocab_size - len(extra), lowercase)
    else:
        tokenizer = PLAIN[kind](lowercase)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(tokens_of(tokenizer, text))
    # in a text these are unknown words, as in encode()
    counts[UNK] = sum(counts.pop(special, 0) for special in SPECIALS)
    if counts.total() == 0:
        raise DataError("the training texts contain no token; check data.train")
    if isinstance(tokenizer, SentencePiece):
        pieces = [piece for piece in tokenizer.pieces() if piece not in SPECIALS]
        counts = Counter(
            {UNK: counts.total() - sum(counts[p] for p in pieces)} | {p: counts[p] for p in pieces}
        )
    return Codec(tokenizer, Vocabulary.build({**extra, **counts}, vocab_size, tuple(extra)))
