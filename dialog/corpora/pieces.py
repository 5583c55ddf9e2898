"""Pieces of a source that processes read independently, and the file with the dialogs of each piece.

Files of JSON lines are cut at line ends. Any other file is one piece, because its dialogs depend on earlier
lines. SwDA, pickles and data sets are one piece each.

::

    PART/dialogs.jsonl    JSON lines: the place of a piece, then its dialogs, one a line
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Self

from dialog.corpora.columns import ReadOptions
from dialog.corpora.json_items import is_json, parse_lines
from dialog.corpora.readers import Made, collect
from dialog.corpora.sources import OBJECT_READERS, Located, read_splits
from dialog.utterance import Dialog, Utterance
from lm.disk.regular import open_regular
from lm.text.lines import Dropped, InputLog, read_lines
from lm.text.parts import FileRange
from lm.text.prepared_folder import hash_inputs, read_report

_DIALOGS = "dialogs.jsonl"
_TOGETHER = ("swda", "pickle", "datasets")  # formats whose files are one piece


@dataclass(frozen=True, slots=True)
class Whole:
    """Files that are read together, by the part in which they begin; none for a data set."""

    files: tuple[Path, ...]
    here: bool = True

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files) + 1 if self.here else 0

    def cut(self, start: int, stop: int) -> Self:
        return type(self)(self.files, here=start == 0)


Piece = Whole | FileRange


@dataclass(slots=True)
class Chunk:
    """Dialogs of a piece for one split. ``file`` is set for a piece of objects, whose ids are not final."""

    split: str
    file: str
    made: list[Made]
    dropped: list[Dropped]


def pieces_of(located: Located) -> dict[str, list[Piece]]:
    """The pieces of each split, in reading order."""
    if located.format in _TOGETHER:
        return {split: [Whole(tuple(files))] for split, files in located.files.items()}
    return {split: [_piece(file, located.format) for file in files] for split, files in located.files.items()}


def _piece(file: Path, format: str) -> Piece:
    if format not in OBJECT_READERS:
        return Whole((file,))
    with open_regular(file) as stream:
        lines = read_lines(stream, str(file), InputLog("skip"))
        first = next((text for _, text in lines if text.strip()), "")
    by_line = is_json(first) and not first.lstrip().startswith("[")
    return FileRange(file, 0, file.stat().st_size) if by_line else Whole((file,))


def read_piece(
    piece: Piece, split: str, located: Located, options: ReadOptions, log: InputLog
) -> list[Chunk]:
    """Read a piece, which drops input only into its chunks."""
    if isinstance(piece, FileRange):
        own = InputLog(log.on_bad_line, log.command)
        reader, name = OBJECT_READERS[located.format], str(piece.path)
        with open_regular(piece.path) as stream:
            stream.seek(piece.start)
            lines = read_lines(stream, name, own, first=piece.first, size=piece.size)
            objects = parse_lines(lines, name, own, reader.keys, bare=reader.bare)
            made = list(reader.made(objects, name, own))
        return [Chunk(split, name, made, own.dropped)]
    own = InputLog(log.on_bad_line, log.command)
    found = read_splits(Located(located.source, located.format, {split: list(piece.files)}), options, own)
    chunks = [Chunk(name, "", [Made(0, True, d) for d in dialogs], []) for name, dialogs in found.items()]
    chunks[0].dropped = own.dropped
    return chunks


def inputs_of(pieces: Iterable[Piece]) -> dict[str, Any]:
    """Sizes and hashes of what pieces read; nothing for a data set."""
    found: dict[str, Any] = {}
    for piece in pieces:
        found |= piece.content() if isinstance(piece, FileRange) else hash_inputs(piece.files)
    return found


def joined_dialogs(chunks: Sequence[Chunk], log: InputLog) -> dict[str, list[Dialog]]:
    """Dialogs by split from the chunks of all parts in order; ``log`` gets what is dropped."""
    splits: dict[str, list[Dialog]] = {}
    for (split, file), group in groupby(chunks, key=lambda chunk: (chunk.split, chunk.file)):
        several = list(group)
        dialogs = splits.setdefault(split, [])
        own = InputLog(log.on_bad_line, log.command)
        own.dropped = [piece for chunk in several for piece in chunk.dropped]
        made = [one for chunk in several for one in chunk.made]
        if file:
            dialogs += collect(made, file, own)
            own.dropped.sort(key=lambda piece: piece.line)  # repeated ids among what was dropped before
        else:
            dialogs += [one.dialog for one in made if one.dialog]
        log.dropped += own.dropped
    return splits


def store_chunks(folder: Path, chunks: Sequence[Chunk]) -> list[Any]:
    """Write chunks without what was dropped. Return the report that :func:`stored_chunks` needs."""
    with (folder / _DIALOGS).open("x", encoding="utf-8") as file:
        for chunk in chunks:
            for line, own, dialog in chunk.made:
                fields = dialog and (
                    dialog.id,
                    dialog.topic,
                    [(u.speaker, u.text, u.act) for u in dialog.utterances],
                )
                file.write(json.dumps([line, own, fields], ensure_ascii=False) + "\n")
    return [[chunk.split, chunk.file, len(chunk.made), len(chunk.dropped)] for chunk in chunks]


def stored_chunks(folder: Path) -> Iterator[Chunk]:
    """Yield the chunks of a part. Raises StorageError."""
    report, dropped = read_report(folder)
    left = iter(dropped)
    with (folder / _DIALOGS).open(encoding="utf-8") as file:
        for split, name, count, lost in report["chunks"]:
            made = [_made(json.loads(next(file))) for _ in range(count)]
            yield Chunk(split, name, made, list(islice(left, lost)))


def _made(fields: Sequence[Any]) -> Made:
    line, own, dialog = fields
    if dialog is None:
        return Made(line, own, None)
    id, topic, utterances = dialog
    return Made(line, own, Dialog(id, topic, tuple(Utterance(*fields) for fields in utterances)))
