"""The command ``tune`` of both command lines."""

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lm.config.load import C, load_config
from lm.console.app import show, write_result
from lm.console.options import JsonFile, Overrides, config_argument, filename, named, writable
from lm.console.pictures import require_format
from lm.errors import ConfigError, DivergenceError
from lm.runs.outputs import require_apart
from lm.tuning.space import load_space, space_of

if TYPE_CHECKING:
    from lm.engine.progress import Reporter
    from lm.tuning.search import Plan, Train

_WORKERS = 4  # a processor, at most
TEXT = (
    "Search for good values of config keys: trials are runs that differ in what the space varies.\n\n"
    "The same command goes on where it was stopped, trials that were cut off first. Several may work on one "
    "search, also on several machines with a common folder. The best values are in OUT/best.toml, a config "
    "for train."
)


def add_tune(app: typer.Typer, family: str, schema: type[C], train: "Train[C]", example: str) -> None:
    """Gives a command line the command ``tune``; ``train``, a function of a module, trains one run."""

    @app.command(help=f"{TEXT}\n\nExample: {family} tune {example}")
    def tune(
        config: Annotated[str, config_argument(family)],
        space: Annotated[
            str | None, typer.Option(metavar="FILE", help="What is varied, and in which ranges (TOML).")
        ] = None,
        overrides: Overrides = None,
        out: Annotated[
            Path | None,
            typer.Option(metavar="DIR", parser=named, help="runs/tune/<config name> if left out."),
        ] = None,
        trials: Annotated[int, typer.Option(metavar="N", min=1, help="In total, over all workers.")] = 20,
        workers: Annotated[
            int,
            typer.Option(metavar="N", min=1, help="Processes here, sharing threads; at most 4 a processor."),
        ] = 1,
        sampler: Annotated[Literal["tpe", "random"], typer.Option(help="How values are drawn.")] = "tpe",
        seed: Annotated[int, typer.Option(min=0, help="Seeds the drawing; train.seed is apart.")] = 1,
        prune: Annotated[
            bool,
            typer.Option("--prune/--no-prune", help="End trials whose best validation is behind the median."),
        ] = True,
        minutes: Annotated[
            float, typer.Option(min=0, help="Begin no trial after so many minutes; 0 is no limit.")
        ] = 0.0,
        only_show: Annotated[bool, typer.Option("--show", help="Show the trials and leave.")] = False,
        picture: Annotated[
            Path | None,
            typer.Option(
                metavar="FILE", help="Parallel coordinates as PNG or SVG.", parser=filename, callback=writable
            ),
        ] = None,
        json_file: JsonFile = None,
    ) -> None:
        require_apart([picture, json_file], [config, space])
        if picture is not None:
            require_format(picture)
        base = load_config(config, schema, family=family, overrides=overrides or ())
        folder = out or Path("runs/tune") / Path(config).stem
        if not only_show:
            if space is None:
                raise ConfigError("--space: name the file of what is varied, or give --show")
            parameters = load_space(space, base, schema, family=family)
            require_optuna()
            from lm.tuning.search import Plan

            plan = Plan(config, base, parameters, sampler, seed, prune)
            _search(folder, plan, train, trials, workers, minutes)
        require_optuna()
        _show(folder, picture, json_file)


def require_optuna(who: str = "tune") -> None:
    """ConfigError where it is not installed."""
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError(f"{who} needs optuna: install it with `pip install optuna`")


def _search(
    folder: Path, plan: "Plan[C]", train: "Train[C]", trials: int, workers: int, minutes: float
) -> None:
    from lm.engine.progress import PlainReporter, make_reporter
    from lm.tuning.search import Search
    from lm.tuning.workers import Job, work_together

    processors = len(os.sched_getaffinity(0))
    if workers > _WORKERS * processors:
        raise ConfigError(
            f"--workers {workers}: too many for {processors} processors; at most {_WORKERS * processors}"
        )
    search = Search(folder, plan)  # here, so that what is wrong is told once
    if workers > 1:
        threads = max(1, processors // workers)
        work_together(Job(folder, plan, train, trials, minutes, threads), workers)
        return

    def report(run: Path) -> "Reporter":
        return make_reporter(sys.stderr, run / "tensorboard")

    search.run(trials, train, report, PlainReporter(sys.stderr).note, minutes)


def _show(folder: Path, picture: Path | None, json_file: Path | None) -> None:
    from lm.tuning.report import draw, search_tables
    from lm.tuning.search import BEST, SEARCH, best_of, read_search
    from lm.tuning.trials import Trials

    saved = read_search(folder)
    parameters = space_of(saved["space"], str(folder / SEARCH))
    rows = Trials(folder, parameters, saved["sampler"], saved["seed"]).rows()
    best = best_of(rows)
    result: Mapping[str, Any] = saved | {"trials": rows, "best": best and best["trial"]}
    write_result(json_file, result)
    if picture:
        draw(picture, f"{saved['family']} {saved['source']}", saved["space"], rows)
    show(*search_tables(str(folder), rows, best))
    if best:
        show(f"the best values are in {folder / BEST}")
    failed = [row for row in rows if row["state"] == "failed"]
    if failed and len(failed) == len(rows):
        raise DivergenceError(f"{folder}: every trial failed, the first by: {failed[0]['reason']}")
