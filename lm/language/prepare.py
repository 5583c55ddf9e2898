"""``lm prepare``: any text → one folder with its splits as token ids, their codec, a report.

::

    OUT/train/ valid/ test/   token ids, see lm/language/shards.py
    OUT/vocabulary.json, tokenizer.json, tokenizer.model    the codec, see lm/text/vocabulary.py
    OUT/report.json           counts, vocabulary, out-of-vocabulary rates, comparison with published counts
    OUT/dropped.jsonl, manifest.json    see lm/text/prepared_folder.py

The text is read twice by line, once to count and once to encode, so memory holds only the vocabulary and one
shard. The same input and options give the same bytes.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from lm.console.report import preparation_tables
from lm.console.tables import Table
from lm.disk.storage import storage_errors
from lm.errors import ConfigError, DataError, require
from lm.language.shards import write_split
from lm.language.sources import BYTES, COPIES, Located, ReadOptions, locate
from lm.language.survey import SplitCounts, build_vocabulary, count_split, learn_tokenizer, read_tokens
from lm.text.lines import InputLog, OnBadLine
from lm.text.prepared_folder import OutputFolder, Prepared, hash_inputs
from lm.text.tokenizers import StoredKind, TokenizerKind
from lm.text.vocabulary import EOS_WORD, UNK, Codec, Vocabulary

VocabularyOf = Literal["train", "train+valid+test"]
BlankLines = Literal["keep", "drop"]

COMMAND = "lm prepare"
_FORMAT = 1  # of the folder; a folder of another format is rebuilt
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
    tokenizer: TokenizerKind | Literal["auto"] = "auto"
    lowercase: bool = False
    vocab_size: int = 0
    vocabulary: VocabularyOf = "train"
    blank_lines: BlankLines = "keep"
    shard_tokens: int = 10_000_000
    seed: int = 1

    def __post_init__(self) -> None:
        choices = {
            "tokenizer": (self.tokenizer, ("auto", *get_args(TokenizerKind))),
            "vocabulary": (self.vocabulary, get_args(VocabularyOf)),
            "blank-lines": (self.blank_lines, get_args(BlankLines)),
        }
        for name, (value, known) in choices.items():
            require(value in known, f"--{name} {value}: must be one of {', '.join(known)}")
        sizes = self.vocab_size >= 0 and self.shard_tokens >= 1
        require(sizes, "--vocab-size must be at least 0 and --shard-tokens at least 1")


def prepare(source: str, out: Path, options: PrepareOptions = PrepareOptions()) -> Prepared:
    """Read ``source`` and write ``out``, unless ``out`` is up to date.

    A result of an earlier version of this source, or of other options, is replaced.

    Raises:
        ConfigError: bad options.
        DataError: a bad source.
        StorageError: ``out`` is something else or of another source, is not writable, or is being written by
            another process.
    """
    located = locate(source, options.read)
    kind = _tokenizer_kind(located.format, options)
    folder = OutputFolder(out, COMMAND)
    wanted = {
        "command": COMMAND,
        "format": _FORMAT,
        "source": source,
        "options": asdict(options),
        "inputs": _identity(located),
    }
    if current := folder.current(wanted):
        return current
    with folder.alone():
        return folder.current(wanted) or _write(folder, located, kind, options, wanted)


def _write(
    folder: OutputFolder,
    located: Located,
    kind: StoredKind,
    options: PrepareOptions,
    wanted: Mapping[str, Any],
) -> Prepared:
    folder.require_replaceable(wanted)
    log = InputLog(options.on_bad_line, COMMAND)
    codec, counts = _survey(located, kind, options, log)
    report = _report(located, codec, counts, log, options)
    with folder.building() as building, storage_errors(folder.path):
        codec.save(building)
        for split, parts in located.splits.items():
            again = InputLog(options.on_bad_line, COMMAND)  # log of the second reading, discarded
            keep = options.blank_lines == "keep"
            lines = read_tokens(parts, codec.tokenizer, again, blank_lines=keep)
            write_split(building / split, lines, codec, options.shard_tokens)
        if _identity(located) != wanted["inputs"]:
            raise DataError(f"{located.source}: changed while it was read; run the same command again")
        return folder.finish(building, wanted, report, log.dropped)


def _identity(located: Located) -> dict[str, Any]:
    """Size and SHA-256 of every file, SHA-256 of a dataset's splits, or parameters of synthetic splits."""
    if files := located.files:
        return hash_inputs(files)
    if located.source == COPIES:
        return {split: list(map(repr, parts)) for split, parts in located.splits.items()}
    found = {}
    for split, parts in located.splits.items():
        digest = hashlib.sha256()
        for part in parts:
            for line in part.lines(InputLog("skip")):
                digest.update(line.text.encode("utf-8", "surrogatepass") + b"\n")
        found[split] = digest.hexdigest()
    return found


