"""Detection of corpus layouts by name and content, and the pieces of their splits.

Names such as ``ptb.train.txt``, ``wiki.valid.tokens`` and ``test.txt`` identify the splits of a folder. So do
the two folders of the One Billion Word benchmark. ``enwik8`` and ``text8`` are one file of bytes. Splits that
are missing are cut from the end of the file or of train, because running text is not shuffled.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from lm.config.named_data import SPLIT_NAMES, SPLITS
from lm.config.places import wrong_kind
from lm.errors import DataError, require
from lm.language.corpora.pieces import (
    MAX_COPY,
    CopiesPiece,
    FilePiece,
    Piece,
    RowsPiece,
    TextForm,
    cut_file,
    whole_file,
)
from lm.text.hub import HUB, load_tables
from lm.text.lines import InputLog
from lm.text.prepared_folder import require_fractions

Format = Literal["auto", "text", "ptb", "ptb-char", "wikitext", "enwik8", "text8", "mwc", "1b", "datasets"]
COPIES = "reverse-copy"  # name of the synthetic source

_NAME = re.compile(rf"(?:(.+)[._-])?({'|'.join(SPLIT_NAMES)})(?:[._-](.+))?", re.IGNORECASE)
_ENDING = re.compile(r"\.?(?:txt|text|tokens|raw|gz|zip|bz2|xz)$", re.IGNORECASE)
_RECORDS = re.compile(r"\.(?:jsonl?|ndjson|csv|tsv|parquet|arrow)(?:\.(?:gz|zip|bz2|xz))?$", re.IGNORECASE)
_HEADING = re.compile(r" ?(?:= )+.+(?: =)+ ?")  # of an article or a section in WikiText
BYTES = ("enwik8", "text8")  # formats that are one file, read as bytes
_BYTE_SHARES = (0.9, 0.95)
_COPIES = (500_000, 10_000, 10_000)  # lines of each split (Melis et al. 2020, §4.3)
_WIKIPEDIAS = ("cs", "de", "en", "es", "fi", "fr", "ru")  # languages of the format mwc
_NAMED = 3  # files that a message names
_BILLION = ("training-monolingual*", "heldout-monolingual*")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for properties that names and content of a source do not show.

    ``language`` chooses among several corpora in one folder. The fractions are shares of the text, at its
    end, for missing splits; 0 makes no such split. ``text_column`` is for datasets. ``length``, ``vocab`` and
    ``seed`` are for synthetic sequences.
    """

    format: str = "auto"
    language: str = ""
    valid_fraction: float = 0.05
    test_fraction: float = 0.05
    text_column: str = "text"
    length: int = 50
    vocab: int = 1000
    seed: int = 1

    def __post_init__(self) -> None:
        known = ", ".join(get_args(Format))
        require(self.format in get_args(Format), f"--format {self.format}: must be one of {known}")
        require_fractions(self.valid_fraction, self.test_fraction)
        require(1 <= self.length <= MAX_COPY, f"--length {self.length}: must be from 1 to {MAX_COPY:,}")
        require(2 <= self.vocab <= MAX_COPY, f"--vocab {self.vocab}: must be from 2 to {MAX_COPY:,}")


@dataclass(frozen=True, slots=True)
class Located:
    """The format of a source, and the pieces of each split in reading order; a dataset has no files.

    ``records`` are files named after the same splits, which are not read since they hold records.
    """

    source: str
    format: str
    splits: Mapping[str, tuple[Piece, ...]]
    records: tuple[Path, ...] = ()

    @property
    def files(self) -> list[Path]:
        pieces = (piece for pieces in self.splits.values() for piece in pieces)
        return list(dict.fromkeys(piece.path for piece in pieces if isinstance(piece, FilePiece)))

    @property
    def cut(self) -> list[str]:
        """Splits that are cut from the corpus's own train split."""
        train, *others = (
            (split, {piece.path if isinstance(piece, FilePiece) else piece.name for piece in pieces})
            for split, pieces in self.splits.items()
        )
        return [split for split, origins in others if origins & train[1]]


