"""The command ``dialog serve``."""

from typing import Annotated

import typer

from dialog.options import DecodeOverrides, decoding_of
from lm.console.app import log_line
from lm.console.options import Checkpoint
from lm.errors import require
from lm.serve.options import ApiKeyFile, Host, Port, ServedRuns, require_server


def serve(
    runs: ServedRuns,
    checkpoint: Checkpoint = "best",
    overrides: DecodeOverrides = None,
    ensemble: Annotated[
        bool,
        typer.Option(
            "--ensemble", help="Serve also all runs as one model, by the mean of their probabilities."
        ),
    ] = False,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Serve runs: an API that chat clients speak, and a page that shows replies side by side.

    Example: dialog serve runs/softmax runs/mos
    """
    require(len(runs) > 1 or not ensemble, "--ensemble: needs several runs; name another RUN")
    decodes = [decoding_of(run, overrides).config.decode for run in runs]
    require_server("dialog serve")
    from lm.serve.server import Address, named_runs
    from lm.serve.server import serve as answer

    address, names = Address(host, port, api_key_file), named_runs(runs)
    address.policy()  # refused before the models are opened
    from dialog.serve.served import ServedDialog

    loads = zip(names, runs, decodes, strict=True)
    models = {name: ServedDialog.load(run, checkpoint, decode) for name, run, decode in loads}
    if ensemble:
        models["+".join(models)] = ServedDialog.joined(models)
    answer(models, address, page=True, log=log_line)
