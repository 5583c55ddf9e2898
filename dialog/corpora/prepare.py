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
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from dialog.corpora.columns import ReadOptions
from dialog.corpora.corpus import Dialog, train_codec
from dialog.corpora.formats import PAGE
from dialog.corpora.nonsense import nonsense
from dialog.corpora.prepared import write_split
from dialog.corpora.sources import locate, read_located
from dialog.utterance import WHOLE
from lm.config.named_data import SPLITS
from lm.disk.storage import storage_errors
from lm.errors import DataError
from lm.text.lines import InputLog, OnBadLine
from lm.text.prepared_folder import OutputFolder, Prepared, hash_inputs, require_fractions
from lm.text.vocabulary import UNK, Codec, TokenizerKind

_FORMAT = 1  # version of the folder's format; a folder of another version is rebuilt


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """Options of reading, of splitting an unsplit source, and of token counts in the report.

    ``valid_fraction`` and ``test_fraction`` are shares of the dialogs, drawn with ``seed``, for splits that
    the source lacks. 0 = no such split.
    """

    read: ReadOptions = field(default_factory=ReadOptions)
    on_bad_line: OnBadLine = "error"
    valid_fraction: float = 0.05
    test_fraction: float = 0.05
    seed: int = 1
    tokenizer: TokenizerKind = "wordpunct"
    lowercase: bool = True
    vocab_size: int = 10_000

    def __post_init__(self) -> None:
        require_fractions(self.valid_fraction, self.test_fraction)


def prepare(
    source: str, out: Path, options: PrepareOptions = PrepareOptions(), *, force: bool = False
) -> Prepared:
    """Read ``source`` and write ``out``, unless ``out`` already holds the result of this source and options.

    An older result of the same source, or one with other options, is replaced. Raises ConfigError for bad
    options. Raises DataError for a bad source, or, without ``force``, for implausible content. Raises
    StorageError if ``out`` is something else or of another source, cannot be written, or is being written by
    another process.
    """
    log = InputLog(options.on_bad_line)
    located = locate(source, options.read, log)
    if located.format == "prepared":
        raise DataError(f"{source}: already prepared; name it, or one of its splits, in the config")
    folder = OutputFolder(out, "dialog prepare")
    paths = [path for files in located.files.values() for path in files]
    before = hash_inputs(paths)  # empty for a dataset
    wanted = {"format": _FORMAT, "source": source, "options": asdict(options), "inputs": before}
    if before and (current := folder.current(wanted)):
        return current
    read = read_located(located, options.read, log)
    if hash_inputs(paths) != before:
        raise DataError(f"{source}: changed during reading; run the same command again")
    if not force and (reason := nonsense([dialog for dialogs in read.values() for dialog in dialogs])):
        raise DataError(
            f"{source}: read as {located.format}, {reason}; choose another --format, "
            f"see {PAGE}, or add --force if the content is correct"
        )
    if not before:  # a data set, identified by its content
        wanted["inputs"] = dataset_inputs(source, read)
        if current := folder.current(wanted):
            return current
    with folder.alone():
        if current := folder.current(wanted):
            return current
        folder.require_replaceable(wanted)
        splits = _split(read, source, options)
        report = _report(located.format, splits, log, options)
        with folder.building() as building, storage_errors(folder.path):
            for split, dialogs in splits.items():
                write_split(building / split, dialogs)
            return folder.finish(building, wanted, report, log.dropped)


def dataset_inputs(source: str, read: Mapping[str, Sequence[Dialog]]) -> dict[str, str]:
    """Manifest entry of a data set, which has no files: the SHA-256 of its dialogs."""
    return {source: hashlib.sha256(repr(read).encode()).hexdigest()}


def _split(
    read: Mapping[str, Sequence[Dialog]], source: str, options: PrepareOptions
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
        raise DataError(f"{source}: {_too_few(total, list(lacking.values()))}")
    for split, size in sizes.items():
        drawn, order = sorted(order[:size]), order[size:]
        given[split] = [dialogs[index] for index in drawn]
    given["train"] = [dialogs[index] for index in sorted(order)]
    return {split: given[split] for split in SPLITS if split in given}


def _size(total: int, fraction: float) -> int:
    """Number of dialogs in a split that is drawn from ``total`` dialogs."""
    return max(1, round(total * fraction))


def _too_few(total: int, fractions: Sequence[float]) -> str:
    """Error message for a source with too few dialogs for its splits, with the number that suffices."""
    least = next(n for n in count(1) if sum(_size(n, fraction) for fraction in fractions) < n)
    dialogs = "1 dialog is" if total == 1 else f"{total} dialogs are"
    return (
        f"{dialogs} too few to split, at least {least} are needed; separate dialogs by a blank line in text "
        "(in chat exports a pause of over 6 hours does), or name a folder with files train, valid and test"
    )


def _report(
    format: str, splits: Mapping[str, Sequence[Dialog]], log: InputLog, options: PrepareOptions
) -> dict[str, Any]:
    codec = train_codec(
        splits["train"], options.tokenizer, vocab_size=options.vocab_size, lowercase=options.lowercase
    )
    return {
        "format": format,
        "tokenizer": options.tokenizer,
        "vocabulary_size": len(codec.vocabulary),
        "splits": {split: _describe(dialogs, codec) for split, dialogs in splits.items()},
        "notes": _notes(splits),
        "dropped": dict(Counter(piece.reason for piece in log.dropped).most_common()),
    }


def _notes(splits: Mapping[str, Sequence[Dialog]]) -> list[str]:
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


def _describe(dialogs: Sequence[Dialog], codec: Codec) -> dict[str, Any]:
    """Counts of one split. ``contexts`` counts examples: all utterances except the last of each dialog."""
    encoded = [codec.encode(utterance.text) for dialog in dialogs for utterance in dialog.utterances]
    tokens = sum(map(len, encoded))
    (unk,) = codec.vocabulary.ids([UNK])
    unknown = sum(ids.count(unk) for ids in encoded)
    lengths = Counter(map(len, encoded))
    return {
        "dialogs": len(dialogs),
        "utterances": len(encoded),
        "contexts": len(encoded) - len(dialogs),
        "tokens": tokens,
        "unknown_tokens": unknown,
        "oov_rate": unknown / max(1, tokens),
        "length_histogram": {str(length): lengths[length] for length in sorted(lengths)},
        "topics": dict(Counter(dialog.topic for dialog in dialogs).most_common()),
    }
