"""Options of commands that decode, and the settings that they give."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dialog.config import DialogConfig
from lm.config.load import Resolved, override

DecodeOverrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change decoding, as in --set decode.beam=5; may be repeated."
    ),
]


def decoding_of(run: Path, overrides: Sequence[str] | None) -> Resolved[DialogConfig]:
    """The config of a run with decoding overrides of the command line."""
    from lm.runs.inputs import config_of

    resolved = config_of(run, DialogConfig)
    return override(resolved, overrides or (), DialogConfig, sections=("decode",))
