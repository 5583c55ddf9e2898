"""Shared command-line options of language models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from lm.console.options import nonempty
from lm.language.config import LmConfig
from lm.runs.outputs import require_apart

Data = Annotated[
    str | None,
    typer.Option("--data", metavar="F", parser=nonempty, help="Text; default: the run's test split."),
]
Limit = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="Score only the first N tokens of the text.")
]


def spare_texts(output: Path | None, runs: Sequence[Path], data: str | None) -> None:
    """Raise ConfigError if an output would overwrite a text: the given one, or a split of one of the runs."""
    if output is not None:
        from lm.runs.inputs import config_of

        splits = [config_of(run, LmConfig).config.data for run in runs]
        texts = [text for split in splits for text in (split.train, split.valid, split.test)]
        require_apart([output], [data, *texts])
