"""The command ``lm serve``."""

from lm.console.options import Checkpoint
from lm.console.output import log_line
from lm.language.config import LmConfig
from lm.libraries import require_libraries
from lm.serve.options import ApiKeyFile, Host, Port, ServedRuns


def serve(
    runs: ServedRuns,
    checkpoint: Checkpoint = "best",
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key_file: ApiKeyFile = None,
) -> None:
    """Serve runs: the completions API, which continues texts as `lm generate` does.

    Example: lm serve runs/ptb_softmax runs/ptb_mos
    """
    from lm.runs.inputs import config_of

    for run in runs:
        config_of(run, LmConfig)
    require_libraries("lm serve", "serve", "starlette", "uvicorn")
    from lm.serve.server import Address, named_runs
    from lm.serve.server import serve as answer

    address, names = Address(host, port, api_key_file), named_runs(runs)
    address.policy()  # refused before the models are opened
    from lm.language.served import ServedLm

    models = [ServedLm.load(run, checkpoint) for run in runs]
    answer(dict(zip(names, models, strict=True)), address, page=False, log=log_line)
