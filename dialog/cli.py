"""The ``dialog`` command line. Each command imports its modules, calls them, and shows the result."""

import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dialog.commands import DecodeOverrides, chat, decoding_of, human_distinct, serve
from dialog.config import DialogConfig
from dialog.corpora.formats import FORMATS, PAGE
from lm.config.load import load_config, require_effect
from lm.config.places import default_run
from lm.console.app import (
    check_data,
    counting,
    in_processes,
    new_app,
    note,
    run_app,
    show,
    show_training,
    write_result,
)
from lm.console.commands import add_check, add_describe, add_presets, add_runs
from lm.console.exchange import add_exchange
from lm.console.options import (
    BadLineOption,
    Checkpoint,
    Join,
    JsonFile,
    NewRun,
    OnePart,
    Overrides,
    Processes,
    RunFolders,
    config_argument,
    filename,
    nonempty,
    output_file,
    output_folder,
)
from lm.doctor.cli import add_doctor
from lm.parallel.shards import shards_of
from lm.report.cli import add_compare_and_report
from lm.runs.outputs import require_apart, rows_with
from lm.text.tokenizers import TokenizerKind
from lm.tuning.cli import add_tune

if TYPE_CHECKING:
    from lm.text.prepared_folder import Prepared

app = new_app(
    "Train, evaluate and talk to encoder-decoder dialog models that differ only in their output head.\n\n"
    "Start with [bold]dialog demo[/bold], or step by step: [bold]dialog train smalltalk_mos[/bold], "
    "[bold]dialog evaluate runs/smalltalk_mos[/bold], [bold]dialog chat runs/smalltalk_mos[/bold]."
)

_RESPONSES = rows_with("dialog", "turn", "context", "references", "hypotheses")
_REFERENCES = rows_with("dialog", "turn", "context", "responses", opening=b"[\n")
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


_PREPARE = f"""Read conversations of any supported format; write train, valid and test splits with a report.

Example: dialog prepare chat.txt --out data/chat

Formats, detected by content; {PAGE} has an example of each:

\b
{chr(10).join(f"  {name:<10} {about}" for name, about in FORMATS.items())}
"""


@app.command(help=_PREPARE)
def prepare(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", parser=nonempty, help="File, folder, zip, or hf:NAME for a data set of the hub."
        ),
    ],
    out: Annotated[Path, output_folder("Folder to write.")],
    format: Annotated[str, typer.Option(help="Format of the source; auto = detect by content.")] = "auto",
    on_bad_line: BadLineOption = "error",
    tokenizer: Annotated[
        TokenizerKind,
        typer.Option(
            metavar="KIND",
            help="Tokenizer for the counts of the report: wordpunct, whitespace, char, unigram or bpe."
            " Training uses data.tokenizer.",
        ),
    ] = "wordpunct",
    vocab_size: Annotated[int, typer.Option(min=3, help="Vocabulary size for the counts.")] = 10_000,
    lowercase: Annotated[bool, typer.Option(help="Convert the text to lower case for the counts.")] = True,
    valid_fraction: Annotated[
        float, typer.Option(help="Share of the dialogs, if the source has no such split.")
    ] = 0.05,
    test_fraction: Annotated[
        float, typer.Option(help="Share of the dialogs, if the source has no such split.")
    ] = 0.05,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split.")] = 1,
    dialog_column: Annotated[
        str, typer.Option(help="Column of dialog ids in a table or data set.")
    ] = "dialog",
    speaker_column: Annotated[
        str, typer.Option(help="Column of speakers in a table or data set.")
    ] = "speaker",
    text_column: Annotated[str, typer.Option(help="Column of texts in a table or data set.")] = "text",
    act_column: Annotated[str, typer.Option(help="Column of dialog acts in a table or data set.")] = "act",
    force: Annotated[bool, typer.Option("--force", help="Write the corpus even if it looks wrong.")] = False,
    processes: Processes = 1,
    part: OnePart = None,
    join: Join = False,
) -> None:
    from dialog.corpora.columns import ReadOptions
    from dialog.corpora.prepare import PrepareOptions, preparation
    from lm.text.prepared_parts import prepare_as_asked

    read = ReadOptions(format, dialog_column, speaker_column, text_column, act_column)
    options = PrepareOptions(
        read, on_bad_line, valid_fraction, test_fraction, seed, tokenizer, lowercase, vocab_size
    )
    made = preparation(source, options, force=force)
    prepared = prepare_as_asked(made, out, processes, part, join)
    if part:
        show(f"{prepared.folder}: {'unchanged' if prepared.unchanged else 'written'}")
    else:
        _show_prepared(prepared)


