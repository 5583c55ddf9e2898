"""Tables with named columns: local parquet files and anything that the ``datasets`` library opens."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from dialog.readers import Turn, group_turns, make_dialog
from dialog.utterance import SPLIT_NAMES, WHOLE, Dialog
from lm.errors import DataError
from lm.lines import InputLog, open_regular, visible

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a source's content does not say: its format, and the columns of parquet and datasets.

    ``text_column`` may hold one utterance a row, or the list of a whole dialog's utterances, as strings or
    as structures whose fields are named like the columns.
    """

    format: str = "auto"
    dialog_column: str = "dialog"
    speaker_column: str = "speaker"
    text_column: str = "text"
    act_column: str = "act"


def read_parquet(path: Path, options: ReadOptions, log: InputLog) -> list[Dialog]:
    """Dialogs of a parquet file; DataError where it is damaged or lacks a column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = visible(path)
    try:
        with open_regular(path) as stream:
            file = pq.ParquetFile(stream)
            columns = file.schema_arrow.names
            wanted = [column for column in _columns(options) if column in columns]
            _require(name, columns, options)
            rows = (row for batch in file.iter_batches(columns=wanted) for row in batch.to_pylist())
            return _read_rows(rows, str(path), path.stem, options, log)
    except (pa.ArrowException, OSError) as error:
        detail = visible(" ".join(str(error).split())[:200])
        raise DataError(f"{name}: not a readable parquet file ({detail}); write it again") from error


def read_dataset(source: str, options: ReadOptions, log: InputLog) -> dict[str, list[Dialog]]:
    """Dialogs of a folder that ``save_to_disk`` wrote, or of what ``load_dataset`` finds under the name."""
    import datasets

    name = visible(source)
    stored = any((Path(source) / file).is_file() for file in ("state.json", "dataset_dict.json"))
    try:
        loaded = datasets.load_from_disk(source) if stored else datasets.load_dataset(source)
    except Exception as error:  # network, hub, file formats: the library raises what it likes
        detail = visible(" ".join(str(error).split())[:200])
        raise DataError(
            f"{name}: datasets cannot load it ({detail}); check name, network and format"
        ) from error
    parts = dict(loaded) if isinstance(loaded, dict) else {WHOLE: loaded}
    splits: dict[str, list[Dialog]] = {}
    for part, dataset in parts.items():
        split = part if part == WHOLE else SPLIT_NAMES.get(str(part), "")
        if part != WHOLE and (not split or split in splits):
            log.drop(f"{source}:{part}", 0, "a split that is not train, valid or test")
            continue
        _require(f"{name}:{part}", dataset.column_names, options)
        splits[split] = _read_rows(dataset, f"{source}:{part}", split or "dialog", options, log)
    if not splits:
        raise DataError(
            f"{name}: its splits are {visible(', '.join(map(str, parts)))}; expected train, valid, test"
        )
    return splits


def _columns(options: ReadOptions) -> tuple[str, ...]:
    return options.dialog_column, options.speaker_column, options.text_column, options.act_column


def _require(name: str, columns: Sequence[str], options: ReadOptions) -> None:
    if options.text_column not in columns:
        found = visible(", ".join(columns))
        raise DataError(
            f"{name}: no column {visible(options.text_column)}; name one of {found} by --text-column"
        )


def _read_rows(
    rows: Iterable[Row], name: str, stem: str, options: ReadOptions, log: InputLog
) -> list[Dialog]:
    """A row is an utterance if its text is a string, a dialog if it is a list; the first row decides."""
    numbered = enumerate(rows, 1)
    first = next(numbered, None)
    if first is None:
        return []
    rest = chain([first], numbered)
    if isinstance(first[1][options.text_column], list):
        made = (_whole_dialog(row, number, name, stem, options, log) for number, row in rest)
        return [dialog for dialog in made if dialog is not None]
    for column, option in ((options.dialog_column, "dialog"), (options.speaker_column, "speaker")):
        if column not in first[1]:
            found = visible(", ".join(first[1]))
            raise DataError(
                f"{visible(name)}: no column {visible(column)}; name one of {found} by --{option}-column"
            )
    return group_turns(_turns(rest, options), name, log)


def _turns(rows: Iterable[tuple[int, Row]], options: ReadOptions) -> Iterator[tuple[Any, Turn]]:
    for number, row in rows:
        act = row.get(options.act_column)
        yield (
            row[options.dialog_column],
            Turn(number, row[options.speaker_column], row[options.text_column], act),
        )


def _whole_dialog(
    row: Row, number: int, name: str, stem: str, options: ReadOptions, log: InputLog
) -> Dialog | None:
    """A dialog from a row of lists; without a list of speakers A and B take turns."""
    texts = row[options.text_column]
    if not isinstance(texts, list):
        log.bad(name, number, "the text is no list, unlike that of the first row", "mend the row")
        return None
    speakers, acts = row.get(options.speaker_column), row.get(options.act_column)
    for column in (speakers, acts):
        if isinstance(column, list) and len(column) != len(texts):
            log.bad(name, number, "lists of different lengths", "give every utterance a speaker and an act")
            return None
    turns = []
    for index, text in enumerate(texts):
        speaker = speakers[index] if isinstance(speakers, list) else "AB"[index % 2]
        act = acts[index] if isinstance(acts, list) else ""
        if isinstance(text, dict):
            speaker = text.get(options.speaker_column, speaker)
            act = text.get(options.act_column, act)
            text = text.get(options.text_column, text.get("text"))
        turns.append(Turn(number, speaker, text, act))
    id = row.get(options.dialog_column) if options.dialog_column != options.text_column else None
    return make_dialog(name, number, f"{stem}:{number - 1}" if id is None else id, "", turns, log)
