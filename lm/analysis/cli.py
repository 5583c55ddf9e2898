"""The commands ``lm analyze …``: analyses of trained models."""

from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from lm.analysis.head_commands import geometry, gradient, histories, unargmaxable
from lm.analysis.opened import alike, measured, opened_with_text, require_texts
from lm.console.app import Commands, in_processes
from lm.console.measured import OneCheckpoint, Out, OverTraining, Runs, figure_files, report_runs
from lm.console.options import Checkpoint, JsonFile, Processes, RunFolder, foldername
from lm.console.output import show, write_result
from lm.errors import require, visible
from lm.language.options import Data, Limit, spare_texts
from lm.parallel.group import process_group
from lm.results import as_json
from lm.runs.measured import Measured, MeasuredRuns, measurement
from lm.runs.opened import naming

analyze = typer.Typer(
    cls=Commands,
    help="Analyse trained language models: ranks, divergence, temperatures, gates and more.",
    no_args_is_help=True,
)


@analyze.command()
def rank(
    runs: Runs,
    data: Data = None,
    limit: Limit = None,
    checkpoint: Checkpoint = "best",
    out: Out = None,
    json_file: JsonFile = None,
    processes: Processes = 1,
) -> None:
    """Numerical rank of the log-probability matrix of runs, and their singular values in one figure.

    A long text and a large vocabulary take minutes to hours, which --limit shortens. Singular values are
    stored in RUN/analysis, and reused while weights and text are unchanged. Several processes share the runs.

    Example: lm analyze rank runs/ptb_small_softmax runs/ptb_small_mos --limit 20000
    """
    spare_texts(json_file, runs, data)
    in_processes(processes)
    from lm.analysis.rank import ranks_of_runs
    from lm.spectra.rank_report import report_ranks, shared_ranks

    figures = figure_files("rank", out, runs)
    require_texts(runs, data)  # of all processes
    measure = partial(ranks_of_runs, data=data, limit=limit, checkpoint=checkpoint)
    report_ranks(shared_ranks(runs, measure), figures, json_file)


@analyze.command()
def divergence(
    runs: Runs,
    data: Data = None,
    limit: Limit = None,
    checkpoint: Checkpoint = "best",
    json_file: JsonFile = None,
    processes: Processes = 1,
) -> None:
    """Mean Kullback-Leibler divergence between the predictions of all pairs of contexts, exactly.

    Example: lm analyze divergence runs/ptb_small_softmax runs/ptb_small_mos
    """
    spare_texts(json_file, runs, data)
    in_processes(processes)
    from lm.analysis.divergence import divergence_of_run, divergence_tables

    with process_group() as group:
        results = measured(opened_with_text(runs, data, limit, checkpoint, group=group), divergence_of_run)
    report_runs(json_file, results, divergence_tables)


@analyze.command()
def components(
    run: RunFolder,
    data: Data = None,
    limit: Limit = None,
    checkpoint: Checkpoint = "best",
    json_file: JsonFile = None,
    processes: Processes = 1,
) -> None:
    """Use of the components of a mixture: entropy of the prior, shares, preferred words of each.

    Example: lm analyze components runs/ptb_small_mos
    """
    spare_texts(json_file, [run], data)
    in_processes(processes)
    from lm.analysis.components import component_tables, components_of_run

    with process_group() as group:
        [(opened, text)] = opened_with_text([run], data, limit, checkpoint, group=group)
        with naming(opened):
            result = measurement(opened, text, components_of_run(opened.trained, text.ids))
    write_result(json_file, result, config=opened.trained.config)
    show(*component_tables(str(run), result.found))


@analyze.command()
def examples(
    first: Annotated[Path, typer.Argument(metavar="A", help="The worse run.", parser=foldername)],
    second: Annotated[Path, typer.Argument(metavar="B", help="The better run.", parser=foldername)],
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
    from lm.analysis.examples import Wanted, compare_runs, example_tables

    require(isfinite(margin), f"--margin {margin}: must be a finite number")
    require(first.resolve() != second.resolve(), f"{visible(second)}: named twice; name the better run")
    (beaten, text), (better, _) = alike(opened_with_text([first, second], data, limit, checkpoint))
    found = compare_runs(beaten.trained, better.trained, text.ids, Wanted(count, margin))
    write_result(json_file, measurement(better, text, found), config=better.trained.config)
    show(*example_tables(str(first), str(second), found))


@analyze.command()
def temperature(
    runs: Runs,
    data: Data = None,
    limit: Limit = None,
    checkpoint: OneCheckpoint = "best",
    over_training: OverTraining = False,
    word: Annotated[str | None, typer.Option(help="Also show every occurrence of a word.")] = None,
    out: Out = None,
    json_file: JsonFile = None,
) -> None:
    """Temperatures of words in contexts: by word, by place in the sentence, over training.

    To show a whole training, set train.keep_last and train.keep_best to its number of validations.

    Example: lm analyze temperature runs/ptb_small_ct_mos --over-training
    """
    spare_texts(json_file, runs, data)
    from lm.analysis.temperature import (
        Profile,
        TemperatureReport,
        draw_temperatures,
        occurrences,
        positions,
        profile,
        temperature_report,
        temperature_tables,
    )
    from lm.disk.storage import make_folder

    figures = figure_files("temperature", out, runs)
    results: dict[str, Measured[TemperatureReport]] = {}
    profiles: dict[str, Profile] = {}
    steps = opened_with_text(runs, data, limit, checkpoint, over_training)
    for opened, text in alike(steps, texts=False):
        words = opened.trained.codec.vocabulary
        at = None if word is None else positions(text.ids, words.tokens, word)
        with naming(opened):
            found = profile(opened.trained, text.ids)
        report = temperature_report(found, words.tokens)
        if at is not None:
            report = replace(report, word=word, occurrences=occurrences(found, text.ids, words.tokens, at))
        profiles[opened.name], results[opened.name] = found, measurement(opened, text, report)
    make_folder(figures[0].parent)
    draw_temperatures(profiles, words.counts, figures)
    report_runs(json_file, results, temperature_tables, figures, f"drawn in {figures[0]} and {figures[1]}")


@analyze.command()
def recovery(
    runs: Runs,
    data: Data = None,
    limit: Limit = None,
    share: Annotated[float, typer.Option(help="Share of tokens that count as surprises.")] = 0.1,
    checkpoint: Checkpoint = "best",
    json_file: JsonFile = None,
) -> None:
    """Losses on the tokens after surprises, which have the largest mean loss over all models.

    Example: lm analyze recovery runs/ptb_small_softmax runs/ptb_small_mlstm runs/ptb_small_mogrifier
    """
    spare_texts(json_file, runs, data)
    from lm.analysis.recovery import recovery as recover
    from lm.analysis.recovery import recovery_tables, require_share
    from lm.language.scoring import token_nll

    require_share(share)
    losses, opens = {}, {}
    for opened, text in alike(opened_with_text(runs, data, limit, checkpoint)):
        losses[opened.name] = token_nll(opened.trained, text.ids)
        opens[opened.name] = opened, text
    surprises, found = recover(losses, share)
    results = {name: measurement(*opens[name], one) for name, one in found.items()}
    write_result(json_file, as_json(surprises) | as_json(MeasuredRuns.of(results)))
    show(*recovery_tables(surprises, found))


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
    from lm.analysis.gates import gate_statistics, gate_tables, require_gates

    steps = opened_with_text(runs, data, limit, checkpoint, fits=require_gates)
    report_runs(json_file, measured(steps, gate_statistics), gate_tables)


for _command in (geometry, gradient, histories, unargmaxable):
    analyze.command()(_command)
