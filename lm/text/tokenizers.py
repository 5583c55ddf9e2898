"""Tokenizers: WordPunct, white space, characters, bytes, and trained sentencepiece models."""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, cast

from lm.errors import ConfigError, DataError

PAD, UNK, BOS, EOS = "<pad>", "<unk>", "<s>", "</s>"
DIALOG = "<d>"  # the text of the pseudo-utterance that opens every dialog
EOS_WORD = "<eos>"  # the end of a line in language models
SPECIALS = (PAD, UNK, BOS, EOS, DIALOG)
SIZE_KEYS = "data.vocab_size, or --vocab-size of prepare"
SPACE = "▁"  # a blank in the character and sentencepiece tokenizers

TokenizerKind = Literal["wordpunct", "whitespace", "char", "unigram", "bpe"]
# bytes only for corpora that `lm prepare` reads as bytes; hf for tokenizers of pretrained models
StoredKind = TokenizerKind | Literal["byte", "hf"]

_WORD_PUNCT = re.compile(r"\w+|[^\w\s]+")
_WORD = re.compile(r"\w")
_SUFFIXES = frozenset(("s", "t", "re", "ve", "ll", "d", "m", "em", "clock"))  # directly after an apostrophe
_LEFT = frozenset(".,;:!?)]}%…")  # attached to the word before
_RIGHT = frozenset("([{$#")  # attached to the word after
_BOTH = frozenset({"-", "/", "&", "@"})


class Tokenizer(Protocol):
    """Interface: split a text into tokens, and join tokens into a text for display."""

    @property
    def kind(self) -> StoredKind: ...

    @property
    def lowercase(self) -> bool: ...

    def split(self, text: str) -> list[str]: ...

    def join(self, tokens: Sequence[str]) -> str: ...


@dataclass(frozen=True, slots=True)
class WordPunct:
    """Runs of word characters and runs of punctuation: NLTK's ``WordPunctTokenizer``."""

    lowercase: bool = True
    kind: TokenizerKind = "wordpunct"

    def split(self, text: str) -> list[str]:
        return _WORD_PUNCT.findall(text.lower() if self.lowercase else text)

    def join(self, tokens: Sequence[str]) -> str:
        """Join tokens for display: ``don ' t`` → ``don't``. Splitting the result gives ``tokens`` again."""
        pieces: list[str] = []
        for index, token in enumerate(tokens):
            if index and _blank_between(tokens, index):
                pieces.append(" ")
            pieces.append(token)
        return "".join(pieces)


def _is_word(token: str) -> bool:
    return token in SPECIALS or _WORD.match(token) is not None


def _blank_between(tokens: Sequence[str], index: int) -> bool:
    """True if display puts a blank before ``tokens[index]``, never between a word and its apostrophe."""
    before, after = tokens[index - 1], tokens[index]
    if _is_word(before) == _is_word(after) or before in SPECIALS or after in SPECIALS:
        return True
    if _is_word(before):
        attached = all(character in _LEFT for character in after) or after in _BOTH or after == "'"
        return not attached
    if before == "'":
        starts = index == 1 or not _is_word(tokens[index - 2])
        return not (starts or after in _SUFFIXES or tokens[index - 2] in ("o", "y"))
    numeric = (
        before in (".", ",", ":") and after[0].isdigit() and index > 1 and tokens[index - 2][-1].isdigit()
    )
    inside = before in _BOTH and index > 1 and _is_word(tokens[index - 2])
    return not (numeric or inside or all(character in _RIGHT for character in before))


@dataclass(frozen=True, slots=True)
class Whitespace:
    """Words between Unicode white space."""

    lowercase: bool = True
    kind: TokenizerKind = "whitespace"

    def split(self, text: str) -> list[str]:
        return (text.lower() if self.lowercase else text).split()

    def join(self, tokens: Sequence[str]) -> str:
        return " ".join(tokens)


@dataclass(frozen=True, slots=True)
class Char:
    """Single characters. A run of white space is one token ``▁``."""

    lowercase: bool = True
    kind: TokenizerKind = "char"

    def split(self, text: str) -> list[str]:
        return list(SPACE.join((text.lower() if self.lowercase else text).split()))

    def join(self, tokens: Sequence[str]) -> str:
        return "".join(tokens).replace(SPACE, " ")


@dataclass(frozen=True, slots=True)
class Byte:
    """Bytes of the UTF-8 text, each as the character with its number, never lower-cased.

    Invalid bytes are in the text as ``surrogateescape`` encodes them, so the conversion is lossless.
    """

    lowercase: bool = False
    kind: StoredKind = "byte"

    def split(self, text: str) -> list[str]:
        return list(text.encode("utf-8", "surrogateescape").decode("latin-1"))

    def join(self, tokens: Sequence[str]) -> str:
        content = b"".join(token.encode("latin-1" if len(token) == 1 else "utf-8") for token in tokens)
        return content.decode("utf-8", "replace")


@dataclass(frozen=True)
class SentencePiece:
    """Subwords of a sentencepiece model, stored as the bytes of the trained model."""

    kind: TokenizerKind
    model: bytes
    lowercase: bool = True

    @cached_property
    def _processor(self) -> Any:
        import sentencepiece

        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    def split(self, text: str) -> list[str]:
        return cast(list[str], self._processor.encode(text.lower() if self.lowercase else text, out_type=str))

    def join(self, tokens: Sequence[str]) -> str:
        return "".join(tokens).replace(SPACE, " ").strip()

    def scores(self) -> dict[str, float]:
        """Log-probability of each learned subword, as sentencepiece has it."""
        processor = self._processor
        return {piece: processor.get_score(processor.piece_to_id(piece)) for piece in self.pieces()}

    def pieces(self) -> list[str]:
        """Learned subwords, without sentencepiece's own ``<unk>``."""
        processor = self._processor
        return [
            processor.id_to_piece(i) for i in range(processor.get_piece_size()) if i != processor.unk_id()
        ]


PLAIN: dict[str, Callable[[bool], Tokenizer]] = {
    "wordpunct": WordPunct,
    "whitespace": Whitespace,
    "char": Char,
    "byte": Byte,
}


def train_sentencepiece(
    kind: TokenizerKind, texts: Sequence[str], size: int, lowercase: bool
) -> SentencePiece:
    """Train about ``size`` pieces on all texts, in one thread. The same texts give the same bytes.

    Raises ConfigError if ``size`` is too small for the characters of the texts, DataError for empty texts.
    """
    import sentencepiece

    if not any(text.strip() for text in texts):
        raise DataError("the training texts contain no token; check data.train")
    if size < 1:
        raise ConfigError(f"too small a vocabulary for any {kind} piece; raise {SIZE_KEYS}")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([text.lower() if lowercase else text for text in texts]),
            model_writer=model,
            model_type=kind,
            vocab_size=size + 1,  # sentencepiece counts its own <unk>
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",
            max_sentence_length=1 << 20,
            num_threads=1,
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            minloglevel=2,
        )
    except RuntimeError as error:
        detail = " ".join(str(error).split())
        if short := re.search(r"required_chars\. (\d+) vs (\d+)", detail):
            missing = int(short[2]) - int(short[1])
            raise ConfigError(
                f"too small a vocabulary for the characters of the training text;"
                f" raise {SIZE_KEYS}, by at least {missing:,}"
            ) from error
        raise ConfigError(
            f"sentencepiece cannot learn {size} {kind} pieces: {detail}; change {SIZE_KEYS}"
        ) from error
    return SentencePiece(kind, model.getvalue(), lowercase)
