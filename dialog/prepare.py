"""``dialog prepare``: any source → one folder with the splits, a report, and every piece that was left out.

::

    OUT/train/ valid/ test/   Arrow, see dialog/prepared.py
    OUT/report.json           counts, vocabulary, out-of-vocabulary rates, lengths, topics, what was left out
    OUT/dropped.jsonl         one object for each piece left out: file, line, reason, excerpt
    OUT/manifest.json         options, and size and SHA-256 of every file that was read and written

The same input and options give the same bytes. The folder appears by rename, so it is there as a whole or
not at all.
"""

import errno
import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, cast

from dialog.corpus import Dialog, train_codec
from dialog.lines import InputLog, OnBadLine, open_regular
from dialog.prepared import write_split
from dialog.sources import Located, ReadOptions, locate, read_located
from dialog.utterance import SPLITS, WHOLE
from lm.errors import ConfigError, DataError, StorageError
from lm.storage import move, publish_folder, read_json, remove_tree, sha256_file, shown, storage_errors, sync
from lm.text import Codec, TokenizerKind

_FORMAT = 1  # of the folder; another number is rebuilt


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """How to read, to split where the source has no split, and to count tokens for the report.

    ``valid_fraction`` and ``test_fraction`` are shares of the dialogs, drawn by ``seed``, for splits that the
    source lacks; 0 makes no such split.
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
        for name, value in (("valid", self.valid_fraction), ("test", self.test_fraction)):
            if not 0 <= value < 1:
                raise ConfigError(f"--{name}-fraction {value}: must be at least 0 and below 1")
        if self.valid_fraction + self.test_fraction >= 1:
            raise ConfigError("--valid-fraction and --test-fraction leave nothing to train on; lower them")


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is in the folder; ``unchanged`` where it was there already, from the same input and options."""

    folder: Path
    report: Mapping[str, Any]
    unchanged: bool


def prepare(source: str, out: Path, options: PrepareOptions = PrepareOptions()) -> Prepared:
    """Read ``source`` and write ``out``, unless it holds the result of just that already.

    A result of other input or options is replaced. ConfigError for options, DataError for the source,
    StorageError where ``out`` is something else, cannot be written, or is being written by another process.
    """
    log = InputLog(options.on_bad_line)
    located = locate(source, options.read, log)
    if located.format == "prepared":
        raise DataError(f"{shown(source)}: is prepared already; name it, or one of its splits, in the config")
    manifest = _read_manifest(out)
    before = _fingerprint(located)
    wanted = {"format": _FORMAT, "source": source, "options": asdict(options), "inputs": before}
    if before and _is_current(out, manifest, wanted):
        return Prepared(out, _report_of(out), unchanged=True)
    read = read_located(located, options.read, log)
    if _fingerprint(located) != before:
        raise DataError(f"{shown(source)}: changed while it was read; run the same command again")
    if not before:  # a dataset, known by what it holds
        wanted["inputs"] = {source: hashlib.sha256(repr(read).encode()).hexdigest()}
        if _is_current(out, manifest, wanted):
            return Prepared(out, _report_of(out), unchanged=True)
    splits = _split(read, source, options)
    report = _report(located.format, splits, log, options)
    with _building(out) as folder, storage_errors(folder):
        for split, dialogs in splits.items():
            write_split(folder / split, dialogs)
        (folder / "report.json").write_bytes(_json(report, indent=1))
        (folder / "dropped.jsonl").write_bytes(b"".join(_json(asdict(piece)) for piece in log.dropped))
        manifest = {**wanted, "outputs": _files(folder)}
        (folder / "manifest.json").write_bytes(_json(manifest, indent=1))
    return Prepared(out, report, unchanged=False)


def _json(value: object, indent: int | None = None) -> bytes:
    return (json.dumps(value, indent=indent) + "\n").encode()


def _fingerprint(located: Located) -> dict[str, Any]:
    """Size and SHA-256 of every file of a source; empty for a dataset. DataError where one cannot be read."""
    found = {}
    for path in chain.from_iterable(located.files.values()):
        with open_regular(path) as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            found[str(path)] = {"size": stream.tell(), "sha256": digest}
    return found


