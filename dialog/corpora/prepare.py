"""``dialog prepare``: convert any source to a folder with splits, a report and a list of dropped input.

::

    OUT/train/ valid/ test/   Arrow, see dialog/corpora/prepared.py
    OUT/report.json           counts, vocabulary, out-of-vocabulary rates, lengths, topics, dropped input
    OUT/dropped.jsonl, manifest.json    see lm/text/prepared_folder.py

The same input and options give the same bytes.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from dialog.corpora.columns import ReadOptions
from dialog.corpora.corpus import train_codec
from dialog.corpora.formats import PAGE, beginning_of_dialogs
from dialog.corpora.nonsense import nonsense
from dialog.corpora.pieces import (
    Chunk,
    Piece,
    inputs_of,
    joined_dialogs,
    pieces_of,
    read_piece,
    store_chunks,
    stored_chunks,
)
from dialog.corpora.prepared import write_split
from dialog.corpora.sources import Located, locate, require_dialogs
from dialog.utterance import WHOLE, Dialog
from lm.config.named_data import SPLITS
from lm.errors import DataError
from lm.text.lines import InputLog, OnBadLine, skipped
from lm.text.parts import PartOf, part_of
from lm.text.prepared_folder import Prepared, hash_inputs, require_fractions
from lm.text.prepared_parts import Found, Preparation, prepare_whole
from lm.text.tokenizers import UNK, TokenizerKind
from lm.text.vocabulary import Codec

_FORMAT = 1  # version of the folder's format; a folder of another version is rebuilt


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """Options of reading, of splitting an unsplit source, and of token counts in the report.

    ``valid_fraction`` and ``test_fraction`` are shares of the dialogs, drawn with ``seed``, for splits that
    the source lacks. 0 = no such split. Without a ``tokenizer`` the report has no token counts.
    """

    read: ReadOptions = field(default_factory=ReadOptions)
    on_bad_line: OnBadLine = "error"
    valid_fraction: float = 0.05
    test_fraction: float = 0.05
    seed: int = 1
    tokenizer: TokenizerKind | None = "wordpunct"
    lowercase: bool = True
    vocab_size: int = 10_000

    def __post_init__(self) -> None:
        require_fractions(self.valid_fraction, self.test_fraction)


class DialogPreparation(Preparation):
    """Preparation of a source for dialog models, with PrepareOptions.

    ``force`` accepts implausible content. It is not among the options, because it does not affect the result.
    """

    command, version = "dialog prepare", _FORMAT
    options: PrepareOptions
    force = False

    @cached_property
    def located(self) -> Located:
        """Format and files of the source. Raises DataError or ConfigError."""
        found = locate(self.source, self.options.read, self._log())
        if found.format == "prepared":
            raise DataError(f"{self.source}: already prepared; name it, or one of its splits, in the config")
        return found

    @cached_property
    def pieces(self) -> dict[str, list[Piece]]:
        """Pieces of each split."""
        return pieces_of(self.located)

    @cached_property
    def _dataset(self) -> list[Chunk]:
        """Content of a data set, which has no files and is read once."""
        return self._read(self.pieces)

    def _log(self) -> InputLog:
        return InputLog(self.options.on_bad_line)

    def _read(self, pieces: Mapping[str, Sequence[Piece]]) -> list[Chunk]:
        read, log = self.options.read, self._log()
        found = ((split, piece) for split, several in pieces.items() for piece in several)
        return [
            chunk for split, piece in found for chunk in read_piece(piece, split, self.located, read, log)
        ]

    def inputs(self, part: PartOf | None = None) -> dict[str, Any]:
        """Size and SHA-256 of every file or slice, or the SHA-256 of a data set's dialogs."""
        if self.located.format == "datasets":
            return dataset_inputs(self.source, joined_dialogs(self._dataset, self._log()))
        if part is None:
            return hash_inputs(path for files in self.located.files.values() for path in files)
        chosen = part_of(self.pieces, part)
        return inputs_of(piece for several in chosen.values() for piece in several)

    def write_part(self, part: PartOf, learned: bytes, folder: Path) -> Found:
        chosen = part_of(self.pieces, part)
        whole = self.located.format == "datasets" and any(chosen.values())
        chunks = self._dataset if whole else self._read(chosen)
        dropped = [piece for chunk in chunks for piece in chunk.dropped]
        return Found({"chunks": store_chunks(folder, chunks)}, dropped)

    def join(self, parts: Sequence[Path], folder: Path) -> Found:
        log = self._log()
        read = joined_dialogs([chunk for part in parts for chunk in stored_chunks(part)], log)
        require_dialogs(self.source, read, log)
        dialogs = [dialog for several in read.values() for dialog in several]
        if not self.force and (reason := nonsense(dialogs)):
            raise DataError(
                f"{self.source}: read as {self.located.format}, {reason}; name its format with "
                f"`dialog prepare … --format`, see {PAGE}, or add --force there if the content is correct"
            )
        splits = _split(read, self.source, self.options, self.located.format, log)
        for split, chosen in splits.items():
            write_split(folder / split, chosen)
        return Found(_report(self.located.format, splits, log, self.options), log.dropped)


