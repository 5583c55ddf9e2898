"""The command ``dialog distinct``."""

from typing import Annotated

import typer

from lm.console.app import show, write_result
from lm.console.options import JsonFile, nonempty


def human_distinct(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS…",
            parser=nonempty,
            help="Split or file of conversations, or a run for its test split.",
        ),
    ],
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first N contexts.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Measure how varied the responses of people are: distinct n-grams, length, most common answer.

    These are the measures of `dialog evaluate`, whose tables show them beside those of the model.

    Example: dialog distinct data/switchboard/test smalltalk:test
    """
    from dialog.variety import Varieties, human_variety, variety_tables

    found = [human_variety(source, limit) for source in sources]
    write_result(json_file, Varieties(found))
    show(*variety_tables(found))
