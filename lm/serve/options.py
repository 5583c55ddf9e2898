"""Options of the commands ``serve``."""

from pathlib import Path
from typing import Annotated

import typer

from lm.console.options import filename, run_folders

ServedRuns = Annotated[list[Path], run_folders("Folders of runs; a request names one.")]
Host = Annotated[
    str,
    typer.Option(metavar="ADDRESS", help="Address to listen at; if not loopback, --api-key-file is needed."),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 = any free one.")]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", parser=filename, help="File of API keys, one a line; requests need one."),
]
