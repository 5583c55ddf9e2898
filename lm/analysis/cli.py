"""The commands ``lm analyze …``: analyses of trained models."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lm.console.app import counting, show, write_result
from lm.console.options import Checkpoint, JsonFile, RunFolder
from lm.errors import ConfigError
from lm.language.options import Data, Limit, spare_texts

if TYPE_CHECKING:
    from lm.language.evaluate import Text
    from lm.language.trained import TrainedLm

analyze = typer.Typer(
    help="Analyse trained language models: ranks, divergence, temperatures, gates and more.",
    no_args_is_help=True,
)

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")]
Out = Annotated[
    Path,
    typer.Option(
        "--out", metavar="DIR", help="Folder of figures; results of a single run are in RUN/analysis."
    ),
]


@analyze.command()
def rank(
    runs: Runs,
    data: Data = None,
    limit: Limit = None,
    checkpoint: Checkpoint = "best",
    out: Out = Path("analysis"),
    json_file: JsonFile = None,
) -> None:
    """Numerical rank of the log-probability matrix of runs, and their singular values in one figure.

    A long text and a large vocabulary take minutes to hours, which --limit shortens. Singular values are
    stored in RUN/analysis, and reused while weights and text are unchanged.

    Example: lm analyze rank runs/ptb_small_softmax runs/ptb_small_mos --limit 20000
    """
    spare_texts(json_file, runs, data)
    from lm.analysis.rank import rank_of_run, rank_tables
    from lm.analysis.spectrum import RankResult
    from lm.analysis.spectrum_figure import draw_spectra
    from lm.disk.storage import make_folder

    results: dict[str, dict[str, Any]] = {}
    spectra: dict[str, RankResult] = {}
    with counting("factorising") as progress:
        for run, trained, text in _opened(runs, data, limit, checkpoint):
            folder = run / "analysis"
            make_folder(folder)
            measured = rank_of_run(
                trained, text.ids, progress, spectrum=folder / _spectrum_name(text, checkpoint)
            )
            results[str(run)] = _facts(trained, text, checkpoint) | measured
            spectra[str(run)] = RankResult.load(Path(measured["spectrum"]))
    make_folder(out)
    figures = [out / "rank.png", out / "rank.svg"]
    draw_spectra(spectra, figures)
    write_result(json_file, _of_runs(results) | {"figures": [str(path) for path in figures]})
    show(*rank_tables(results), f"singular values: {figures[0]}, {figures[1]} and RUN/analysis/*.npz")


@analyze.command()
def divergence(
    runs: Runs,
    data: Data = None,
    limit: Limit = None,
    checkpoint: Checkpoint = "best",
    json_file: JsonFile = None,
) -> None:
    """Mean Kullback-Leibler divergence between the predictions of all pairs of contexts, exactly.

    Example: lm analyze divergence runs/ptb_small_softmax runs/ptb_small_mos
    """
    spare_texts(json_file, runs, data)
    from lm.analysis.divergence import divergence_tables, expected_divergence

    results = {
        str(run): _facts(trained, text, checkpoint) | expected_divergence(trained.log_probs(text.ids))
        for run, trained, text in _opened(runs, data, limit, checkpoint)
    }
    write_result(json_file, _of_runs(results))
    show(*divergence_tables(results))


@analyze.command()
def components(
    run: RunFolder,
    data: Data = None,
    limit: Limit = None,
    checkpoint: Checkpoint = "best",
    json_file: JsonFile = None,
) -> None:
    """Use of the components of a mixture: entropy of the prior, shares, preferred words of each.

    Example: lm analyze components runs/ptb_small_mos
    """
    spare_texts(json_file, [run], data)
    from lm.analysis.components import component_tables, components_of_run

    [(_, trained, text)] = _opened([run], data, limit, checkpoint)
    result = _facts(trained, text, checkpoint) | components_of_run(trained, text.ids)
    write_result(json_file, result, config=trained.config)
    show(*component_tables(str(run), result))


@analyze.command()
def examples(
    first: Annotated[Path, typer.Argument(metavar="A", help="Run with the worse predictions.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Run with the better predictions.")],
    data: Data = None,
    limit: Limit = None,
    margin: Annotated[float, typer.Option(help="Smallest gain of B, in nats.")] = 1.0,
    count: Annotated[int, typer.Option(min=1, help="Number of examples, the largest gains first.")] = 10,
    checkpoint: Checkpoint = "best",
    json_file: JsonFile = None,
) -> None:
    """Examples that run B predicts better than run A: context, word, and the guesses of both.

    Example: lm analyze examples runs/ptb_small_softmax runs/ptb_small_mos
    """
    spare_texts(json_file, [first, second], data)
    import numpy as np

    from lm.analysis.examples import Wanted, compare_runs, example_tables, require_same_words

    beaten, better = _load(first, checkpoint), _load(second, checkpoint)
    require_same_words(beaten, better)
    text, other = _text(beaten, data, limit), _text(better, data, limit)
    if not np.array_equal(text.ids, other.ids):
        raise ConfigError(
            f"{first} and {second} tokenize {data} differently; train both on one corpus"
            if data
            else f"{first} and {second} have different test splits; name one text with --data"
        )
    result = _facts(better, text, checkpoint)
    result |= compare_runs(beaten, better, text.ids, Wanted(count, margin))
    write_result(json_file, result, config=better.config)
    show(*example_tables(str(first), str(second), result))


@analyze.command()
def temperature(
    runs: Runs,
    data: Data = None,
    limit: Limit = None,
    checkpoint: Checkpoint = "best",
    over_training: Annotated[
        bool, typer.Option("--over-training", help="Analyse every stored checkpoint of the runs.")
    ] = False,
    word: Annotated[str | None, typer.Option(help="Also show every occurrence of a word.")] = None,
    out: Out = Path("analysis"),
    json_file: JsonFile = None,
) -> None:
    """Temperatures of words in contexts: by word, by place in the sentence, over training.

    To show a whole training, set train.keep_last and train.keep_best to its number of validations.

    Example: lm analyze temperature runs/ptb_small_ct_mos --over-training
    """
    spare_texts(json_file, runs, data)
    from lm.analysis.examples import require_same_words
    from lm.analysis.temperature import (
        Profile,
        draw_temperatures,
        occurrences,
        profile,
        steps_of,
        temperature_report,
        temperature_tables,
    )
    from lm.disk.storage import make_folder

    results: dict[str, dict[str, Any]] = {}
    profiles: dict[str, Profile] = {}
    first = _load(runs[0], checkpoint)
    words = first.codec.vocabulary
    for run in runs:
        for which in steps_of(run) if over_training else [checkpoint]:
            trained = _load(run, which)
            require_same_words(first, trained)
            text = _text(trained, data, limit)
            name = f"{run} {which}" if over_training else str(run)
            profiles[name] = profile(trained, text.ids)
            report = temperature_report(profiles[name], words.tokens)
            results[name] = _facts(trained, text, which) | report
            if word is not None:
                places = occurrences(profiles[name], text.ids, words.tokens, word)
                results[name] |= {"word": word, "occurrences": places}
    make_folder(out)
    figures = [out / "temperature.png", out / "temperature.svg"]
    draw_temperatures(profiles, words.counts, figures)
    write_result(json_file, _of_runs(results) | {"figures": [str(path) for path in figures]})
    show(*temperature_tables(results), f"drawn in {figures[0]} and {figures[1]}")


@analyze.command()
def recovery(
    runs: Runs,
    data: Data = None,
    limit: Limit = None,
    share: Annotated[float, typer.Option(min=0, max=1, help="Share of tokens that are surprises.")] = 0.1,
    checkpoint: Checkpoint = "best",
    json_file: JsonFile = None,
) -> None:
    """Losses of models directly after tokens that surprised all of them.

    Example: lm analyze recovery runs/ptb_small_softmax runs/ptb_small_mlstm runs/ptb_small_mogrifier
    """
    spare_texts(json_file, runs, data)
    import numpy as np

    from lm.analysis.examples import require_same_words
    from lm.analysis.recovery import recovery as recover
    from lm.analysis.recovery import recovery_tables
    from lm.language.scoring import token_nll

    losses, facts = {}, {}
    first = _load(runs[0], checkpoint)
    ids = _text(first, data, limit).ids
    for run, trained, text in _opened(runs, data, limit, checkpoint):
        require_same_words(first, trained)
        if not np.array_equal(text.ids, ids):
            raise ConfigError(f"{run}: its text differs from that of {runs[0]}; name one with --data")
        losses[str(run)] = token_nll(trained, ids)
        facts[str(run)] = _facts(trained, text, checkpoint)
    result = recover(losses, share)
    for name, found in result["runs"].items():
        found |= facts[name]
    write_result(json_file, result | _of_runs(result["runs"]))
    show(*recovery_tables(result))


@analyze.command()
def gates(
    runs: Runs,
    data: Data = None,
    limit: Limit = None,
    checkpoint: Checkpoint = "best",
    json_file: JsonFile = None,
) -> None:
    """Means, deviations and saturation of the gates of every recurrent layer.

    Example: lm analyze gates runs/ptb_small_softmax runs/ptb_small_mogrifier
    """
    spare_texts(json_file, runs, data)
    from lm.analysis.gates import gate_statistics, gate_tables

    results = {
        str(run): _facts(trained, text, checkpoint) | gate_statistics(trained, text.ids)
        for run, trained, text in _opened(runs, data, limit, checkpoint)
    }
    write_result(json_file, _of_runs(results))
    show(*gate_tables(results))


def _load(run: Path, checkpoint: str) -> "TrainedLm":
    from lm.language.trained import TrainedLm

    return TrainedLm.load(run, checkpoint)


def _opened(
    runs: Sequence[Path], data: str | None, limit: int | None, checkpoint: str
) -> Iterator[tuple[Path, "TrainedLm", "Text"]]:
    """Yield every run with its text."""
    for run in runs:
        trained = _load(run, checkpoint)
        yield run, trained, _text(trained, data, limit)


def _text(trained: "TrainedLm", data: str | None, limit: int | None) -> "Text":
    from lm.language.evaluate import load_text

    return load_text(trained, data or trained.config.data.test, limit)


def _spectrum_name(text: "Text", checkpoint: str) -> str:
    """File name of the singular values, with non-default options as in names of evaluations."""
    from lm.runs.evaluations import slug

    return f"rank-{text.name}{'' if checkpoint == 'best' else '.' + slug(checkpoint)}.npz"


def _facts(trained: "TrainedLm", text: "Text", checkpoint: str) -> dict[str, Any]:
    """Facts about a measurement: run, checkpoint, text."""
    return {
        "checkpoint": checkpoint,
        "seed": trained.config.train.seed,
        "device": str(trained.device),
        "data": {"name": text.name, "source": text.source, "sha256": text.sha256},
    }


def _of_runs(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Results of several runs by name, with the devices of the measurements."""
    return {"runs": results, "device": ", ".join(sorted({result["device"] for result in results.values()}))}
