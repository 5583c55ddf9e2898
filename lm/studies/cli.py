"""The commands ``lm bottleneck`` and ``lm reverse-copy``: heads and cells on synthetic data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lm.console.options import JsonFile, output_folder, require_absent
from lm.console.output import counting, show, write_result
from lm.console.tables import Table
from lm.errors import ConfigError
from lm.steps import OnProgress

if TYPE_CHECKING:
    from lm.studies.options import HeadOptions

StudyRun = Callable[[Any, Path, OnProgress], dict[str, Any]]
StudyDraw = Callable[[Mapping[str, Any], Sequence[Path]], None]
StudyTables = Callable[[Mapping[str, Any]], list[Table | str]]
StudyFolder = Annotated[Path, output_folder("Folder of points, result and figures.")]

StudyTask = Annotated[
    Literal["sweep", "backward", "spam"],
    typer.Option(
        help="sweep: E and K. backward: rank of distributions and rank of gradients apart. spam: texts of"
        " one repeated symbol, for up to --vocab symbols."
    ),
]


def bottleneck(
    context: typer.Context,
    out: StudyFolder = Path("runs/bottleneck"),
    task: StudyTask = "sweep",
    contexts: Annotated[int, typer.Option(help="Number of contexts of the language.")] = 96,
    vocab: Annotated[
        int | None,
        typer.Option(help="Number of words of the language. Default: 768, and 10,000 for spam."),
    ] = None,
    rank: Annotated[int, typer.Option(help="Rank of the true log-probability matrix.")] = 48,
    spread: Annotated[float, typer.Option(help="Standard deviation of the true logits in nats.")] = 3.0,
    context_law: Annotated[
        Literal["uniform", "zipf"], typer.Option(help="Distribution of the contexts.")
    ] = "uniform",
    heads: Annotated[str, typer.Option(help="Heads to train, separated by commas.")] = (
        "softmax,sigsoftmax,moc,mos,moss"
    ),
    embedding_sizes: Annotated[
        str, typer.Option(metavar="E,E,…", help="Context sizes E of the sweep of E.")
    ] = "2,4,8,16,32,48",
    components: Annotated[
        str,
        typer.Option(metavar="K,K,…", help="Numbers of components in the sweep of E; one in other tasks."),
    ] = "4",
    component_sweep: Annotated[
        str, typer.Option(metavar="K,K,…", help="Numbers of components in the sweep of K; '' = no sweep.")
    ] = "1,2,4,8,16",
    sweep_size: Annotated[int, typer.Option(metavar="E", help="Context size E of the sweep of K.")] = 8,
    hidden_size: Annotated[
        int, typer.Option(help="Hidden size of a MoS with the largest K; all heads get its parameters.")
    ] = 48,
    context_scale: Annotated[
        str, typer.Option(metavar="S,S,…", help="Factors on the contexts of mixtures; 1 as in the papers.")
    ] = "10.0",
    steps: Annotated[
        str,
        typer.Option(
            metavar="N,N,…", help="Number of updates; the sweep may have one for each --context-scale."
        ),
    ] = "1000",
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 0.05,
    seeds: Annotated[str, typer.Option(metavar="S,S,…", help="Seeds of language and training.")] = "1",
    json_file: JsonFile = None,
) -> None:
    """Show the softmax bottleneck: compare heads with a language of known distributions and rank.

    Trains every head with equal parameters in sweeps of the context size E and of the components K. Draws
    KL(truth ‖ model) and the rank of the model. The same command resumes an interrupted sweep. The other
    tasks train every head at E = --sweep-size beside a full softmax at E = --hidden-size. They refuse options
    that they do not read.

    Example: lm bottleneck --rank 64 --components 2,8 --sweep-size 4
    """
    options_of, study, draw, tables = _study(task)
    values: dict[str, Any] = {
        "contexts": contexts, "rank": rank, "spread": spread, "context_law": context_law,
        "heads": tuple(heads.split(",")), "embedding_sizes": _integers("--embedding-sizes", embedding_sizes),
        "components": _integers("--components", components),
        "component_sweep": _integers("--component-sweep", component_sweep) if component_sweep else (),
        "sweep_size": sweep_size, "hidden_size": hidden_size,
        "context_scale": _numbers("--context-scale", context_scale), "steps": _integers("--steps", steps),
        "lr": lr, "seeds": _integers("--seeds", seeds),
    }  # fmt: skip
    if vocab is not None:
        values["vocab"] = vocab
    read = {field.name for field in fields(options_of)}
    require_absent(
        context, [name for name in values if name not in read], f"--task {task} does not read this option"
    )
    options = options_of(**{name: value for name, value in values.items() if name in read})
    with counting("training") as progress:
        result = study(options, out, progress)
    name = "bottleneck" if task == "sweep" else task
    figures = [out / f"{name}.png", out / f"{name}.svg"]
    draw(result, figures)
    write_result(json_file, result)
    show(*tables(result), f"drawn in {figures[0]} and {figures[1]}")


def reverse_copy(
    out: StudyFolder = Path("runs/reverse-copy"),
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR", help="Folder of `lm prepare reverse-copy`; repeat for more lengths."),
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(metavar="L,L,…", help="Lengths of random sequences; default 10,20,30,40.")
    ] = None,
    vocab: Annotated[
        int | None, typer.Option(help="Number of symbols of random sequences; default 32.")
    ] = None,
    cells: Annotated[str, typer.Option(help="Cells to train, separated by commas.")] = "lstm,mogrifier",
    rounds: Annotated[int | None, typer.Option(help="Number of rounds of a Mogrifier; default 5.")] = None,
    rank: Annotated[
        int | None, typer.Option(help="Rank of a Mogrifier's gates; 0 = full, default 16.")
    ] = None,
    embedding_size: Annotated[int, typer.Option(help="Size of all embeddings.")] = 32,
    parameters: Annotated[int, typer.Option(help="Maximum number of parameters of a model.")] = 120_000,
    steps: Annotated[int, typer.Option(help="Number of updates of each training.")] = 1500,
    lrs: Annotated[str, typer.Option(metavar="R,R,…", help="Peak learning rates to try.")] = "0.002,0.004",
    seeds: Annotated[str, typer.Option(metavar="S,S,…", help="Seeds of sequences and training.")] = "1",
    json_file: JsonFile = None,
) -> None:
    """Measure the memory of cells: reversal of random sequences (Melis et al. 2020, §4.3).

    Trains an encoder and a decoder of every cell with equal parameters for every length, and draws their
    cross-entropy. The same command resumes an interrupted sweep.

    Example: lm reverse-copy --lengths 10,20 --cells lstm,mogrifier,mlstm
    """
    from lm.studies.copying import CopyOptions, copying
    from lm.studies.copying_data import read_corpora
    from lm.studies.copying_figure import copying_tables, draw_copying

    if data and (lengths is not None or vocab is not None):
        raise ConfigError("--data fixes lengths and symbols; omit --lengths and --vocab")
    if corpora := read_corpora(data or ()):
        sizes, symbols = tuple(corpus.length for corpus in corpora), corpora[0].vocab
    else:
        sizes = _integers("--lengths", "10,20,30,40" if lengths is None else lengths)
        symbols = 32 if vocab is None else vocab
    gates = {name: value for name, value in (("rounds", rounds), ("rank", rank)) if value is not None}
    options = CopyOptions(
        lengths=sizes, vocab=symbols, cells=tuple(cells.split(",")), embedding_size=embedding_size,
        parameters=parameters, steps=steps, lrs=_numbers("--lrs", lrs), seeds=_integers("--seeds", seeds),
        **gates,
    )  # fmt: skip
    if gates and not options.mogrifies:
        name = next(iter(gates))
        raise ConfigError(f"--{name}: is of a Mogrifier; add one to --cells, or leave --{name} out")
    with counting("training") as progress:
        result = copying(options, out, progress, corpora)
    figures = [out / "reverse-copy.png", out / "reverse-copy.svg"]
    draw_copying(result, figures)
    write_result(json_file, result)
    show(*copying_tables(result), f"drawn in {figures[0]} and {figures[1]}")


def _study(task: str) -> "tuple[type[HeadOptions], StudyRun, StudyDraw, StudyTables]":
    """Options of a task of ``lm bottleneck``, and the functions that measure, draw and show it."""
    from lm.studies.backward import BackwardOptions, backward
    from lm.studies.backward_figure import backward_tables, draw_backward, draw_spam, spam_tables
    from lm.studies.bottleneck import BottleneckOptions
    from lm.studies.bottleneck import bottleneck as sweep
    from lm.studies.bottleneck_figure import bottleneck_tables, draw_bottleneck
    from lm.studies.spam import SpamOptions, spam

    tasks: dict[str, tuple[type[HeadOptions], StudyRun, StudyDraw, StudyTables]] = {
        "sweep": (BottleneckOptions, sweep, draw_bottleneck, bottleneck_tables),
        "backward": (BackwardOptions, backward, draw_backward, backward_tables),
        "spam": (SpamOptions, spam, draw_spam, spam_tables),
    }
    return tasks[task]


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} {text!r}: separate numbers by commas, as in 0.002,0.004") from None


def _integers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} {text!r}: separate whole numbers by commas, as in 2,4,8") from None