def locate(source: str, options: ReadOptions) -> Located:
    """Find the splits of a source.

    DataError, with path and remedy, if there are none. ConfigError for an option without effect.
    """
    located = _located(source, options)
    _require_effect(located, options)
    return located


def _require_effect(located: Located, options: ReadOptions) -> None:
    """Raise ConfigError for an option that does nothing for sources of this kind."""
    source, format, usual = located.source, located.format, ReadOptions()
    whole = format in (*BYTES, COPIES, "1b")  # with splits of its own
    effective = {
        "format": format != COPIES,
        "language": Path(source).is_dir() and format not in (*BYTES, "1b"),
        "text_column": format == "datasets",
        **dict.fromkeys(("length", "vocab"), format == COPIES),
        **{
            f"{split}_fraction": not whole and (split in located.cut or split not in located.splits)
            for split in ("valid", "test")
        },
    }
    for name, reads in effective.items():
        given = getattr(options, name)
        option = f"--{name.replace('_', '-')} {given}"
        require(reads or given == getattr(usual, name), f"{option}: has no effect on {source}; leave it out")


def _located(source: str, options: ReadOptions) -> Located:
    if options.format == "datasets" or source.startswith(HUB):
        return _locate_dataset(source, options)
    if source == COPIES:
        return _made_up(options)
    path = Path(source)
    try:
        if path.is_dir():
            return _locate_folder(path, options)
        if not path.exists():
            raise DataError(f"{source}: no such file or folder; check the path, or call a dataset {HUB}NAME")
        return _locate_file(path, options)
    except OSError as error:
        raise DataError(f"{source}: cannot be read ({error.strerror}); check path and permissions") from error


def _made_up(options: ReadOptions) -> Located:
    """The reverse copy task, with independent random numbers for every split."""
    splits = {
        split: (
            CopiesPiece(f"{COPIES}:{split}", (options.seed, index), count, options.length, options.vocab),
        )
        for index, (split, count) in enumerate(zip(SPLITS, _COPIES, strict=True))
    }
    return Located(COPIES, COPIES, splits)


def _locate_file(path: Path, options: ReadOptions) -> Located:
    format = options.format
    if _holds_records(path, options):
        raise _no_text(path)
    if format == "auto":
        format = path.stem if path.stem in BYTES else _format_by_content(path)
    if format in BYTES:
        pieces = cut_file(path, "bytes", _BYTE_SHARES)
        return Located(
            str(path), format, {name: (piece,) for name, piece in zip(SPLITS, pieces, strict=True)}
        )
    return Located(str(path), format, _fill({"train": path}, _form(format), options))


def _form(format: str) -> TextForm:
    return "spelled" if format == "ptb-char" else "lines"


def _fill(files: Mapping[str, Path], form: TextForm, options: ReadOptions) -> dict[str, tuple[Piece, ...]]:
    """The pieces of the files, with missing splits cut from the end of train."""
    fractions = {"valid": options.valid_fraction, "test": options.test_fraction}
    wanted = [split for split, share in fractions.items() if share and split not in files]
    places = [1 - sum(fractions[split] for split in wanted[index:]) for index in range(len(wanted))]
    cut = cut_file(files["train"], form, places)
    found: dict[str, Piece] = dict(zip(["train", *wanted], cut, strict=True))
    found |= {split: whole_file(path, form) for split, path in files.items() if split != "train"}
    return {split: (found[split],) for split in SPLITS if split in found}


