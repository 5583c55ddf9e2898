"""The ``dialog`` command line. Each command imports its modules, calls them, and shows the result."""

import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from dialog.analysis_cli import analyze
from dialog.commands import (
    DecodeOverrides,
    FirstContexts,
    TestCorpus,
    chat,
    check_splits,
    decoding_of,
    human_distinct,
    serve,
)
from dialog.config import DialogConfig
from dialog.corpus_cli import PREPARE, prepare, references, show_corpus, show_prepared
from lm.config.load import load_config, require_effect
from lm.config.places import default_run
from lm.console.app import check_data, in_processes, new_app, run_app, show_training
from lm.console.commands import add_check, add_describe, add_presets, add_runs
from lm.console.exchange import add_exchange
from lm.console.options import (
    Checkpoint,
    JsonFile,
    NewRun,
    Overrides,
    Processes,
    RunFolders,
    config_argument,
    filename,
    nonempty,
    output_file,
    output_folder,
)
from lm.console.output import counting, note, show, write_result
from lm.doctor.cli import add_doctor
from lm.parallel.shards import shards_of
from lm.report.cli import add_compare_and_report
from lm.runs.outputs import require_apart, rows_with
from lm.tuning.cli import add_tune

app = new_app(
    "Train, evaluate and talk to encoder-decoder dialog models that differ only in their output head.\n\n"
    "Start with [bold]dialog demo[/bold], or step by step: [bold]dialog train smalltalk_mos[/bold], "
    "[bold]dialog evaluate runs/smalltalk_mos[/bold], [bold]dialog chat runs/smalltalk_mos[/bold]."
)

_RESPONSES = rows_with("dialog", "turn", "context", "references", "hypotheses")
_TRAIN = "dialog.train"  # module whose function train trains a run
Config = Annotated[str, config_argument("dialog")]


@app.command()
def demo(
    out: Annotated[Path, output_folder("Where the runs and results.json go.")] = Path("runs/demo"),
) -> None:
    """Train, evaluate and compare a softmax and a MoS model on the built-in corpus, in about a minute.

    The corpus has a known distribution, so the table also shows its true perplexity, the expected optimum.
    """
    from dialog.demo import RESULTS
    from dialog.demo import demo as run_demo
    from dialog.tables import demo_table
    from lm.engine.events import Reporter
    from lm.engine.progress import make_reporter

    def report(head: str) -> Reporter:
        show(f"{out / head}: training")
        return make_reporter(sys.stderr)

    with counting("responding") as progress:
        results = run_demo(out, report, progress)
    show(
        demo_table(results),
        f"{out / RESULTS}; talk to a model with: dialog chat {shlex.quote(str(out / 'mos'))}",
    )


def _size(config: DialogConfig) -> dict[str, Any]:
    from dialog.describe import describe

    return describe(config)


def _require_used(config: DialogConfig, overrides: Sequence[str]) -> None:
    """Raise ConfigError for an override that nothing reads. Those of decoding may wait for chats."""
    require_effect(config, [text for text in overrides if not text.startswith("decode.")])


add_presets(app, "dialog", DialogConfig, _size)
add_describe(app, "dialog", DialogConfig, _require_used, _size, "smalltalk_mos")
app.command(help=PREPARE)(prepare)
app.command("show")(show_corpus)


