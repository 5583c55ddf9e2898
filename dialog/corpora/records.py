"""Records of CSV files with their first line numbers."""

import csv
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lm.text.lines import InputLog, NumberedLine

DELIMITERS = ",;\t|"


class Dialect(NamedTuple):
    """Delimiter and quote character of CSV fields."""

    delimiter: str = ","
    quote: str = '"'


CSV = Dialect()


def fields_of(text: str, dialect: Dialect) -> list[str]:
    """Fields of a one-line record, or the whole line as one field if it is not CSV."""
    try:
        return next(csv.reader([text], delimiter=dialect.delimiter, quotechar=dialect.quote), [])
    except csv.Error:
        return [text]


def records(
    lines: Iterable[NumberedLine], name: str, log: InputLog, dialect: Dialect = CSV
) -> Iterator[tuple[int, list[str]]]:
    """Yield (first line number, fields) of each record. A quoted field may contain line breaks."""
    start = 0

    def counted() -> Iterator[str]:
        nonlocal start
        for number, text in lines:
            start = start or number
            yield text + "\n"

    rows = csv.reader(counted(), delimiter=dialect.delimiter, quotechar=dialect.quote, strict=True)
    while True:
        start = 0
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            if "field limit" in str(error):
                most = f"at most {csv.field_size_limit():,} characters; shorten it, or close an open quote"
                log.bad(name, start, "field too long", most)
            else:
                log.bad(name, start, "not CSV", "correct the quotes", excerpt=str(error))
            continue
        if row:
            yield start, row