def _files(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, but for the manifest."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in paths}


def _read_manifest(out: Path) -> dict[str, Any] | None:
    """The manifest of an earlier result; None where there is nothing. StorageError for anything else."""
    foreign = StorageError(
        f"{shown(out)}: exists and was not written by `dialog prepare`; choose another --out"
    )
    with storage_errors(out):
        if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
            return None
        if not (out / "manifest.json").is_file():
            raise foreign
    value = read_json(out / "manifest.json")
    if not isinstance(value, dict) or not {"format", "source", "options", "inputs", "outputs"} <= set(value):
        raise foreign
    return dict(value)


def _is_current(out: Path, manifest: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> bool:
    """Whether ``out`` is whole and was made from the wanted input and options."""
    return manifest is not None and manifest == {**wanted, "outputs": _files(out)}


def _report_of(out: Path) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], read_json(out / "report.json"))  # its SHA-256 has just been verified


@contextmanager
def _building(out: Path) -> Iterator[Path]:
    """An empty folder beside ``out`` that takes its place if the body ends well, and vanishes if not."""
    out = Path(os.path.abspath(out))
    tmp, old = out.with_name(f".{out.name}.tmp"), out.with_name(f".{out.name}.old")
    with storage_errors(out):
        tmp.mkdir(parents=True, exist_ok=True)
        lock = os.open(tmp, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise StorageError(
                    f"{shown(out)}: cannot be locked ({error.strerror}); choose another --out"
                ) from error
            raise StorageError(
                f"{shown(out)}: another `dialog prepare` is writing it; wait for it"
            ) from error
        for rest in (old, *sorted(tmp.iterdir())):  # of a process that was killed
            remove_tree(rest)
        try:
            yield tmp
            for path in sorted(tmp.rglob("*"), reverse=True):  # a folder after what is in it
                sync(path)
            if out.exists():
                move(out, old)
            publish_folder(tmp, out)
        except BaseException:
            if old.exists() and not out.exists():
                move(old, out)
            remove_tree(tmp)
            raise
        remove_tree(old)
    finally:
        os.close(lock)


def _split(
    read: Mapping[str, Sequence[Dialog]], source: str, options: PrepareOptions
) -> dict[str, Sequence[Dialog]]:
    """The source's own splits; those it lacks are drawn from train, by a hash of seed, position and id."""
    if WHOLE not in read and "train" not in read:
        raise DataError(f"{shown(source)}: has no train split; name its file train, or give the file alone")
    given = {split: read[split] for split in SPLITS if split in read}
    dialogs = list(given.pop("train", read.get(WHOLE, [])))
    keys = [hashlib.sha256(f"{options.seed}:{n}:{d.id}".encode()).digest() for n, d in enumerate(dialogs)]
    order = sorted(range(len(dialogs)), key=keys.__getitem__)
    total = len(dialogs)
    for split, fraction in (("test", options.test_fraction), ("valid", options.valid_fraction)):
        if split in given or fraction == 0:
            continue
        size = max(1, round(total * fraction))
        if size >= len(order):
            raise DataError(
                f"{shown(source)}: {total} dialogs are too few to split; add some or name its splits"
            )
        drawn, order = sorted(order[:size]), order[size:]
        given[split] = [dialogs[index] for index in drawn]
    given["train"] = [dialogs[index] for index in sorted(order)]
    return {split: given[split] for split in SPLITS if split in given}


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
        "dropped": dict(Counter(piece.reason for piece in log.dropped).most_common()),
    }


def _describe(dialogs: Sequence[Dialog], codec: Codec) -> dict[str, Any]:
    """Counts of one split; ``contexts`` are the examples: all utterances but each dialog's last."""
    encoded = [codec.encode(utterance.text) for dialog in dialogs for utterance in dialog.utterances]
    tokens = sum(map(len, encoded))
    unknown = sum(ids.count(codec.vocabulary.unk) for ids in encoded)
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
