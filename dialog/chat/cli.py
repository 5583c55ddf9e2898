"""The command ``dialog chat``."""

from pathlib import Path
from typing import Annotated

import typer

from dialog.options import DecodeOverrides, decoding_of
from lm.console.options import Checkpoint, RunFolders, filename


def chat(
    runs: RunFolders,
    checkpoint: Checkpoint = "best",
    overrides: DecodeOverrides = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=filename,
            help="Replay the human's lines of a saved conversation, and exit.",
        ),
    ] = None,
) -> None:
    """Talk with a model, or an ensemble; /help lists the commands. From a pipe, each line gets an answer.

    Example: dialog chat runs/mos --set decode.method=sample
    """
    run, *others = runs
    decode = decoding_of(run, overrides).config.decode
    from dialog.chat.terminal import chat as converse

    converse(run, others=others, checkpoint=checkpoint, decode=decode, replay=replay)
