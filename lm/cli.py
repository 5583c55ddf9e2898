"""The ``lm`` command line. Each command imports its modules, calls them, and shows the result."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lm.analysis.cli import analyze
from lm.config.load import load_config
from lm.config.places import default_run
from lm.console.app import check_data, in_processes, new_app, on_rank_0, run_app, show_training
from lm.console.commands import add_check, add_describe, add_presets, add_runs
from lm.console.exchange import add_exchange
from lm.console.options import (
    Checkpoint,
    FinetunedRun,
    JsonFile,
    NewRun,
    Overrides,
    Processes,
    RunFolder,
    RunFolders,
    config_argument,
    filename,
    output_file,
    require_absent,
)
from lm.console.output import counting, note, show, write_result
from lm.disk.new_folder import beside
from lm.doctor.cli import add_doctor
from lm.errors import ConfigError
from lm.language.config import LmConfig
from lm.language.corpus_cli import prepare
from lm.language.options import (
    Cache,
    Compat,
    Data,
    Limit,
    McRate,
    McSamples,
    TemperatureSearch,
    lm_config,
    require_used,
    spare_texts,
)
from lm.language.serve import serve
from lm.libraries import require_libraries
from lm.report.cli import add_compare_and_report
from lm.runs.outputs import require_apart, rows_with
from lm.studies.cli import bottleneck, reverse_copy
from lm.tuning.cli import add_tune

app = new_app(
    "Language models with high-rank output heads: train, finetune, evaluate, analyse, generate.\n\n"
    "Start with [bold]lm bottleneck[/bold], or with a corpus: [bold]lm prepare ptb/ --out data/ptb[/bold], "
    "[bold]lm train ptb_small_mos[/bold], [bold]lm evaluate runs/ptb_small_mos[/bold]."
)

_TRAIN = "lm.language.train"  # module whose function train trains a run
Config = Annotated[str, config_argument("lm")]


def _size(config: LmConfig) -> dict[str, Any]:
    from lm.language.describe import describe, prepared_words

    return describe(config, prepared_words(config.data))


add_presets(app, "lm", LmConfig, _size)
add_describe(app, "lm", LmConfig, require_used, _size, "ptb_mos")
app.command()(prepare)


@app.command()
def train(config: Config, overrides: Overrides = None, run: NewRun = None, processes: Processes = 1) -> None:
    """Train a model, or resume: the same command again continues where the run stopped.

    Example: lm train ptb_mos --set head.components=10 --run runs/mos10
    """
    resolved = load_config(config, LmConfig, family="lm", overrides=overrides or ())
    require_used(resolved.config, overrides or ())
    in_processes(processes, resolved.config.train.shards)
    check_data(resolved.config.data, "lm prepare")
    show_training(run or default_run(config), resolved, _TRAIN)


add_tune(app, "lm", LmConfig, require_used, _TRAIN, "ptb_small_mos --space ptb_small")


@app.command()
def finetune(source: RunFolder, overrides: Overrides = None, run: FinetunedRun = None) -> None:
    """Finetune the best weights of a run with averaged SGD until validation stalls, as a new run.

    Example: lm finetune runs/ptb_mos --set optim.lr=25
    """
    from lm.language.train import finetuned

    folder = run or beside(source, "-finetuned")
    resolved = finetuned(source, overrides or [])
    require_used(resolved.config, overrides or ())
    show_training(folder, resolved, _TRAIN)


@app.command()
def evaluate(
    runs: RunFolders,
    data: Data = None,
    temperature_search: TemperatureSearch = False,
    mc_samples: McSamples = 0,
    mc_rate: McRate = 1.0,
    cache: Cache = None,
    checkpoint: Checkpoint = "best",
    limit: Limit = None,
    compat: Compat = None,
    json_file: JsonFile = None,
    processes: Processes = 1,
) -> None:
    """Evaluate a run on a text: perplexity with every token scored once, and losses by word frequency.

    Several runs of one vocabulary are evaluated as one model, with the mean of their probabilities.

    Example: lm evaluate runs/ptb_mos --temperature-search --json mos.json
    """
    run, *others = runs
    configs = [lm_config(one) for one in runs]
    spare_texts(json_file, runs, data)
    in_processes(processes)
    from lm.language.cache import CacheSetting
    from lm.language.evaluate import evaluate as evaluate_run
    from lm.language.refinements import Refinements
    from lm.language.tables import evaluation_tables
    from lm.runs.inputs import prepared_anew

    note(*() if data else prepared_anew(runs, [one.data.train for one in configs]))
    cached = None if cache is None else CacheSetting.parse(cache)
    wanted = Refinements(temperature_search, mc_samples, mc_rate, cached)
    with counting("scoring") as progress:
        result = evaluate_run(run, data, checkpoint, wanted, limit, compat, progress, others)
    write_result(json_file, result, config=configs[0])
    show(*evaluation_tables(result))


@app.command()
def dynamic(
    run: RunFolder,
    data: Data = None,
    setting: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Setting of the options below: default, paper-mos-ptb, paper-mos-wt2, paper-awd.",
        ),
    ] = "default",
    lr: Annotated[float | None, typer.Option(help="Learning rate η instead of the setting's.")] = None,
    decay: Annotated[float | None, typer.Option(help="Rate λ of the return to the trained weights.")] = None,
    eps: Annotated[float | None, typer.Option(help="Term ε, added to the RMS of gradients.")] = None,
    scaling: Annotated[
        Literal["normalised", "original", "elements"] | None,
        typer.Option(
            metavar="KIND",
            help="Scaling of the three: normalised, original (MoS paper) or elements (Melis et al. 2020).",
        ),
    ] = None,
    window: Annotated[int | None, typer.Option(help="Tokens between updates; 5 in the papers.")] = None,
    streams: Annotated[
        int | None,
        typer.Option(help="Streams for statistics of gradients; default 100, Melis et al. 1024."),
    ] = None,
    grid: Annotated[
        bool, typer.Option("--grid", help="Search η and λ on validation in the published grid.")
    ] = False,
    trials: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Search η, λ and ε on validation: N draws from the ranges of Melis et al.",
        ),
    ] = None,
    temperature_search: TemperatureSearch = False,
    mc_samples: McSamples = 0,
    mc_rate: McRate = 1.0,
    cache: Cache = None,
    checkpoint: Checkpoint = "best",
    limit: Limit = None,
    compat: Compat = None,
    json_file: JsonFile = None,
) -> None:
    """Dynamic evaluation: train the model on the text that it is evaluated on.

    Statistics of the training data and search results are stored in the run, so the same command resumes.

    Example: lm dynamic runs/ptb_mos --grid
    """
    config = lm_config(run)
    spare_texts(json_file, [run], data)
    on_rank_0("in dynamic evaluation, every update depends on the one before")
    from lm.language.adaptation import named_setting
    from lm.language.cache import CacheSetting
    from lm.language.dynamic import dynamic as evaluate_dynamically
    from lm.language.refinements import Refinements
    from lm.language.setting_search import Draws, Grid, require_free
    from lm.language.tables import dynamic_tables

    given = {"lr": lr, "decay": decay, "eps": eps, "scaling": scaling, "window": window, "streams": streams}
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if grid and trials:
        raise ConfigError("--grid --trials: two ways to choose a setting; leave out one")
    if trials:
        require_libraries("--trials", "tune", "optuna")
    search = Grid() if grid else Draws(trials) if trials else None
    if search:
        require_free(search, changed)
    chosen = replace(named_setting(setting), **changed)
    cached = None if cache is None else CacheSetting.parse(cache)
    wanted = Refinements(temperature_search, mc_samples, mc_rate, cached)
    with counting("adapting") as progress:
        result = evaluate_dynamically(run, data, checkpoint, chosen, search, wanted, limit, compat, progress)
    write_result(json_file, result, config=config)
    show(*dynamic_tables(result))


@app.command()
def generate(
    context: typer.Context,
    run: RunFolder,
    prompt: Annotated[str, typer.Option(help="Text to continue.")] = "",
    max_tokens: Annotated[int, typer.Option(metavar="N", help="Maximum length in tokens.")] = 200,
    temperature: Annotated[float, typer.Option(help="Temperature; below 1 favours probable words.")] = 1.0,
    temperature_on: Annotated[
        Literal["mixture", "components"],
        typer.Option(help="Temper the mixed distribution or every component's logits."),
    ] = "mixture",
    top_k: Annotated[int, typer.Option(help="Sample from the k most probable words; 0 = all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample from the smallest set with this probability.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 1,
    count: Annotated[int, typer.Option(help="Number of texts.")] = 1,
    unknown: Annotated[bool, typer.Option("--unk/--no-unk", help="Allow or forbid <unk>.")] = True,
    checkpoint: Checkpoint = "best",
) -> None:
    """Generate text with a run, word by word, after the prompt. Lists unknown words of the prompt.

    Example: lm generate runs/ptb_mos --prompt "the company said" --temperature 0.8 --no-unk
    """
    lm_config(run)
    from lm.console.terminal import sanitize
    from lm.language.generate import GenerateOptions, as_read, prompt_notes
    from lm.language.generate import generate as write
    from lm.language.trained import TrainedLm

    if top_k == 1:
        idle = ("temperature", "temperature_on", "top_p", "seed", "count")
        require_absent(context, idle, "has no effect with --top-k 1, which takes the most probable word")
    if temperature == 1:
        require_absent(context, ["temperature_on"], "has no effect at --temperature 1")
    options = GenerateOptions(max_tokens, temperature, temperature_on, top_k, top_p, seed, count, unknown)
    trained = TrainedLm.load(run, checkpoint)
    for line in prompt_notes(trained, prompt, options):
        typer.echo(sanitize(line), err=True)
    begun, number = sanitize(as_read(trained.codec, prompt)), -1
    for piece in write(trained, prompt, options):
        if piece.sample != number:
            typer.echo(f"\n\n{begun}" if piece.sample else begun, nl=False)
            number = piece.sample
        typer.echo(sanitize(piece.text), nl=False)
    typer.echo()


@app.command()
def score(
    run: RunFolder,
    file: Annotated[Path, typer.Argument(metavar="FILE", parser=filename, help="Text file, scored by line.")],
    output: Annotated[Path, output_file("Output file.", rows_with("line", "log_probs"), metavar="F")] = Path(
        "scores.jsonl"
    ),
    independent: Annotated[
        bool, typer.Option("--independent", help="Reset the state before each line.")
    ] = False,
    checkpoint: Checkpoint = "best",
    json_file: JsonFile = None,
    processes: Processes = 1,
) -> None:
    """Write the log-probability of every token of a text, as JSON lines.

    Example: lm score runs/ptb_mos text.txt --output scores.jsonl
    """
    require_apart([output, json_file], [file])
    config = lm_config(run)
    for path in (output, json_file):
        spare_texts(path, [run], None)
    in_processes(processes)
    from lm.language.scoring import score_file
    from lm.language.tables import scoring_tables

    result = score_file(run, file, output, checkpoint=checkpoint, independent=independent)
    write_result(json_file, result, config=config, seed=config.train.seed)
    show(*scoring_tables(result))


add_compare_and_report(app, "lm runs/ptb_small_softmax runs/ptb_small_mos", "lm.language.report")


app.add_typer(analyze, name="analyze")
app.command()(bottleneck)
app.command()(reverse_copy)
app.command()(serve)
add_check(app, "lm")
add_runs(app, "lm")
add_doctor(app, "lm", "lm.language.doctor")
add_exchange(app, "lm", LmConfig, "lm.export")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``lm`` with the given or the process's arguments. Raises SystemExit with the exit code."""
    run_app(app, "lm", arguments)