def preparation(source: str, options: PrepareOptions, *, force: bool = False) -> DialogPreparation:
    """The preparation of a source; ``force`` accepts implausible content. Raises ConfigError or DataError."""
    made = DialogPreparation(source, options)
    made.force = force
    made.located  # noqa: B018  (errors before any work)
    return made


def prepare(
    source: str,
    out: Path,
    options: PrepareOptions = PrepareOptions(),
    *,
    force: bool = False,
    processes: int = 1,
) -> Prepared:
    """Read ``source`` and write ``out``, unless ``out`` already holds the result of this source and options.

    An older result of the same source, or one with other options, is replaced. The number of ``processes``
    does not affect the bytes. Raises ConfigError for bad options. Raises DataError for a bad source, or,
    without ``force``, for implausible content. Raises StorageError if ``out`` is something else or of another
    source, cannot be written, or is being written by another process.
    """
    return prepare_whole(preparation(source, options, force=force), out, processes)


def dataset_inputs(source: str, read: Mapping[str, Sequence[Dialog]]) -> dict[str, str]:
    """Manifest entry of a data set, which has no files: the SHA-256 of its dialogs."""
    return {source: hashlib.sha256(repr(read).encode()).hexdigest()}


def _split(
    read: Mapping[str, Sequence[Dialog]], source: str, options: PrepareOptions, format: str, log: InputLog
) -> dict[str, Sequence[Dialog]]:
    """Splits of a source. Missing ones are drawn from train, by a hash of seed, position and id."""
    if WHOLE not in read and "train" not in read:
        raise DataError(f"{source}: no train split; name its file train, or prepare only the unsplit file")
    given = {split: read[split] for split in SPLITS if split in read}
    dialogs = list(given.pop("train", read.get(WHOLE, [])))
    keys = [hashlib.sha256(f"{options.seed}:{n}:{d.id}".encode()).digest() for n, d in enumerate(dialogs)]
    order = sorted(range(len(dialogs)), key=keys.__getitem__)
    total = len(dialogs)
    fractions = {"test": options.test_fraction, "valid": options.valid_fraction}
    lacking = {split: share for split, share in fractions.items() if share and split not in given}
    sizes = {split: _size(total, share) for split, share in lacking.items()}
    if sum(sizes.values()) >= max(1, total):
        raise DataError(f"{source}: {_too_few(total, list(lacking.values()), format, log)}")
    for split, size in sizes.items():
        drawn, order = sorted(order[:size]), order[size:]
        given[split] = [dialogs[index] for index in drawn]
    given["train"] = [dialogs[index] for index in sorted(order)]
    return {split: given[split] for split in SPLITS if split in given}


