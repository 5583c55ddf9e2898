"""Readers of tables with named columns: CSV, parquet and data sets of the ``datasets`` library."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dialog.corpora.columns import (
    KINDS,
    ReadOptions,
    dialect_of,
    find_columns,
    list_name,
    no_column,
    records,
    require_columns,
    usual,
)
from dialog.corpora.json_texts import pair_dialog, pair_of, pair_turns
from dialog.corpora.listed import listed_dialog
from dialog.corpora.ranking import is_ranking, ranking_dialogs
from dialog.corpora.readers import RawUtterance, collect, distinct, group_turns, join_lines, made_of
from dialog.corpora.replies import link_of
from dialog.corpora.scripts import script_columns, utterances_of
from dialog.corpora.timed import read_messages, time_columns
from dialog.utterance import WHOLE, Dialog
from lm.config.named_data import SPLIT_NAMES
from lm.disk.regular import open_regular
from lm.errors import DataError, brief, visible
from lm.text.hub import load_tables
from lm.text.lines import InputLog, NumberedLine, read_lines

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

TableRow = dict[str, Any]
_SAMPLE = 100  # rows of which one may show that a column has scripts
_SHOWN = 40  # characters of a first line of Excel
_EXCEL = re.compile('"?sep=(.*?)"?', re.IGNORECASE)  # first line of a file, with the delimiter


def read_csv(lines: Iterable[NumberedLine], name: str, options: ReadOptions, log: InputLog) -> list[Dialog]:
    """Read a CSV file with a header. A row is an utterance, a question with its answer, or a ranked response.

    Line breaks in a text become spaces. Raises DataError, listing the columns, if the dialog, speaker or text
    column is missing.
    """
    start, header, rows = _open_csv(lines, name, options, log)
    if not header:
        return []
    if is_ranking(header):
        return ranking_dialogs(chain([(start, header)], rows), name, log)  # a ranking may lack a header
    named = _named_rows(rows, name, header, script_columns(header, options), log)
    return _read_rows(named, name, Path(name).stem, options, log, header)


def _open_csv(
    lines: Iterable[NumberedLine], name: str, options: ReadOptions, log: InputLog
) -> tuple[int, list[str], Iterator[tuple[int, list[str]]]]:
    """Line number and columns of the header of a CSV file, and its other records. No columns without text.

    Delimiter and quote character are detected from the header, or the delimiter is that of Excel's first line
    ``sep=;``. Raises DataError for a header that is none, and for a first line of Excel without a delimiter.
    """
    rest = iter(lines)
    filled = (line for line in rest if line[1].strip())
    first = next(filled, None)
    stated = _EXCEL.fullmatch(first[1]) if first else None
    if first and stated and len(stated[1]) != 1:
        raise DataError(
            f"{name}:{first[0]}: {visible(first[1][:_SHOWN])} names no single delimiter; write one character "
            "after sep=, or remove the line"
        )
    first = next(filled, None) if stated else first
    if first is None:
        return 0, [], iter(())
    dialect = dialect_of(first[1])
    dialect = dialect._replace(delimiter=stated[1]) if stated else dialect
    rows = records(chain([first], rest), name, log, dialect)
    start, header = next(rows, (0, []))
    if not is_ranking(header):
        _require_header(header, name, start, options)
    return start, header, rows


def _require_header(columns: list[str], name: str, line: int, options: ReadOptions) -> None:
    """Raise DataError if the first line of a table names none of the known columns, or two alike."""
    asked = {options.dialog_column, options.speaker_column, options.text_column}
    known = asked.intersection(columns) or any(usual(kind, columns) for kind in KINDS) or pair_of(columns)
    if columns and not known:
        raise DataError(
            f"{no_column(name, 'text', options.text_column, columns)}; or, if line {line} is no header, "
            "write one above, as in dialog,speaker,text"
        )
    read = {
        *asked,
        *time_columns(columns),
        *(usual(kind, columns) for kind in (*KINDS, "act")),
        *(pair_of(columns) or ()),
    }
    if twice := [column for column in columns if columns.count(column) > 1 and column in read]:
        raise DataError(f"{name}:{line}: two columns are named {visible(twice[0])}; rename one of them")


def _named_rows(
    rows: Iterable[tuple[int, list[str]]], name: str, header: list[str], scripts: list[str], log: InputLog
) -> Iterator[tuple[int, TableRow]]:
    """Rows with their line numbers. Lines are kept in the columns ``scripts``, and joined in others."""
    kept = [column in scripts for column in header]
    for line, fields in rows:
        if len(fields) == len(header):
            texts = (
                text if as_it_is else join_lines(text) for text, as_it_is in zip(fields, kept, strict=True)
            )
            yield line, dict(zip(header, texts, strict=True))
        else:
            expected = f"expected {len(header)}; put texts with a delimiter in quotes"
            log.bad(name, line, "wrong number of columns", expected, excerpt=f"{len(fields)} found")


def read_parquet(path: Path, options: ReadOptions, log: InputLog) -> list[Dialog]:
    """Read the dialogs of a parquet file. Raises DataError if it is damaged or lacks a column."""
    with _open_parquet(path) as file:
        batches = (row for batch in file.iter_batches() for row in batch.to_pylist())
        rows, columns = _convertible(batches, str(path)), file.schema_arrow.names
        return _read_rows(enumerate(rows, 1), str(path), path.stem, options, log, columns)


def _convertible(rows: Iterable[TableRow], place: str) -> Iterator[TableRow]:
    """Rows of a table. Raises DataError for a value that Python cannot hold, as of text that is no UTF-8."""
    try:
        yield from rows
    except (ValueError, OverflowError) as error:
        raise DataError(f"{place}: a value cannot be read ({brief(error)}); write it again") from error


@contextmanager
def _open_parquet(path: Path) -> Iterator["pq.ParquetFile"]:
    """Open a parquet file. Raises DataError if it is damaged, also where that shows later."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_regular(path) as stream:
            yield pq.ParquetFile(stream)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: unreadable parquet file ({brief(error)}); write it again") from error