def _locate_folder(path: Path, options: ReadOptions) -> Located:
    """The only group of files named after splits in a folder, or the group that the options choose."""
    if (path / "manifest.json").exists() or (path / "split.json").exists():
        found = wrong_kind(path, "lm", "a text") or "is prepared already; name its splits in the config"
        raise DataError(f"{path}: {found}")
    training, heldout = (sorted(path.glob(pattern)) for pattern in _BILLION)
    if training and heldout and options.format in ("auto", "1b"):
        return _locate_billion(path, training[0], heldout[0])
    groups = _groups(path, options)
    if not groups:
        single = [
            path / name for name in BYTES if options.format in ("auto", name) and (path / name).exists()
        ]
        if len(single) == 1:
            return _locate_file(single[0], options)
        inner = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and _groups(entry, options))
        language = options.language or (inner[0] if len(inner) == 1 else "")
        if language in inner:
            format = _format_by_language(replace(options, language=language))
            return _locate_folder(path / language, replace(options, language="", format=format))
        if inner:
            raise _ambiguous(path, inner, options)
        for entry in sorted(path.iterdir()):
            if _holds_records(entry, options):
                raise _no_text(entry)
        raise DataError(
            f"{path}: a folder without known content; expected files named train, valid and test "
            "(ptb.train.txt, wiki.train.tokens, train.txt), enwik8 or text8; or name one file"
        )
    name = _choose(path, groups, options)
    files = groups[name]
    records = _record_splits(path, options)
    if missing := [entry for entry, split in records.items() if split not in files]:
        raise _no_text(*missing)
    if "train" not in files:
        found = ", ".join(file.name for file in files.values())
        raise DataError(f"{path}: has no train split, only {found}; add its file, named train.txt")
    format = options.format
    if format == "auto":
        format = _format_by_name(name, files["train"]) or _format_by_language(options)
        format = "text" if format == "auto" else format
    return Located(str(path), format, _fill(files, _form(format), options), tuple(records))


def _record_splits(folder: Path, options: ReadOptions) -> dict[Path, str]:
    """Files of records in a folder that are named after splits, and their splits."""
    found = {entry: _NAME.fullmatch(entry.name) for entry in sorted(folder.iterdir())}
    return {
        entry: SPLIT_NAMES[match[2].lower()]
        for entry, match in found.items()
        if match and _holds_records(entry, options)
    }


def _holds_records(path: Path, options: ReadOptions) -> bool:
    """True for a file of records such as JSON, by its name, unless ``--format`` says how to read it."""
    return options.format == "auto" and path.is_file() and bool(_RECORDS.search(path.name))


def _no_text(*paths: Path) -> DataError:
    names = ", ".join(map(str, paths[:_NAMED])) + (" and others" if paths[_NAMED:] else "")
    return DataError(
        f"{names}: {'holds' if len(paths) == 1 else 'hold'} records, not running text; prepare conversations"
        " with `dialog prepare`, read a column of other records with --format datasets --text-column, or the"
        " file as it is with --format text"
    )


def _groups(path: Path, options: ReadOptions) -> dict[str, dict[str, Path]]:
    """Files named after splits, by the rest of their name: ``ptb`` of ptb.train.txt, ``en`` of train.en."""
    groups: dict[str, dict[str, Path]] = {}
    for entry in sorted(path.iterdir()):
        match = _NAME.fullmatch(entry.name)
        if not match or entry.is_dir() or _holds_records(entry, options):
            continue
        before, split, after = match.groups(default="")
        name = ".".join(filter(None, (before, _ENDING.sub("", after))))
        files, split = groups.setdefault(name, {}), SPLIT_NAMES[split.lower()]
        if split in files:
            raise DataError(
                f"{path}: {files[split].name} and {entry.name} both are the split {split}; remove one"
            )
        files[split] = entry
    return groups


def _choose(folder: Path, groups: Mapping[str, Mapping[str, Path]], options: ReadOptions) -> str:
    """Choose a corpus of a folder: the only one, the one that ``--language`` names, or words for PTB.

    Files that are named after splits alone, as train.txt, come before others, and files of a name without
    any for training are no corpus beside those that have one.
    """
    names = sorted(name for name, files in groups.items() if "train" in files) or sorted(groups)
    if "" in names and not options.language:
        return ""
    spelled = [name for name in names if name.endswith("char")]
    if options.format == "ptb-char" and len(spelled) == 1:
        return spelled[0]
    if options.language:
        names = [name for name in names if name == options.language]
    if len(names) == 1:
        return names[0]
    if "ptb" in names and options.format in ("auto", "ptb"):
        return "ptb"
    raise _ambiguous(folder, sorted(groups), options)