@app.command()
def train(
    config: Config,
    overrides: Overrides = None,
    run: NewRun = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="F",
            parser=nonempty,
            help="Your own conversations to train on; they are prepared in RUN/corpus. Validation and test "
            "get 10 % of the dialogs each, 5 % with `dialog prepare`.",
        ),
    ] = None,
    processes: Processes = 1,
) -> None:
    """Train a model, or resume: the same command again continues where the run stopped.

    Example: dialog train smalltalk_mos --set head.components=8 --run runs/mos8

    Example: dialog train own_small --data chat.txt
    """
    first = load_config(config, DialogConfig, family="dialog", overrides=overrides or ())
    _require_used(first.config, overrides or ())  # before data are read
    shards_of(0, processes, first.config.train.shards)
    folder = run or default_run(config)
    from dialog.corpora.own_data import in_run, own_data, require_single_source
    from lm.runs.run import refuse_foreign

    refuse_foreign(folder)
    require_single_source(data, overrides or ())
    own = own_data(data, folder, first.config.data)
    if own.note:
        note(own.note)
    if own.prepared and not own.prepared.unchanged:
        with suppress(BrokenPipeError):  # a closed pipe does not end a training
            show_prepared(own.prepared)
    named = [part for text in own.settings for part in ("--set", text)]
    in_processes(processes, instead={"--data": named})
    given = [*own.settings, *(overrides or ())]
    resolved = load_config(config, DialogConfig, family="dialog", overrides=given)
    check_data(
        in_run(folder, resolved.config.data),
        "dialog prepare",
        f"dialog train {shlex.quote(config)} --data FILE",
    )
    show_training(folder, resolved, _TRAIN)


add_tune(app, "dialog", DialogConfig, require_effect, _TRAIN, "smalltalk_mos --space smalltalk")


@app.command()
def evaluate(
    runs: RunFolders,
    data: TestCorpus = None,
    references: Annotated[
        Path | None,
        typer.Option(
            metavar="F",
            parser=filename,
            help="File of several references per context; default: the true response.",
        ),
    ] = None,
    output: Annotated[
        Path | None, output_file("Write the responses there.", _RESPONSES, metavar="HYPS.jsonl")
    ] = None,
    json_file: JsonFile = None,
    checkpoint: Checkpoint = "best",
    limit: FirstContexts = None,
    batch: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of contexts decoded together; results change at most by rounding.",
        ),
    ] = 16,
    overrides: DecodeOverrides = None,
    processes: Processes = 1,
) -> None:
    """Score a run: perplexity, BLEU precision and recall of its best responses, and their variety.

    Several runs of one vocabulary are evaluated as one model, with the mean of their probabilities.

    Example: dialog evaluate runs/mos --references test_multi_ref.json --json mos.json
    """
    run, *others = runs
    resolved = decoding_of(run, overrides)
    require_effect(resolved.config, overrides or ())
    in_processes(processes)
    check_splits(runs, [output, json_file], data, references)
    from dialog.evaluate import evaluate as evaluate_run
    from dialog.tables import evaluation_tables

    with counting("responding") as progress:
        result = evaluate_run(
            run, others=others, data=data, references=references, output=output, checkpoint=checkpoint,
            limit=limit, overrides=overrides or (), batch_size=batch, progress=progress,
        )  # fmt: skip
    write_result(json_file, result, config=resolved.config)
    show(*evaluation_tables(result))


@app.command()
def score(
    hypotheses: Annotated[
        Path,
        typer.Argument(metavar="HYPS.jsonl", parser=filename, help="What `dialog evaluate --output` wrote."),
    ],
    true_only: Annotated[
        bool,
        typer.Option("--true-only", help="Score only against the true response, the first of each line."),
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Score a file of responses again, without the model: BLEU and variety.

    Example: dialog score hyps.jsonl --json scores.json
    """
    require_apart([json_file], [hypotheses])
    from dialog.evaluate import rescore
    from dialog.tables import score_tables

    result = rescore(hypotheses, true_only=true_only)
    write_result(json_file, result)
    show(*score_tables(str(hypotheses), result))


app.command()(references)
add_compare_and_report(app, "dialog runs/softmax runs/mos", "dialog.report")
app.command("distinct")(human_distinct)
app.command()(chat)
app.command()(serve)
add_check(app, "dialog")
add_runs(app, "dialog")
add_doctor(app, "dialog", "dialog.doctor")
add_exchange(app, "dialog", DialogConfig, "dialog.export")
app.add_typer(analyze, name="analyze")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``dialog`` with the given or the process's arguments. Raises SystemExit with the exit code."""
    run_app(app, "dialog", arguments)
