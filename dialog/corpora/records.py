"""Records of CSV files: their dialect, and the line that each begins on."""

import csv
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lm.text.lines import InputLog, Line

DELIMITERS = ",;\t|"


class Dialect(NamedTuple):
    """What stands between and around the fields of a record."""

    delimiter: str = ","
    quote: str = '"'


CSV = Dialect()


def fields_of(text: str, dialect: Dialect) -> list[str]:
    """The fields of a record that is one line; the line itself where it is none."""
    try:
        return next(csv.reader([text], delimiter=dialect.delimiter, quotechar=dialect.quote), [])
    except csv.Error:
        return [text]


def records(
    lines: Iterable[Line], name: str, log: InputLog, dialect: Dialect = CSV
) -> Iterator[tuple[int, list[str]]]:
    """Records and the line that each begins on; a quoted field may hold line breaks."""
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
                most = f"at most {csv.field_size_limit():,} characters; shorten it, or mend a quote left open"
                log.bad(name, start, "a field that is too long", most)
            else:
                log.bad(name, start, "not CSV", "mend the quotes", excerpt=str(error))
            continue
        if row:
            yield start, row
