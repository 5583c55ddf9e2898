"""The command ``dialog serve``."""

from dialog.options import DecodeOverrides, decoding_of
from lm.console.app import log_line
from lm.console.options import Checkpoint
from lm.serve.options import ApiKeyFile, Host, Port, ServedRuns, require_server


def serve(
    runs: ServedRuns,
    checkpoint: Checkpoint = "best",
    overrides: DecodeOverrides = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Serve runs: an API that chat clients speak, and a page that shows replies side by side.

    Example: dialog serve runs/softmax runs/mos
    """
    decodes = [decoding_of(run, overrides).config.decode for run in runs]
    require_server("dialog serve")
    from lm.serve.server import Address, named_runs
    from lm.serve.server import serve as answer

    address, names = Address(host, port, api_key_file), named_runs(runs)
    address.policy()  # refused before the models are opened
    from dialog.serve.served import ServedDialog

    models = [ServedDialog.load(run, checkpoint, decode) for run, decode in zip(runs, decodes, strict=True)]
    answer(dict(zip(names, models, strict=True)), address, page=True, log=log_line)