def _size(total: int, fraction: float) -> int:
    """Number of dialogs in a split that is drawn from ``total`` dialogs."""
    return max(1, round(total * fraction))


def _too_few(total: int, fractions: Sequence[float], format: str, log: InputLog) -> str:
    """Error message for a source with too few dialogs for its splits, with the number that suffices."""
    least = next(n for n in count(1) if sum(_size(n, fraction) for fraction in fractions) < n)
    dialogs = "1 dialog is" if total == 1 else f"{total} dialogs are"
    after = f" {lost}" if (lost := skipped(log.dropped)) else ""
    return (
        f"{dialogs} too few to split{after}; at least {least} are needed;"
        f" {beginning_of_dialogs(format)}, so add more, or name a folder with files train, valid and test"
    )


def _report(
    format: str, splits: Mapping[str, Sequence[Dialog]], log: InputLog, options: PrepareOptions
) -> dict[str, Any]:
    described = {split: _describe(dialogs) for split, dialogs in splits.items()}
    words: dict[str, Any] = {}
    notes = _shared(splits)
    if kind := options.tokenizer:
        size, lowercase = options.vocab_size, options.lowercase
        codec = train_codec(splits["train"], kind, vocab_size=size, lowercase=lowercase)
        words = {"tokenizer": kind, "vocabulary_size": len(codec.vocabulary)}
        for split, dialogs in splits.items():
            described[split] |= _count_tokens(dialogs, codec)
        notes += _unknown(described, kind)
    return {
        "format": format,
        **words,
        "splits": described,
        "notes": notes,
        "dropped": dict(Counter(piece.reason for piece in log.dropped).most_common()),
    }


def _shared(splits: Mapping[str, Sequence[Dialog]]) -> list[str]:
    """Warnings about splits of which over 10 % of the dialogs are also in train."""
    known = {dialog.utterances for dialog in splits["train"]}
    shared = {
        split: sum(dialog.utterances in known for dialog in dialogs) for split, dialogs in splits.items()
    }
    return [
        f"warning: {shared[split]:,} of {len(dialogs):,} dialogs of {split} are also in train"
        for split, dialogs in splits.items()
        if split != "train" and 10 * shared[split] > len(dialogs)
    ]


def _unknown(described: Mapping[str, Mapping[str, Any]], kind: TokenizerKind) -> list[str]:
    """Warnings about splits with more unknown than known tokens, such as those in another language."""
    blanks = kind in ("wordpunct", "whitespace")
    other = "; text without blanks between words needs --tokenizer char, or data.tokenizer=char in a run"
    return [
        f"warning: {counts['oov_rate']:.0%} of the tokens of {split} are not in the vocabulary of train; "
        f"check its language and encoding{other if blanks else ''}"
        for split, counts in described.items()
        if split != "train" and counts["oov_rate"] > 0.5
    ]


def _describe(dialogs: Sequence[Dialog]) -> dict[str, Any]:
    """Counts of one split. ``contexts`` counts examples: all utterances except the last of each dialog."""
    utterances = sum(len(dialog.utterances) for dialog in dialogs)
    return {
        "dialogs": len(dialogs),
        "utterances": utterances,
        "contexts": utterances - len(dialogs),
        "topics": dict(Counter(dialog.topic for dialog in dialogs).most_common()),
    }


def _count_tokens(dialogs: Sequence[Dialog], codec: Codec) -> dict[str, Any]:
    """Counts of the tokens of one split, and its histogram of tokens per utterance."""
    encoded = [codec.encode(utterance.text) for dialog in dialogs for utterance in dialog.utterances]
    tokens = sum(map(len, encoded))
    (unk,) = codec.vocabulary.ids([UNK])
    unknown = sum(ids.count(unk) for ids in encoded)
    lengths = Counter(map(len, encoded))
    return {
        "tokens": tokens,
        "unknown_tokens": unknown,
        "oov_rate": unknown / max(1, tokens),
        "length_histogram": {str(length): lengths[length] for length in sorted(lengths)},
    }
