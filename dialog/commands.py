"""The commands ``chat``, ``distinct`` and ``serve`` of ``dialog``, and options that several commands have."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dialog.config import DialogConfig, with_decoding
from lm.config.load import Resolved
from lm.console.options import Checkpoint, JsonFile, RunFolders, filename, nonempty
from lm.console.output import log_line, note, show, write_result
from lm.errors import require
from lm.libraries import require_libraries
from lm.serve.options import ApiKeyFile, Host, Port, ServedRuns

DecodeOverrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change decoding, as in --set decode.beam=5; may be repeated."
    ),
]

TestCorpus = Annotated[
    str | None,
    typer.Option("--data", metavar="F", parser=nonempty, help="Corpus; default: the run's test split."),
]
FirstContexts = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="Only the first N contexts.")
]


def check_splits(
    runs: Sequence[Path], outputs: Sequence[Path | None], data: str | None, references: Path | None = None
) -> None:
    """Check the splits of runs before they are read, and note which were prepared anew since the training.

    ConfigError for an output that would overwrite one of their corpora, ``data`` or ``references``. With
    ``data``, another corpus, nothing is noted.
    """
    from dialog.corpora.own_data import in_run
    from lm.runs.inputs import config_of, prepared_anew
    from lm.runs.outputs import require_apart

    splits = [in_run(run, config_of(run, DialogConfig).config.data) for run in runs]
    corpora = [text for own in splits for text in (own.train, own.valid, own.test)]
    require_apart(outputs, [data, references, *corpora])
    note(*() if data else prepared_anew(runs, [own.train for own in splits]))


def decoding_of(run: Path, overrides: Sequence[str] | None) -> Resolved[DialogConfig]:
    """The config of a run with decoding overrides of the command line. ConfigError for bad ones."""
    from lm.runs.inputs import config_of

    return with_decoding(config_of(run, DialogConfig), overrides or ())


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


def human_distinct(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS…",
            parser=nonempty,
            help="Split or file of conversations, or a run for its test split.",
        ),
    ],
    limit: FirstContexts = None,
    json_file: JsonFile = None,
) -> None:
    """Measure how varied the responses of people are: distinct n-grams, length, most common answer.

    These are the measures of `dialog evaluate`, whose tables show them beside those of the model.

    Example: dialog distinct data/switchboard/test smalltalk:test
    """
    from dialog.variety import human_variety, variety_tables
    from lm.results import as_json

    found = [human_variety(source, limit) for source in sources]
    write_result(json_file, {"corpora": [as_json(one) for one in found]})
    show(*variety_tables(found))


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
    """Serve runs: OpenAI's API for chat clients, and a page that shows replies side by side.

    Example: dialog serve runs/softmax runs/mos
    """
    require(len(runs) > 1 or not ensemble, "--ensemble: needs several runs; name another RUN")
    decodes = [decoding_of(run, overrides).config.decode for run in runs]
    require_libraries("dialog serve", "serve", "starlette", "uvicorn")
    from lm.serve.server import Address, named_runs
    from lm.serve.server import serve as answer

    address, names = Address(host, port, api_key_file), named_runs(runs)
    address.policy()  # refused before the models are opened
    from dialog.serve.served import ServedDialog

    loads = zip(names, runs, decodes, strict=True)
    models = {name: ServedDialog.load(run, checkpoint, decode) for name, run, decode in loads}
    if ensemble:
        models["+".join(models)] = ServedDialog.ensemble_of(models)
    answer(models, address, page=True, log=log_line)
