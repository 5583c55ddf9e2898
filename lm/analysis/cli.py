"""``lm analyze …`` and ``lm bottleneck``: what heads can express, measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lm.console import Checkpoint, JsonFile, RunFolder, counting, show, write_result
from lm.errors import ConfigError
from lm.stop import RESUME, interruptible

if TYPE_CHECKING:
    from lm.language.trained import TrainedLm
    from lm.language.windows import Ids

analyze = typer.Typer(
    help="Look inside trained language models: rank, divergence, components, examples.",
    no_args_is_help=True,
)

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")]
Data = Annotated[
    str | None, typer.Option("--data", metavar="F", help="Text; the run's test split if left out.")
]
Tokens = Annotated[
    int | None, typer.Option("--tokens", metavar="N", min=2, help="Only the first N tokens of the text.")
]
Out = Annotated[
    Path,
    typer.Option(
        "--out", metavar="DIR", help="Where figures go; what belongs to a run stays in RUN/analysis."
    ),
]


@analyze.command()
def rank(
    runs: Runs,
    data: Data = None,
    tokens: Tokens = None,
    checkpoint: Checkpoint = "best",
    out: Out = Path("analysis"),
    json_file: JsonFile = None,
) -> None:
    """Numerical rank of the log-probability matrix of runs, and their singular values in one picture.

    A long text and a large vocabulary take minutes to hours; --tokens shortens it.

    Example: lm analyze rank runs/ptb_small_softmax runs/ptb_small_mos --tokens 20000
    """
    from lm.analysis.figure import draw_spectra
    from lm.analysis.rank import rank_of_run, rank_tables
    from lm.analysis.spectrum import RankResult
    from lm.storage import make_folder

    results: dict[str, dict[str, Any]] = {}
    spectra: dict[str, RankResult] = {}
    with interruptible() as poll, counting("factorising") as progress:
        for run in runs:
            trained, ids, name = _open(run, data, checkpoint)
            folder = run / "analysis"
            make_folder(folder)
            kept = folder / f"rank-{name}.npz"
            results[str(run)] = rank_of_run(trained, ids, poll, progress, tokens, spectrum=kept)
            spectra[str(run)] = RankResult.load(kept)
    make_folder(out)
    figures = [out / "rank.png", out / "rank.svg"]
    draw_spectra(spectra, figures)
    write_result(json_file, {"runs": results, "figures": [str(path) for path in figures]})
    show(*rank_tables(results), f"singular values: {figures[0]}, {figures[1]} and RUN/analysis/*.npz")


@analyze.command()
def divergence(
    runs: Runs,
    data: Data = None,
    tokens: Tokens = None,
    checkpoint: Checkpoint = "best",
    json_file: JsonFile = None,
) -> None:
    """Mean Kullback-Leibler divergence between the predictions of all pairs of contexts, exactly.

    Example: lm analyze divergence runs/ptb_small_softmax runs/ptb_small_mos
    """
    from lm.analysis.divergence import divergence_tables, expected_divergence

    results = {}
    with interruptible() as poll:
        for run in runs:
            trained, ids, _ = _open(run, data, checkpoint)
            results[str(run)] = expected_divergence(trained.log_probs(ids[:tokens], poll), poll)
    write_result(json_file, {"runs": results})
    show(*divergence_tables(results))


@analyze.command()
def components(
    run: RunFolder,
    data: Data = None,
    tokens: Tokens = None,
    checkpoint: Checkpoint = "best",
    json_file: JsonFile = None,
) -> None:
    """How a mixture uses its components: entropy of the prior, shares, the words that each prefers.

    Example: lm analyze components runs/ptb_small_mos
    """
    from lm.analysis.components import component_tables, components_of_run

    with interruptible() as poll:
        trained, ids, _ = _open(run, data, checkpoint)
        result = components_of_run(trained, ids, poll, tokens)
    write_result(json_file, result)
    show(*component_tables(str(run), result))


@analyze.command()
def examples(
    first: Annotated[Path, typer.Argument(metavar="A", help="Run that is beaten.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Run that beats it.")],
    data: Data = None,
    tokens: Tokens = None,
    margin: Annotated[float, typer.Option(help="Nats by which B has to be better.")] = 1.0,
    count: Annotated[int, typer.Option(min=1, help="Examples shown, the largest gains first.")] = 10,
    checkpoint: Checkpoint = "best",
    json_file: JsonFile = None,
) -> None:
    """Where run B predicts the text better than run A: context, word, and the guesses of both.

    Example: lm analyze examples runs/ptb_small_softmax runs/ptb_small_mos
    """
    from lm.analysis.examples import Wanted, compare_runs, example_tables

    with interruptible() as poll:
        beaten, ids, _ = _open(first, data, checkpoint)
        better, other_ids, _ = _open(second, data, checkpoint)
        if len(ids) != len(other_ids):
            raise ConfigError(f"{first} and {second} have other test splits; name one text with --data")
        result = compare_runs(beaten, better, ids[:tokens], Wanted(count, margin), poll)
    write_result(json_file, result)
    show(*example_tables(str(first), str(second), result))


def bottleneck(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where points, result and picture go.")] = Path(
        "runs/bottleneck"
    ),
    contexts: Annotated[int, typer.Option(help="Contexts of the language.")] = 96,
    vocab: Annotated[int, typer.Option(help="Words of the language.")] = 768,
    rank: Annotated[int, typer.Option(help="Rank of its true log-probability matrix.")] = 48,
    spread: Annotated[float, typer.Option(help="Standard deviation of its logits in nats.")] = 3.0,
    context_law: Annotated[
        Literal["uniform", "zipf"], typer.Option(help="How often each context occurs.")
    ] = "uniform",
    heads: Annotated[str, typer.Option(help="Heads that are trained, with commas.")] = (
        "softmax,sigsoftmax,moc,mos,moss"
    ),
    embedding_sizes: Annotated[
        str, typer.Option(metavar="E,E,…", help="Context sizes that are swept.")
    ] = "2,4,8,16,32,48",
    components: Annotated[
        str, typer.Option(metavar="K,K,…", help="Numbers of components that are swept.")
    ] = "4",
    hidden_size: Annotated[int, typer.Option(help="H of the largest head; the others have more.")] = 48,
    steps: Annotated[int, typer.Option(help="Updates of each training.")] = 1000,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 0.05,
    seeds: Annotated[str, typer.Option(metavar="S,S,…", help="Seeds of language and training.")] = "1",
    json_file: JsonFile = None,
) -> None:
    """Show the softmax bottleneck: every head against a language whose truth and rank are known.

    Trains every head at equal parameters for a sweep of context sizes and draws what it misses of the truth,
    and the rank that it reaches. The same command goes on where it was stopped.

    Example: lm bottleneck --rank 64 --components 2,4,8
    """
    from lm.analysis.bottleneck import BottleneckOptions
    from lm.analysis.bottleneck import bottleneck as sweep
    from lm.analysis.bottleneck_figure import bottleneck_tables, draw

    options = BottleneckOptions(
        contexts, vocab, rank, spread, context_law, tuple(heads.split(",")),
        _integers("--embedding-sizes", embedding_sizes), _integers("--components", components),
        hidden_size, steps, lr, _integers("--seeds", seeds),
    )  # fmt: skip
    with interruptible(RESUME) as poll, counting("training") as progress:
        result = sweep(options, out, poll, progress)
    figures = [out / "bottleneck.png", out / "bottleneck.svg"]
    draw(result, figures)
    write_result(json_file, result)
    show(*bottleneck_tables(result), f"drawn in {figures[0]} and {figures[1]}")


def _integers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} {text!r}: give whole numbers with commas, as in 2,4,8") from None


def _open(run: Path, data: str | None, checkpoint: str) -> tuple["TrainedLm", "Ids", str]:
    """A run, a text in its tokens, and what the text is called."""
    from lm.language.evaluate import load_text
    from lm.language.trained import TrainedLm

    trained = TrainedLm.load(run, checkpoint)
    text = load_text(trained, data or trained.config.data.test)
    return trained, text.ids, text.name


__all__: Sequence[str] = ("analyze", "bottleneck")
