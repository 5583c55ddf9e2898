"""Source reading: detect the format by content, find the files of each split, read the dialogs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dialog.corpora.columns import KINDS, ReadOptions, require_columns
from dialog.corpora.detection import FirstLines, detect
from dialog.corpora.formats import DETECTED, FORMATS, PAGE
from dialog.corpora.json_texts import QUESTIONS, read_discord, read_telegram
from dialog.corpora.listed import CHATS, OBJECTS
from dialog.corpora.logs import read_irc, read_srt, read_whatsapp
from dialog.corpora.prepared import is_prepared, read_split
from dialog.corpora.ranking import read_eou, read_ranking
from dialog.corpora.readers import ZHAO, read_pipes, read_text, read_tsv, read_turns
from dialog.corpora.swda import read_swda
from dialog.corpora.tables import columns_of, read_csv, read_dataset, read_parquet
from dialog.corpora.unpickle import read_pickle
from dialog.utterance import WHOLE, Dialog
from lm.config.named_data import SPLIT_NAMES, SPLITS, missing
from lm.config.places import wrong_kind
from lm.disk.regular import open_regular
from lm.errors import ConfigError, DataError, require, visible
from lm.text.hub import HUB
from lm.text.lines import InputLog, NumberedLine, read_lines, skipped

SMALLTALK = "smalltalk:"  # before the split of the generated corpus
OBJECT_READERS = {"zhao": ZHAO, "dialogs": OBJECTS, "messages": CHATS, "pairs": QUESTIONS}
TEXT_READERS: dict[str, Callable[[Iterable[NumberedLine], str, InputLog], list[Dialog]]] = {
    **{name: reader.read for name, reader in OBJECT_READERS.items()},
    "turns": read_turns,
    "tsv": read_tsv,
    "text": read_text,
    "pipes": read_pipes,
    "telegram": read_telegram,
    "discord": read_discord,
    "whatsapp": read_whatsapp,
    "irc": read_irc,
    "srt": read_srt,
    "ranking": read_ranking,
    "eou": read_eou,
}
_TABLES = ("csv", "parquet", "datasets")  # formats with named columns
_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".txt", ".log", ".srt", ".parquet")
_MANY = ("pipes", "whatsapp", "irc", "srt")  # formats with many files in one folder
_OF_MANY = (".txt", ".log", ".srt")  # suffixes of these files
_SHOWN = 200  # characters of the keys of an unknown format


@dataclass(frozen=True, slots=True)
class Located:
    """Format of a source and the files of each split. An unsplit source has the single key ``""``."""

    source: str
    format: str
    files: dict[str, list[Path]]


def locate(source: str, options: ReadOptions, log: InputLog) -> Located:
    """Find a source's files and format.

    Raises ConfigError for an unknown ``--format``, and for a column of a format without named columns.
    DataError for a missing, unreadable or unknown source, and for a column that none of its files has.
    """
    located = _located(source, options, log)
    for kind in (*KINDS, "act"):
        column = getattr(options, f"{kind}_column")
        named = column == kind or located.format in _TABLES
        require(named, f"--{kind}-column {column}: {located.format} has no named columns; leave it out")
    if located.format in ("csv", "parquet") and options != ReadOptions(options.format):
        own = InputLog(log.on_bad_line, log.command)
        files = (file for several in located.files.values() for file in several)
        known = (name for file in files for name in columns_of(file, located.format, options, own))
        require_columns(source, dict.fromkeys(known), options)
    return located


def _located(source: str, options: ReadOptions, log: InputLog) -> Located:
    if options.format not in FORMATS:
        raise ConfigError(f"--format {options.format}: must be one of {', '.join(FORMATS)}")
    if options.format == "datasets" or source.startswith(HUB):
        return Located(source, "datasets", {WHOLE: []})
    path = Path(source)
    try:
        if path.is_dir():
            return _locate_folder(path, options.format, log)
        if source.startswith(SMALLTALK):
            raise DataError(f"{source}: is made by the program; name it with --set data.train={source}")
        if not path.exists():
            raise missing(source, "dialog prepare")
    except OSError as error:
        raise DataError(f"{source}: cannot be read ({error.strerror}); check path and permissions") from error
    return Located(source, _format_of(path, options.format, log), {WHOLE: [path]})


def _format_of(path: Path, wanted: str, log: InputLog) -> str:
    return detect_format(path, log) if wanted == "auto" else wanted


def _locate_folder(path: Path, wanted: str, log: InputLog) -> Located:
    """Files of a folder: a prepared one, the SwDA release, a file or folder per split, a file per dialog."""
    source, entries = str(path), sorted(path.iterdir())
    names = {entry.name for entry in entries}
    if wanted in ("auto", "prepared"):
        if is_prepared(path):
            return Located(source, "prepared", {WHOLE: [path]})
        if all(is_prepared(path / split) for split in SPLITS):
            return Located(source, "prepared", {split: [path / split] for split in SPLITS})
        if "dataset_info.json" in names:
            raise DataError(
                f"{source}: a data set saved by `datasets`; run `dialog prepare` with "
                "--format datasets and its column names"
            )
    if wanted in ("auto", "swda"):
        tables = [file for depth in ("", "*/", "*/*/") for file in path.glob(depth + "*.utt.csv")]
        metadata = [file for depth in ("", "*/") for file in path.glob(depth + "swda-metadata.csv")]
        if tables:
            return Located(source, "swda", {WHOLE: sorted(metadata) + sorted(tables)})
    splits: dict[str, list[Path]] = {}
    for entry in entries:
        split = SPLIT_NAMES.get(entry.stem.lower())
        is_file = entry.suffix in _SUFFIXES and not entry.is_dir()
        files = [entry] if is_file else _of_many(entry.iterdir()) if split and entry.is_dir() else []
        if split is None or not files:
            continue
        if split in splits:
            raise DataError(
                f"{source}: both {splits[split][0].name} and {entry.name} are the split {split}; remove one"
            )
        splits[split] = files
    if splits:
        splits = {split: splits[split] for split in SPLITS if split in splits}
        return Located(source, _common_format(splits, wanted, log), splits)
    files = _of_many(entries)
    if files and (format := _format_of(files[0], wanted, log)) in _MANY:
        return Located(source, format, {WHOLE: files})
    if found := wrong_kind(path, "dialog", "conversations"):
        raise DataError(f"{source}: {found}; or name conversations, as in {PAGE}")
    if empty := [entry for entry in entries if entry.name.lower() in SPLIT_NAMES and entry.is_dir()]:
        raise DataError(
            f"{empty[0]}: no files of {' or '.join(_OF_MANY)} in the folder of this split; add them"
        )
    raise DataError(
        f"{source}: no known files in the folder; expected *.utt.csv, files or folders named "
        f"train, valid and test, or files of {', '.join(_MANY)}; or name one file; for texts that are no"
        " conversations, use `lm prepare`"
    )


def _of_many(entries: Iterable[Path]) -> list[Path]:
    """The files of a format with many files, in order."""
    return sorted(entry for entry in entries if entry.suffix in _OF_MANY)


def _common_format(splits: dict[str, list[Path]], wanted: str, log: InputLog) -> str:
    """The format of all files. Of formats with many files only the first file of a split is looked at."""
    first, *others = (file for files in splits.values() for file in files)
    format = _format_of(first, wanted, log)
    heads = {files[0] for files in splits.values()}
    for file in others:
        if file in heads or format not in _MANY:
            other = _format_of(file, wanted, log)
            if other != format:
                raise DataError(
                    f"{file}: format is {other}, but {first.name} is {format};"
                    " convert all files to one format, or keep those of one"
                )
    return format


def detect_format(path: Path, log: InputLog) -> str:
    """Detect the format of a file from its first bytes or lines. Raises DataError if it is unknown."""
    name = str(path)
    with open_regular(path) as stream:
        head = stream.read(4)
        stream.seek(0)
        if head == b"PAR1":
            return "parquet"
        if head == b"PK\x03\x04" or path.name.endswith(".utt.csv"):
            return "swda"
        if head[:1] == b"\x80" or path.suffix in (".p", ".pkl", ".pickle"):
            return "pickle"
        begin = FirstLines.of(read_lines(stream, name, InputLog(log.on_bad_line)), path.suffix)
    if not begin.lines:
        raise DataError(f"{name}: no text in the file; export it again")
    if begin.first.startswith("WEBVTT"):
        raise DataError(f"{name}: subtitles in WebVTT; convert them to SRT, as with `ffmpeg -i FILE out.srt`")
    if format := detect(begin):
        return format
    keys = begin.keys if begin.first.lstrip().startswith("{") else ()
    found = f" (keys {visible(', '.join(sorted(keys))[:_SHOWN])})" if keys else ""
    raise DataError(
        f"{name}: format not recognised{found}; convert it to a format in {PAGE}, or name it with"
        f" `dialog prepare … --format`: {', '.join(DETECTED)}"
    )


def read_source(source: str, options: ReadOptions, log: InputLog) -> dict[str, list[Dialog]]:
    """Read the dialogs of every split of a source. An unsplit source has the single key ``""``.

    Raises DataError, naming file, line and remedy, for unreadable input, and if a split has no dialog.
    """
    return read_located(locate(source, options, log), options, log)


def read_located(located: Located, options: ReadOptions, log: InputLog) -> dict[str, list[Dialog]]:
    """Read the dialogs of a source that :func:`locate` found."""
    splits = read_splits(located, options, log)
    require_dialogs(located.source, splits, log)
    return splits


def require_dialogs(source: str, splits: Mapping[str, Sequence[Dialog]], log: InputLog) -> None:
    """Raise DataError for a split without a dialog."""
    for split, dialogs in splits.items():
        if not dialogs:
            what = f" {split} split of" if split else ""
            after = f" {lost}" if (lost := skipped(log.dropped)) else ""
            raise DataError(f"{source}: no dialog in the{what} source{after}; check its format")


def read_splits(located: Located, options: ReadOptions, log: InputLog) -> dict[str, list[Dialog]]:
    """Read the dialogs of a source, which may have none."""
    if located.format == "pickle":
        return read_pickle(located.files[WHOLE][0], log)
    if located.format == "datasets":
        return read_dataset(located.source, options, log)
    return {split: _read_files(located.format, files, options, log) for split, files in located.files.items()}


def _read_files(format: str, files: list[Path], options: ReadOptions, log: InputLog) -> list[Dialog]:
    if format == "swda":
        return read_swda(files, log)
    if format == "parquet":
        return [dialog for file in files for dialog in read_parquet(file, options, log)]
    if format == "prepared":
        return [dialog for folder in files for dialog in read_split(folder)]
    dialogs: list[Dialog] = []
    for file in files:
        with open_regular(file) as stream:
            lines = read_lines(stream, str(file), log)
            if format == "csv":
                dialogs += read_csv(lines, str(file), options, log)
            else:
                dialogs += TEXT_READERS[format](lines, str(file), log)
    return dialogs
