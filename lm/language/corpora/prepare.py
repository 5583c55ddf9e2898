"""``lm prepare``: any text → one folder with its splits as token ids, their codec, a report.

::

    OUT/train/ valid/ test/   token ids, see lm/language/corpora/split_files.py
    OUT/vocabulary.json, tokenizer.json, tokenizer.model    the codec, see lm/text/vocabulary.py
    OUT/report.json           counts, vocabulary, out-of-vocabulary rates, comparison with published counts
    OUT/dropped.jsonl, manifest.json    see lm/text/prepared_folder.py

The text is read once, by one process or several, and stored as numbers of its words, see
lm/language/corpora/part_files.py. These become token ids when all words are counted. Memory holds only the
vocabulary and one file of a split. The same input and options give the same bytes.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

from lm.disk.jsonfile import MAX_JSON
from lm.disk.storage import read_file
from lm.errors import DataError, StorageError, require
from lm.language.corpora.part_files import StoredPart, merged, store_text, store_words
from lm.language.corpora.pieces import CopiesPiece, FilePiece, Piece
from lm.language.corpora.sources import BYTES, Located, ReadOptions, locate
from lm.language.corpora.split_files import id_dtype, write_split
from lm.language.corpora.survey import (
    SplitCounts,
    build_vocabulary,
    learn_tokenizer,
    read_tokens,
    require_own,
)
from lm.text.lines import Dropped, InputLog, OnBadLine
from lm.text.parts import PartOf, part_of
from lm.text.prepared_folder import Prepared, hash_inputs
from lm.text.prepared_parts import Found, Preparation, prepare_whole
from lm.text.pretrained_tokenizer import PretrainedTokenizer
from lm.text.tokenizers import EOS_WORD, UNK, SentencePiece, StoredKind, Tokenizer, TokenizerKind
from lm.text.vocabulary import Codec, Vocabulary
from lm.trunks.names import PRETRAINED, pretrained_path

if TYPE_CHECKING:
    from lm.console.tables import Table

VocabularyOf = Literal["train", "train+valid+test"]
BlankLines = Literal["keep", "drop"]

COMMAND = "lm prepare"
_FOLDER = "hf:FOLDER"  # the tokenizer of a pretrained model
_TOKENIZERS = ("auto", *get_args(TokenizerKind), _FOLDER)
_FORMAT = 1  # of the folder; a folder of another format is rebuilt
_MODEL = "tokenizer.model"
_CHARACTERS = ("ptb-char", "mwc")
_WIKITEXT = (217_646, 245_569)  # valid and test are those of both WikiTexts


class Published(NamedTuple):
    """Published counts of a corpus: tokens of train, valid and test, and the size of the vocabulary."""

    name: str
    format: str
    tokens: tuple[int, int, int]
    vocabulary: int


PUBLISHED = (
    Published("PTB", "ptb", (929_589, 73_760, 82_430), 10_000),
    Published("WikiText-2", "wikitext", (2_088_628, *_WIKITEXT), 33_278),
    Published("WikiText-103", "wikitext", (103_227_021, *_WIKITEXT), 267_735),
    Published("enwik8", "enwik8", (90_000_000, 5_000_000, 5_000_000), 205),
    Published("text8", "text8", (90_000_000, 5_000_000, 5_000_000), 28),  # <unk> is ours
)


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """Options of reading, tokenization and storage.

    ``vocab_size`` is the maximum number of tokens in the vocabulary, including ``<eos>`` and ``<unk>``; 0 is
    all of ``vocabulary``. Dropped blank lines leave no ``<eos>``. ``seed`` selects the lines of a large text
    that sentencepiece learns from. ConfigError for impossible values.
    """

    read: ReadOptions = field(default_factory=ReadOptions)
    on_bad_line: OnBadLine = "error"
    tokenizer: str = "auto"  # a kind, or hf:FOLDER for that of a pretrained model
    lowercase: bool = False
    vocab_size: int = 0
    vocabulary: VocabularyOf = "train"
    blank_lines: BlankLines = "keep"
    shard_tokens: int = 10_000_000
    seed: int = 1

    def __post_init__(self) -> None:
        pretrained = pretrained_path(self.tokenizer)
        choices = {
            "tokenizer": (_FOLDER if pretrained else self.tokenizer, _TOKENIZERS),
            "vocabulary": (self.vocabulary, get_args(VocabularyOf)),
            "blank-lines": (self.blank_lines, get_args(BlankLines)),
        }
        for name, (value, known) in choices.items():
            require(value in known, f"--{name} {value}: must be one of {', '.join(known)}")
        if pretrained:
            require_own(lowercase=self.lowercase, vocab_size=self.vocab_size)
        sizes = self.vocab_size >= 0 and self.shard_tokens >= 1
        require(sizes, "--vocab-size must be at least 0 and --shard-tokens at least 1")


class TextPreparation(Preparation):
    """Preparation of a source for language models, with PrepareOptions."""

    command, version = COMMAND, _FORMAT
    options: PrepareOptions

    @cached_property
    def located(self) -> Located:
        """Format and splits of the source. Raises DataError."""
        return locate(self.source, self.options.read)

    @cached_property
    def kind(self) -> StoredKind:
        """Kind of the tokenizer. Raises ConfigError for one that the format does not allow."""
        return _tokenizer_kind(self.located.format, self.options)

    def inputs(self, part: PartOf | None = None) -> dict[str, Any]:
        """Size and SHA-256 of every file or slice, SHA-256 of a dataset's splits, or synthetic parameters.

        The tokenizer of a pretrained model is an input, too.
        """
        folder = pretrained_path(self.options.tokenizer)
        pieces = {} if folder is None else {f"{folder}": {"sha256": self._pieces}}
        if part is None and self.located.files:
            return hash_inputs(self.located.files) | pieces
        return _identity(part_of(self.located.splits, part) if part else self.located.splits) | pieces

    @property
    def _pieces(self) -> str:
        """SHA-256 of the tokenizer of a pretrained model."""
        return hashlib.sha256(self.learn()).hexdigest()

    def learn(self) -> bytes:
        tokenizer = self._tokenizer(b"") if self.kind in ("unigram", "bpe", PRETRAINED) else None
        return tokenizer.model if isinstance(tokenizer, SentencePiece | PretrainedTokenizer) else b""

    def _tokenizer(self, model: bytes) -> Tokenizer:
        kind = self.kind
        if model and kind == "hf":
            return PretrainedTokenizer(model)
        if model and kind != "byte" and kind != "hf":
            return SentencePiece(kind, model, self.options.lowercase)
        return learn_tokenizer(
            kind,
            self.located.splits["train"],
            lowercase=self.options.lowercase,
            vocab_size=self.options.vocab_size,
            seed=self.options.seed,
            log=InputLog(self.options.on_bad_line, COMMAND),
            pretrained=pretrained_path(self.options.tokenizer),
        )

    def write_part(self, part: PartOf, learned: bytes, folder: Path) -> Found:
        tokenizer, keep = self._tokenizer(learned), self.options.blank_lines == "keep"
        log = InputLog(self.options.on_bad_line, COMMAND)
        counts, report = dict[str, SplitCounts](), dict[str, dict[str, int]]()
        for split, pieces in part_of(self.located.splits, part).items():
            before = len(log.dropped)
            lines = read_tokens(pieces, tokenizer, log, blank_lines=keep)
            counts[split] = found = store_text(folder / f"{split}.ids", lines)
            dropped = len(log.dropped) - before
            report[split] = {"lines": found.lines, "characters": found.characters, "dropped": dropped}
        store_words(folder, counts)
        (folder / _MODEL).write_bytes(learned)
        return Found(report, log.dropped)

    def join(self, parts: Sequence[Path], folder: Path) -> Found:
        stored = [StoredPart(part) for part in parts]
        counts = {split: merged(stored, split) for split in self.located.splits}
        for split, found in counts.items():
            if found.words.keys() <= {EOS_WORD}:
                raise DataError(f"{self.source}: the {split} split has no token; check its text")
        codec = self._codec(_common_model(parts), counts)
        codec.save(folder)
        for split, found in counts.items():
            ids = (chunk for part in stored for chunk in part.ids(split, codec.vocabulary, id_dtype(codec)))
            write_split(folder / split, ids, codec, found, self.options.shard_tokens)
        dropped = [piece for split in counts for part in stored for piece in part.dropped(split)]
        return Found(_report(self.located, codec, counts, dropped, self.options), dropped)

    def _codec(self, model: bytes, counts: Mapping[str, SplitCounts]) -> Codec:
        tokenizer = self._tokenizer(model)
        others = [counts[split] for split in counts if split != "train"]
        of_all = self.options.vocabulary == "train+valid+test"
        size = self.options.vocab_size
        return Codec(
            tokenizer, build_vocabulary(tokenizer, counts["train"], others, size=size, of_all=of_all)
        )


def prepare(
    source: str, out: Path, options: PrepareOptions = PrepareOptions(), processes: int = 1
) -> Prepared:
    """Read ``source`` and write ``out``, unless ``out`` is up to date.

    A result of an earlier version of this source, or of other options, is replaced. The number of
    ``processes`` does not affect the bytes.

    Raises:
        ConfigError: bad options.
        DataError: a bad source.
        StorageError: ``out`` is something else or of another source, is not writable, or is being written by
            another process.
        WorkerError: one of several processes was killed.
    """
    return prepare_whole(preparation(source, options), out, processes)


def preparation(source: str, options: PrepareOptions) -> TextPreparation:
    """The preparation of a source. Raises ConfigError or DataError."""
    made = TextPreparation(source, options)
    made.kind  # noqa: B018  (errors before any work)
    return made


def _common_model(parts: Sequence[Path]) -> bytes:
    """The trained tokenizer of all parts. Raises StorageError if they differ."""
    first, *others = (read_file(part / _MODEL, limit=MAX_JSON) for part in parts)
    for part, model in zip(parts[1:], others, strict=True):
        if model != first:
            raise StorageError(
                f"{part}: its tokenizer is not that of {parts[0].name}; prepare all parts on equal machines"
                " with the same version of sentencepiece"
            )
    return first


def _identity(splits: Mapping[str, Sequence[Piece]]) -> dict[str, Any]:
    """Content of pieces of a source: hashes of files and of rows, and parameters of synthetic lines."""
    found: dict[str, Any] = {}
    for split, pieces in splits.items():
        made_up = [piece.identity for piece in pieces if isinstance(piece, CopiesPiece)]
        if len(made_up) == len(pieces):
            found[split] = made_up
            continue
        digest = hashlib.sha256()
        for piece in pieces:
            if isinstance(piece, FilePiece):
                found |= piece.content()
                continue
            for line in piece.lines(InputLog("skip")):
                digest.update(line.text.encode("utf-8", "surrogatepass") + b"\n")
            found[split] = digest.hexdigest()
    return found


def _tokenizer_kind(format: str, options: PrepareOptions) -> StoredKind:
    given = options.tokenizer
    if format in BYTES:
        for option, reads in (
            (f"--tokenizer {given}", given in ("auto", "char")),
            ("--lowercase", not options.lowercase),
            (f"--blank-lines {options.blank_lines}", options.blank_lines == "keep"),
        ):
            require(reads, f"{option}: {format} is read as raw bytes; leave it out")
        return "byte"
    kind = PRETRAINED if pretrained_path(given) else given
    own = kind in ("unigram", "bpe", PRETRAINED) and options.vocabulary != "train"
    require(not own, f"--vocabulary {options.vocabulary}: a {kind} tokenizer has its own; leave it out")
    if given != "auto":
        return cast(StoredKind, kind)
    return "char" if format in _CHARACTERS else "whitespace"


def _report(
    located: Located,
    codec: Codec,
    counts: Mapping[str, SplitCounts],
    dropped: Sequence[Dropped],
    options: PrepareOptions,
) -> dict[str, Any]:
    format, vocabulary = located.format, codec.vocabulary
    splits = {split: _describe(found, vocabulary) for split, found in counts.items()}
    notes = []
    if located.cut and format not in BYTES:  # files of bytes have a standard cut
        notes.append(
            f"cut from the end of train: {', '.join(located.cut)}; "
            "results compare only with those of the same cut"
        )
    if located.records:
        names = ", ".join(path.name for path in located.records)
        notes.append(f"not read, since they hold records: {names}")
    never = sum(splits[split]["oov_tokens"] for split in splits if split != "train")
    if vocabulary.unk is not None and not vocabulary.counts[vocabulary.unk] and never:
        notes.append(
            f"{never:,} tokens of valid and test are {UNK}, which training never has, so no model learns it; "
            "limit the vocabulary by --vocab-size, or use --vocabulary train+valid+test"
        )
    return {
        "format": format,
        "tokenizer": codec.tokenizer.kind,
        "vocabulary": options.vocabulary,
        "vocabulary_size": len(vocabulary),
        "splits": splits,
        "published": _compare(format, splits, len(vocabulary), codec, options),
        "notes": notes,
        "dropped": dict(Counter(piece.reason for piece in dropped).most_common()),
    }


def _describe(found: SplitCounts, vocabulary: Vocabulary) -> dict[str, Any]:
    """Counts of one split; ``oov`` counts tokens outside the vocabulary, ``unknown`` counts ``<unk>``.

    ``oov_rate`` is the share of the tokens that are no ends of lines.
    """
    tokens = found.words.total()
    oov = sum(count for word, count in found.words.items() if word not in vocabulary)
    return {
        "tokens": tokens,
        "lines": found.lines,
        "characters": found.characters,
        "types": len(found.words),
        "oov_tokens": oov,
        "oov_rate": oov / max(1, tokens - found.words[EOS_WORD]),
        "unknown_tokens": oov + found.words[UNK],
    }


def _compare(
    format: str, splits: Mapping[str, Any], size: int, codec: Codec, options: PrepareOptions
) -> str | None:
    """Result of a comparison with the published counts of a known corpus. None without published counts."""
    usual = (
        codec.tokenizer.kind in ("whitespace", "byte") and not options.lowercase and not options.vocab_size
    )
    if not usual or options.blank_lines != "keep" or len(splits) < 3:
        return None
    tokens = tuple(counts["tokens"] for counts in splits.values())
    known = [corpus for corpus in PUBLISHED if corpus.format == format]
    if not known:
        return None
    corpus = min(known, key=lambda corpus: abs(corpus.tokens[0] - tokens[0]))
    pairs = [*zip(splits, tokens, corpus.tokens, strict=True), ("vocabulary", size, corpus.vocabulary)]
    different = [f"{what} {ours:,} for {theirs:,}" for what, ours, theirs in pairs if ours != theirs]
    return f"not as published for {corpus.name}: {', '.join(different)}" if different else "same"


def prepared_tables(report: Mapping[str, Any]) -> list["Table | str"]:
    """A row for each split, the vocabulary, the dropped lines, and warnings."""
    from lm.console.shared_tables import preparation_tables  # loads pydantic, which workers do without

    columns = ("tokens", "lines", "characters", "types", "oov_rate")
    words = f"{report['vocabulary_size']:,} tokens in the vocabulary ({report['tokenizer']})"
    lines = preparation_tables(report, columns, words)
    if published := report["published"]:
        lines.append("counts are the published ones" if published == "same" else f"warning: {published}")
    lines += [f"note: {note}" for note in report["notes"]]
    return lines