def _tokenizer_kind(format: str, options: PrepareOptions) -> StoredKind:
    if format in BYTES:
        if options.tokenizer not in ("auto", "char") or options.lowercase:
            raise ConfigError(
                f"--tokenizer {options.tokenizer}: {format} is read as raw bytes; leave out --tokenizer"
            )
        return "byte"
    if options.tokenizer != "auto":
        return options.tokenizer
    return "char" if format in _CHARACTERS else "whitespace"


def _survey(
    located: Located, kind: StoredKind, options: PrepareOptions, log: InputLog
) -> tuple[Codec, dict[str, SplitCounts]]:
    """The first reading: the codec, and counts of every split."""
    tokenizer = learn_tokenizer(
        kind,
        located.splits["train"],
        lowercase=options.lowercase,
        vocab_size=options.vocab_size,
        seed=options.seed,
        log=log,
    )
    keep = options.blank_lines == "keep"
    counts = {}
    for split, parts in located.splits.items():
        counts[split] = count_split(read_tokens(parts, tokenizer, log, blank_lines=keep))
        if counts[split].words.keys() <= {EOS_WORD}:
            raise DataError(f"{located.source}: the {split} split has no token; check its text")
    others = [counts[split] for split in counts if split != "train"]
    of_all = options.vocabulary == "train+valid+test"
    size = options.vocab_size
    return Codec(
        tokenizer, build_vocabulary(tokenizer, counts["train"], others, size=size, of_all=of_all)
    ), counts


def _report(
    located: Located, codec: Codec, counts: Mapping[str, SplitCounts], log: InputLog, options: PrepareOptions
) -> dict[str, Any]:
    format, vocabulary = located.format, codec.vocabulary
    splits = {split: _describe(found, vocabulary) for split, found in counts.items()}
    notes = []
    if located.cut and format not in BYTES:  # files of bytes have a standard cut
        notes.append(
            f"cut from the end of train: {', '.join(located.cut)}; "
            "results compare only with those of the same cut"
        )
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
        "dropped": dict(Counter(piece.reason for piece in log.dropped).most_common()),
    }


def _describe(found: SplitCounts, vocabulary: Vocabulary) -> dict[str, Any]:
    """Counts of one split; ``oov`` counts tokens outside the vocabulary, ``unknown`` counts ``<unk>``."""
    tokens = found.words.total()
    oov = sum(count for word, count in found.words.items() if word not in vocabulary)
    return {
        "tokens": tokens,
        "lines": found.lines,
        "characters": found.characters,
        "types": len(found.words),
        "oov_tokens": oov,
        "oov_rate": oov / tokens,
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


def prepared_tables(report: Mapping[str, Any]) -> list[Table | str]:
    """A row for each split, the vocabulary, the dropped lines, and warnings."""
    columns = ("tokens", "lines", "characters", "types", "oov_rate")
    words = f"{report['vocabulary_size']:,} tokens in the vocabulary ({report['tokenizer']})"
    lines = preparation_tables(report, columns, words)
    if published := report["published"]:
        lines.append("counts are the published ones" if published == "same" else f"warning: {published}")
    lines += [f"note: {note}" for note in report["notes"]]
    return lines