def columns_of(path: Path, format: str, options: ReadOptions, log: InputLog) -> list[str]:
    """Columns of a CSV or parquet file, and the fields of their structures. Raises DataError."""
    if format == "parquet":
        with _open_parquet(path) as file:
            return list(_names(file.schema_arrow))
    with open_regular(path) as stream:
        return _open_csv(read_lines(stream, str(path), log), str(path), options, log)[1]


def _names(fields: Iterable["pa.Field"]) -> Iterator[str]:
    """Names of fields and, below, of the fields of structures and of lists of structures."""
    import pyarrow as pa

    for field in fields:
        yield field.name
        kind = field.type
        while pa.types.is_list(kind) or pa.types.is_large_list(kind):
            kind = kind.value_type
        if pa.types.is_struct(kind):
            yield from _names(kind.field(index) for index in range(kind.num_fields))


def read_dataset(source: str, options: ReadOptions, log: InputLog) -> dict[str, list[Dialog]]:
    """Read the splits of a saved data set or of one on the hub, see :func:`lm.text.hub.load_tables`."""
    splits, parts = dict[str, list[Dialog]](), load_tables(source)
    known = (name for table in parts.values() for name in _names(table.features.arrow_schema))
    require_columns(source, dict.fromkeys(known), options)
    for part, table in parts.items():
        split = part if part == WHOLE else SPLIT_NAMES.get(part, "")
        if part != WHOLE and (not split or split in splits):
            log.drop(f"{source}:{part}", 0, "split other than train, valid and test")
            continue
        place, columns = f"{source}:{part}", table.column_names
        rows = enumerate(_convertible(table, place), 1)
        splits[split] = _read_rows(rows, place, split or "dialog", options, log, columns)
    if not splits:
        raise DataError(f"{source}: found the splits {', '.join(parts)}; expected train, valid, test")
    return splits


def _read_rows(
    rows: Iterable[tuple[int, TableRow]],
    name: str,
    stem: str,
    options: ReadOptions,
    log: InputLog,
    columns: Sequence[str],
) -> list[Dialog]:
    """Dialogs of a table. Each row is a dialog if one of the first has a list of texts, or a script.

    Otherwise each is an utterance.
    """
    numbered = iter(rows)
    begun = list(islice(numbered, _SAMPLE))
    rest: Iterator[tuple[int, TableRow]] = chain(begun, numbered)
    sample = _sample([row for _, row in begun], options) or {column: [] for column in columns}
    if pair_of(sample) and options.text_column not in sample and not usual("text", sample):
        column = options.dialog_column if options.dialog_column in sample else usual("dialog", sample)
        if column:
            turns = ((row[column], turn) for line, row in rest for turn in pair_turns(name, line, row, log))
            return group_turns(turns, name, log)
        return collect((made_of(line, pair_dialog(name, line, row, log)) for line, row in rest), name, log)
    scripts = _scripts([row for _, row in begun], columns, options)
    sample = sample | {column: [] for column in scripts}
    times = time_columns(columns)
    options = find_columns(name, sample, options, times)
    if not begun:
        return []
    if scripts:
        rest = ((number, _with_lists(row, scripts)) for number, row in rest)
    if isinstance(sample[options.text_column], list):
        whole = ((number, _whole_dialog(row, number, name, stem, options, log)) for number, row in rest)
        return distinct(whole, name, log)
    if options.dialog_column not in sample:
        return read_messages(rest, times, name, options, log)
    return group_turns(_turns(rest, options), name, log)


def _sample(rows: Sequence[TableRow], options: ReadOptions) -> TableRow | None:
    """The row that shows the layout of a table: the first with a list of utterances, or else the first."""
    listed = (row for row in rows if isinstance(row.get(options.text_column), list) or list_name(row))
    return next(listed, next(iter(rows), None))


def _scripts(rows: Sequence[TableRow], columns: Sequence[str], options: ReadOptions) -> list[str]:
    """Columns that have the utterances of a dialog as a script or as lists by field, if none has a list."""
    if any(list_name(row) is not None for row in rows) and options.text_column not in columns:
        return []
    texts = script_columns(columns, options)
    return [column for column in texts if any(utterances_of(row[column]) for row in rows)]


def _with_lists(row: TableRow, columns: Sequence[str]) -> TableRow:
    """A row with the list of utterances of each script or structure in the ``columns``."""
    return row | {column: utterances_of(row[column]) or row[column] for column in columns}


def _turns(rows: Iterable[tuple[int, TableRow]], options: ReadOptions) -> Iterator[tuple[Any, RawUtterance]]:
    for number, row in rows:
        act = row.get(options.act_column)
        yield (
            row[options.dialog_column],
            RawUtterance(number, row[options.speaker_column], row[options.text_column], act, link_of(row)),
        )


def _whole_dialog(
    row: TableRow, number: int, name: str, stem: str, options: ReadOptions, log: InputLog
) -> Dialog | None:
    """Dialog from a row of lists."""
    if not isinstance(row[options.text_column], list):
        problem = (
            f"{options.text_column} has no list of utterances, and no lines `A: text`, unlike other rows"
        )
        log.bad(name, number, problem, "correct the row")
        return None
    id = row.get(options.dialog_column) if options.dialog_column != options.text_column else None
    return listed_dialog(name, number, row, options, log, f"{stem}:{number - 1}" if id is None else id)
