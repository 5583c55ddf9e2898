"""Commands of both command lines: ``presets``, ``describe``, ``runs`` and ``check``."""

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel

from lm.config.load import load_config
from lm.config.places import DEFAULT_RUNS, not_a_run, runs_in
from lm.config.presets import preset_names, recorded_parameters, sizes_of
from lm.config.write import config_text
from lm.console.app import shown_curve
from lm.console.options import JsonFile, Overrides, RunFolder, config_argument, foldername
from lm.console.output import csv_wanted, show, show_text, write_result
from lm.console.tables import Table
from lm.errors import StorageError
from lm.runs.outputs import require_apart

C = TypeVar("C", bound=BaseModel)


def add_presets(app: typer.Typer, family: str, schema: type[C], size: Callable[[C], dict[str, Any]]) -> None:
    """Add the command ``presets`` to a command line; ``size`` is the family's own ``describe``."""

    @app.command()
    def presets() -> None:
        """List the configs that come with Highrank. Parameters are for their largest vocabulary."""
        rows, recorded = [], recorded_parameters(family)
        for name in preset_names(family):
            config: Any = load_config(name, schema, family=family).config  # every family has the key about
            known = recorded.get(name, {})
            fresh = known.get("of") == sizes_of(config)  # if the preset has changed, count again
            parameters = known["parameters"] if fresh else size(config)["parameters"]
            rows.append({"preset": name, "about": config.about, "parameters": parameters})
        show(Table("Presets", rows))


def add_describe(
    app: typer.Typer,
    family: str,
    schema: type[C],
    require_used: Callable[[C, Sequence[str]], None],
    size: Callable[[C], dict[str, Any]],
    example: str,
) -> None:
    """Add the command ``describe`` to a command line.

    ``require_used`` raises ConfigError for overrides that nothing reads.
    """
    text = "Show a config with the origin of every value, its parameters and estimated memory, without data."

    @app.command(help=f"{text}\n\nExample: {family} describe {example} --set head.components=8")
    def describe(
        config: Annotated[str, config_argument(family)],
        overrides: Overrides = None,
        toml: Annotated[
            bool, typer.Option("--toml", help="Print only the config, as one TOML file with every key.")
        ] = False,
        json_file: JsonFile = None,
    ) -> None:
        require_apart([json_file], [config])
        resolved = load_config(config, schema, family=family, overrides=overrides or ())
        require_used(resolved.config, overrides or ())
        if toml:
            show_text(config_text(resolved.config))
            if json_file is None:
                return
        from lm.console.shared_tables import config_table, description_tables

        result = size(resolved.config) | {"provenance": resolved.provenance}
        chosen: Any = resolved.config  # every family has the section train
        write_result(json_file, result, config=chosen, seed=chosen.train.seed)
        if not toml:
            show(config_table(config, resolved), *description_tables(result))


def add_runs(app: typer.Typer, family: str) -> None:
    """Add the command ``runs`` to a command line."""

    @app.command()
    def runs(
        folder: Annotated[
            Path, typer.Argument(metavar="[FOLDER]", parser=foldername, help="A run, or a folder of runs.")
        ] = DEFAULT_RUNS,
        json_file: JsonFile = None,
    ) -> None:
        """List runs with family, state, last step, best validation and size; for one run also the curve.

        The family is lm or dialog. The state is running, finished, interrupted,
        diverged, imported, not begun, or damaged.
        """
        from lm.runs.overview import run_row

        found = runs_in(folder)
        if not found and folder == DEFAULT_RUNS:
            place = "holds no run yet" if folder.is_dir() else "no such folder here"
            raise StorageError(f"{folder}: {place}; `{family} train CONFIG` makes a run there")
        if not found:
            raise not_a_run(folder, family)
        rows = [run_row(run) for run in found]
        write_result(json_file, {"runs": rows})
        if not csv_wanted():
            rows = [row | {"changed": _ago(row["changed"])} for row in rows]
        table = Table(str(folder), rows, upright=len(rows) == 1 and not csv_wanted())
        show(table, *(shown_curve(found[0]) if len(found) == 1 else ()))


def _ago(moment: str) -> str:
    """Time since a moment in ISO 8601, in the largest unit with a count of at least one."""
    seconds = max(0.0, time.time() - datetime.fromisoformat(moment).timestamp())  # another machine's clock
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if count := int(seconds // size):
            return f"{count:,} {unit}{'s' if count > 1 else ''} ago"
    return "seconds ago"


def add_check(app: typer.Typer, family: str) -> None:
    """Add the command ``check`` to a command line."""

    @app.command()
    def check(run: RunFolder, json_file: JsonFile = None) -> None:
        """Verify every file of a run against its manifests. Print the state_sha256 of the last checkpoint.

        Equal state_sha256 means bit-identical weights, optimiser, position, random generators and
        validations. The length of the log counts, too.
        """
        from lm.runs.check import check_run
        from lm.runs.checkpoint import CheckpointStore

        if runs_in(run) != [run] and not CheckpointStore.of(run).folder.exists():
            raise not_a_run(run, family)
        result = check_run(run)
        write_result(json_file, result)
        try:
            show(
                Table(f"Checkpoints of {run}", [vars(commit) for commit in result.commits]),
                f"state_sha256 {result.state_sha256 or '–'}",
                *(f"note: {note}" for note in result.notes),
                *(f"problem: {problem}" for problem in result.problems[1:]),
            )
        except BrokenPipeError:
            if not result.problems:  # which a reader that left must not hide
                raise
        if result.problems:
            raise StorageError(result.problems[0])