def _ambiguous(folder: Path, names: Sequence[str], options: ReadOptions) -> DataError:
    found = ", ".join(name or "(no name)" for name in names)
    if options.language:
        return DataError(f"{folder}: has no {options.language}; --language takes one of {found}")
    return DataError(f"{folder}: holds several corpora; choose one of {found} with --language")


def _format_by_name(name: str, train: Path) -> str:
    if name == "ptb":
        return "ptb"
    if name == "wiki" and not train.name.endswith(".raw"):
        return "wikitext"
    found = _format_by_content(train)
    return "" if found == "text" else found


def _format_by_language(options: ReadOptions) -> str:
    """The given format, or ``mwc`` if it is detected and ``--language`` is one of that corpus."""
    return "mwc" if options.format == "auto" and options.language in _WIKIPEDIAS else options.format


def _format_by_content(path: Path) -> str:
    """``wikitext`` if the text begins with a heading, ``ptb-char`` if words are spelled, else ``text``."""
    lines = whole_file(path, "lines").lines(InputLog("skip"))
    first = next((line.text for line in lines if line.text.strip()), "")
    letters = first.split()
    if "_" in letters and len(letters) > 3 and all(len(letter) == 1 for letter in letters):
        return "ptb-char"
    return "wikitext" if _HEADING.fullmatch(first) else "text"


def is_spelled(path: Path) -> bool:
    """True if a file has the layout of the character-level Penn Treebank."""
    return _format_by_content(path) == "ptb-char"


def _locate_billion(path: Path, training: Path, heldout: Path) -> Located:
    """One Billion Word: 99 files for train; of the 50 held out the first for test, the second for valid."""
    train, rest = (
        sorted(entry for entry in folder.iterdir() if entry.name.startswith("news.en"))
        for folder in (training, heldout)
    )
    if not train or len(rest) < 2:
        raise DataError(
            f"{path}: lacks files news.en-*-of-00100 or news.en.heldout-*-of-00050; unpack it again"
        )
    files = {"train": train, "valid": rest[1:2], "test": rest[:1]}
    return Located(
        str(path), "1b", {split: tuple(whole_file(p, "lines") for p in files[split]) for split in SPLITS}
    )


def _locate_dataset(source: str, options: ReadOptions) -> Located:
    """A dataset on disk or from the hub, see :func:`lm.text.hub.load_tables`."""
    tables = {key or "train": table for key, table in load_tables(source).items()}
    found = {SPLIT_NAMES[key]: table for key, table in tables.items() if key in SPLIT_NAMES}
    if "train" not in found:
        raise DataError(f"{source}: has no train split, only {', '.join(tables)}; name another data set")
    for split, table in found.items():
        if options.text_column not in table.column_names:
            columns = ", ".join(table.column_names)
            raise DataError(
                f"{source}:{split}: no column {options.text_column}; name one of {columns} with --text-column"
            )
    pieces: dict[str, tuple[Piece, ...]] = {}
    stop = len(found["train"])
    total = stop
    for split, share in (("test", options.test_fraction), ("valid", options.valid_fraction)):
        if split in found or not share:
            continue
        start = stop - max(1, round(total * share))
        if start < 1:
            raise DataError(f"{source}: {total} rows are too few to split; add some")
        pieces[split] = (RowsPiece(f"{source}:train", found["train"], options.text_column, start, stop),)
        stop = start
    for split, table in found.items():
        end = stop if split == "train" else len(table)
        pieces[split] = (RowsPiece(f"{source}:{split}", table, options.text_column, 0, end),)
    return Located(source, "datasets", {split: pieces[split] for split in SPLITS if split in pieces})
