"""The command ``tune`` of both command-line programs."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lm.config.load import C, family_of, load_config
from lm.config.places import DEFAULT_RUNS
from lm.config.presets import space_paths
from lm.config.write import config_text, literal
from lm.console.app import check_data
from lm.console.options import (
    JsonFile,
    Overrides,
    config_argument,
    foldername,
    output_file,
    require_absent,
)
from lm.console.output import show, write_result
from lm.console.pictures import require_format
from lm.disk.storage import require_place
from lm.errors import ConfigError, DivergenceError
from lm.libraries import require_libraries
from lm.machine import usable_processors
from lm.runs.outputs import is_picture, require_apart
from lm.tuning.space import load_space, space_of

if TYPE_CHECKING:
    from lm.engine.events import Reporter
    from lm.tuning.search import SearchPlan, Train

_WORKERS = 4  # maximum per processor
_OF_SEARCH = ("space", "overrides", "trials", "workers", "sampler", "seed", "prune", "minutes")
TEXT = (
    "Search for good values of config keys. Trials are runs with values drawn from the space.\n\n"
    "The same command resumes an interrupted search, and interrupted trials first. Several processes may "
    "work on one search, also on several machines with a common folder. OUT/best.toml is a config with the "
    "best values for train."
)


def add_tune(
    app: typer.Typer,
    family: str,
    schema: type[C],
    require_used: Callable[[C, Sequence[str], Sequence[str]], None],
    module: str,
    example: str,
) -> None:
    """Add the command ``tune`` to a program.

    ``require_used`` raises ConfigError for overrides that nothing reads with any values of the searched keys.
    The function ``train`` of ``module``, which is imported for a search, trains one run.
    """

    @app.command(help=f"{TEXT}\n\nExample: {family} tune {example}")
    def tune(
        context: typer.Context,
        config: Annotated[str, config_argument(family)],
        space: Annotated[
            str | None, typer.Option(metavar="FILE", help="Searched keys and their ranges (TOML).")
        ] = None,
        overrides: Overrides = None,
        out: Annotated[
            Path | None,
            typer.Option(metavar="DIR", parser=foldername, help="Folder; default runs/tune/<config name>."),
        ] = None,
        trials: Annotated[int, typer.Option(metavar="N", min=1, help="Number of trials in total.")] = 20,
        workers: Annotated[
            int,
            typer.Option(
                metavar="N", min=1, help="Number of local processes, sharing threads; at most 4 per CPU."
            ),
        ] = 1,
        sampler: Annotated[Literal["tpe", "random"], typer.Option(help="Sampler of values.")] = "tpe",
        seed: Annotated[int, typer.Option(min=0, help="Seed of the sampler, not of training.")] = 1,
        prune: Annotated[
            bool,
            typer.Option("--prune/--no-prune", help="Stop trials worse than the median at a validation."),
        ] = True,
        minutes: Annotated[
            float, typer.Option(min=0, help="Minutes after which no trial begins; 0 = no limit.")
        ] = 0.0,
        only_show: Annotated[bool, typer.Option("--show", help="Only show the trials.")] = False,
        picture: Annotated[Path | None, output_file("Parallel coordinates, PNG or SVG.", is_picture)] = None,
        json_file: JsonFile = None,
    ) -> None:
        if only_show:
            require_absent(context, _OF_SEARCH, "has no effect with --show")
        require_apart([picture, json_file], [config, space])
        if picture is not None:
            require_format(picture)
        base = load_config(config, schema, family=family, overrides=overrides or ())
        folder = out or DEFAULT_RUNS / "tune" / Path(config).stem
        if not only_show:
            require_place(folder)
            if space is None:
                spaces = ", ".join(path.stem for path in space_paths(family))
                raise ConfigError(f"--space is missing; name a file or one of {spaces}, or add --show")
            parameters = load_space(space, base, schema, family=family)
            require_libraries("tune", "tune", "optuna")
            searched = [name for one in parameters for name in (one.key, *one.also)]
            require_used(base.config, overrides or (), searched)
            config_text(base.config)  # best.toml could not hold what these refuse
            literal(config)
            from lm.tuning.search import SearchPlan

            plan = SearchPlan(config, base, parameters, sampler, seed, prune)
            _search(folder, plan, importlib.import_module(module).train, trials, workers, minutes)
        require_libraries("tune", "tune", "optuna")
        _show(folder, picture, json_file)


def _search(
    folder: Path, plan: "SearchPlan[C]", train: "Train[C]", trials: int, workers: int, minutes: float
) -> None:
    from lm.engine.progress import PlainReporter, make_reporter
    from lm.tuning.search import Search
    from lm.tuning.workers import SearchJob, work_together

    processors = usable_processors()
    if workers > _WORKERS * processors:
        raise ConfigError(
            f"--workers {workers}: too many for {processors} processors; choose at most"
            f" {_WORKERS * processors}"
        )
    config: Any = plan.base.config
    check_data(config.data, f"{family_of(type(config))} prepare")
    search = Search(folder, plan)  # in the parent, so that an error is reported only once
    if workers > 1:
        threads = max(1, processors // workers)
        work_together(SearchJob(folder, plan, train, trials, minutes, threads), workers)
        return

    def report(run: Path) -> "Reporter":
        return make_reporter(sys.stderr, run / "tensorboard")

    search.run(trials, train, report, PlainReporter(sys.stderr), minutes)


def _show(folder: Path, picture: Path | None, json_file: Path | None) -> None:
    from lm.tuning.display import draw_trials, search_tables
    from lm.tuning.search import BEST, SEARCH, best_of, read_search
    from lm.tuning.trials import read_rows

    saved = read_search(folder)
    rows = read_rows(folder, space_of(saved["space"], str(folder / SEARCH)))
    best = best_of(rows)
    result: Mapping[str, Any] = saved | {"trials": rows, "best": best and best["trial"]}
    write_result(json_file, result)
    if picture:
        draw_trials(picture, f"{saved['family']} {saved['source']}", saved["space"], rows)
    show(*search_tables(str(folder), rows, best))
    if best:
        show(f"the best values are in {folder / BEST}")
    failed = [row for row in rows if row["state"] == "failed"]
    if failed and len(failed) == len(rows):
        raise DivergenceError(f"{folder}: all trials failed, the first with: {failed[0]['reason']}")
