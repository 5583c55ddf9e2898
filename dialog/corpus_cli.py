"""Commands of ``dialog`` for corpora: ``prepare``, ``show`` and ``references``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dialog.corpora.formats import FORMATS, PAGE
from lm.console.app import in_processes
from lm.console.options import (
    BadLineOption,
    Join,
    OnePart,
    Processes,
    nonempty,
    output_file,
    output_folder,
    require_absent,
)
from lm.console.output import counting, show
from lm.runs.outputs import require_apart, rows_with
from lm.text.tokenizers import TokenizerKind

if TYPE_CHECKING:
    from lm.text.prepared_folder import Prepared

_REFERENCES = rows_with("dialog", "turn", "context", "responses", opening=b"[\n")
PREPARE = f"""Read conversations of any supported format; write train, valid and test splits with a report.

Example: dialog prepare chat.txt --out data/chat

Formats, detected by content; {PAGE} has an example of each:

\b
{chr(10).join(f"  {name:<10} {about}" for name, about in FORMATS.items())}
"""


def prepare(
    context: typer.Context,
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
    present = [split for split in ("valid", "test") if split in made.located.files]
    require_absent(context, [f"{split}_fraction" for split in present], f"{source} has this split")
    if len(present) == 2:
        require_absent(context, ["seed"], f"{source} has all splits, so none is drawn")
    prepared = prepare_as_asked(made, out, processes, part, join)
    if part:
        show(f"{prepared.folder}: {'unchanged' if prepared.unchanged else 'written'}")
    else:
        show_prepared(prepared)


def show_prepared(prepared: "Prepared") -> None:
    """Print the counts, the first two dialogs, and the folder of a prepared corpus."""
    from dialog.corpora.corpus import load_dialogs
    from dialog.tables import dialog_lines, prepared_tables

    first = load_dialogs(str(prepared.folder / "train"))[:2]
    examples = [line for dialog in first for line in dialog_lines(dialog, most=6)]
    state = "unchanged" if prepared.unchanged else "written"
    show(*prepared_tables(prepared.report), *examples, f"{prepared.folder}: {state}")


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