def _show_prepared(prepared: "Prepared") -> None:
    """Print the counts, the first two dialogs, and the folder of a prepared corpus."""
    from dialog.corpora.corpus import load_dialogs
    from dialog.tables import dialog_lines, prepared_tables

    first = load_dialogs(str(prepared.folder / "train"))[:2]
    examples = [line for dialog in first for line in dialog_lines(dialog, most=6)]
    state = "unchanged" if prepared.unchanged else "written"
    show(*prepared_tables(prepared.report), *examples, f"{prepared.folder}: {state}")


@app.command("show")
def show_corpus(
    corpus: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS", parser=nonempty, help="Prepared folder, or anything that prepare reads."
        ),
    ],
    split: Annotated[
        str, typer.Option(metavar="SPLIT", help="train, valid or test; default: the first existing one.")
    ] = "",
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Number of dialogs.")] = 3,
    dialog: Annotated[str, typer.Option(metavar="ID", help="Only the dialog with this id.")] = "",
) -> None:
    """Show dialogs of a corpus after parsing, without what its format leaves out.

    Of chats with assistants, that is messages whose role is system, developer, tool or function.

    Example: dialog show data/chat --split valid --limit 5
    """
    from dialog.corpora.corpus import choose_dialogs
    from dialog.tables import dialog_lines

    chosen = choose_dialogs(corpus, split, dialog)
    shown = chosen[:limit]
    show(*(line for one in shown for line in dialog_lines(one)), f"{len(shown):,} of {len(chosen):,} dialogs")


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
            _show_prepared(own.prepared)
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
    data: Annotated[
        str | None,
        typer.Option(metavar="F", parser=nonempty, help="Corpus; default: the run's test split."),
    ] = None,
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
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first N contexts.")] = None,
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
    from dialog.corpora.own_data import in_run
    from lm.runs.inputs import config_of, prepared_anew

    splits = [in_run(one, config_of(one, DialogConfig).config.data) for one in runs]
    texts = [text for own in splits for text in (own.train, own.valid, own.test)]
    require_apart([output, json_file], [data, references, *texts])
    from dialog.evaluate import evaluate as evaluate_run
    from dialog.tables import evaluation_tables

    note(*() if data else prepared_anew(runs, [own.train for own in splits]))
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


@app.command()
def references(
    train: Annotated[
        str,
        typer.Option(metavar="F", parser=nonempty, help="Corpus whose responses become references."),
    ],
    test: Annotated[
        str, typer.Option(metavar="F", parser=nonempty, help="Corpus whose contexts get references.")
    ],
    out: Annotated[Path, output_file("File to write.", _REFERENCES, metavar="F")],
    neighbours: Annotated[
        int, typer.Option(metavar="N", min=1, help="References besides the true response.")
    ] = 10,
    processes: Processes = 1,
) -> None:
    """Find several references per test context: the responses to the most similar training contexts.

    Example: dialog references --train data/train.jsonl --test data/test.jsonl --out test_multi_ref.json
    """
    require_apart([out], [train, test])
    in_processes(processes)
    from dialog.corpora.corpus import load_dialogs
    from dialog.metrics.references import build_references, write_references
    from lm.parallel.group import process_group

    with process_group() as group, counting("comparing") as progress:
        items = build_references(load_dialogs(train), load_dialogs(test), neighbours, group, progress)
        group.share(lambda: write_references(out, items))
    count = sum(len(item.responses) for item in items)
    show(f"{out}: {len(items):,} contexts, {count / max(1, len(items)):.1f} references each")


add_compare_and_report(app, "dialog runs/softmax runs/mos", "dialog.report")


app.command("distinct")(human_distinct)
app.command()(chat)
app.command()(serve)
add_check(app, "dialog")
add_runs(app, "dialog")
add_doctor(app, "dialog", "dialog.doctor")
add_exchange(app, "dialog", DialogConfig, "dialog.export")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``dialog`` with the given or the process's arguments. Raises SystemExit with the exit code."""
    run_app(app, "dialog", arguments)
