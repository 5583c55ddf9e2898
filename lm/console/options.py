"""Shared arguments and options of commands."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer.models import ArgumentInfo, OptionInfo

from lm.config.presets import preset_names
from lm.console.output import note
from lm.disk.storage import require_place, require_writable
from lm.errors import ConfigError
from lm.launched import leads, several
from lm.runs.outputs import Kind, is_json_result, require_earlier, require_foreign

RESAMPLES = 10_000  # default of paired bootstraps
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a key, as in --set train.seed=2; may be repeated."
    ),
]


def given(context: typer.Context, *names: str) -> list[str]:
    """The options, as typed, of those parameters of a command that were given."""
    options = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    sources = [(name, context.get_parameter_source(name)) for name in names]
    return [options[name] for name, source in sources if source is not None and source.name != "DEFAULT"]


def require_absent(context: typer.Context, names: Iterable[str], reason: str) -> None:
    """Raise ConfigError with a reason if a parameter of a command was given."""
    if found := given(context, *names):
        raise ConfigError(f"{found[0]}: {reason}; leave it out")


def filename(text: str) -> Path:
    """Typer parser of output files: reject an empty name, which would mean ``.``."""
    return _path(nonempty(text))


def foldername(text: str) -> Path:
    """Typer parser of folders: reject an empty name."""
    return _path(nonempty(text, "folder"))


def _path(text: str) -> Path:
    """A path, with the home folder for ``~/``, which shells leave as it is after ``--option=``."""
    path = Path(text)
    return path.expanduser() if path.parts[:1] == ("~",) else path


def nonempty(text: str, what: str = "file") -> str:
    """Typer parser of file names: reject an empty name, for example from an unset variable."""
    if not text:
        raise typer.BadParameter(f"is empty; name a {what}")
    return text


def output_file(text: str, kind: Kind, *names: str, metavar: str = "FILE") -> OptionInfo:
    """The option that names a file to write, with ``text`` as help.

    Before any work, it rejects an unwritable path and an existing file that is no earlier result of ``kind``.
    Of several processes, rank 0 does, which writes it.
    """

    def writable(path: Path | None) -> Path | None:
        if path == Path("-"):
            raise typer.BadParameter("- is no file; name one, as results are not printed")
        if path is not None and leads():
            require_foreign(path)
            require_writable(path)
            require_earlier(path, kind)
        return path

    info: OptionInfo = typer.Option(*names, metavar=metavar, help=text, parser=filename, callback=writable)
    return info


JsonFile = Annotated[
    Path | None,
    output_file(
        "Also write the result to FILE as one JSON object, overwriting an earlier result.",
        is_json_result,
        "--json",
    ),
]


def output_folder(text: str, *names: str) -> OptionInfo:
    """The option that names a folder to write, with ``text`` as help; it rejects an unwritable place."""

    def writable(folder: Path | None) -> Path | None:
        if folder is not None and leads():
            require_place(folder)
        return folder

    info: OptionInfo = typer.Option(*names, metavar="DIR", parser=foldername, help=text, callback=writable)
    return info


def distinct_runs(runs: list[Path]) -> list[Path]:
    """Typer callback of several runs: leave out repeated ones, with a note, as in ``RUN runs/*``."""
    first: dict[str, Path] = {}
    for run in runs:
        known = first.setdefault(os.path.realpath(run), run)
        if known is not run and not several():  # of several processes, the one that started them says it
            note(f"{run}: named twice, counts once")
    return [*first.values()]


Processes = Annotated[
    int,
    typer.Option(
        min=1, max=1024, metavar="N", help="Number of processes on this machine that share the work."
    ),
]
OnePart = Annotated[
    str | None,
    typer.Option(
        "--part", metavar="I/N", help="Prepare part I of N only, into DIR.parts; for arrays of a cluster."
    ),
]
Join = Annotated[bool, typer.Option("--join", help="Join the N parts in DIR.parts, and remove them.")]
NewRun = Annotated[Path | None, output_folder("Run folder; default: runs/<config name>.", "--run")]
FinetunedRun = Annotated[Path | None, output_folder("Run folder; default: RUN-finetuned.", "--run")]
BadLineOption = Annotated[
    Literal["error", "skip"], typer.Option(help="error: stop at bad input. skip: drop and list it.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.", parser=foldername)]


def run_folders(text: str) -> ArgumentInfo:
    """Typer argument for folders of runs, with ``text`` as its help; a repeated one counts once."""
    info: ArgumentInfo = typer.Argument(
        metavar="RUN...", help=text, parser=foldername, callback=distinct_runs
    )
    return info


RunFolders = Annotated[list[Path], run_folders("Folder of a run; several are an ensemble.")]
Checkpoint = Annotated[
    str,
    typer.Option(metavar="WHICH", help="best, last, average-best (of train.keep_best) or step-N."),
]


def config_argument(family: str) -> ArgumentInfo:
    """Typer argument for a config: a preset of the family or a file, with shell completion."""
    info: ArgumentInfo = typer.Argument(
        metavar="CONFIG",
        help=f"A preset (`{family} presets` lists them) or a .toml file.",
        autocompletion=config_completion(family),
    )
    return info


def config_completion(family: str) -> Callable[[str], list[str]]:
    """Shell completion of configs: presets of the family, and files and folders."""

    def complete(incomplete: str) -> list[str]:
        names = [name for name in preset_names(family) if name.startswith(incomplete)]
        folder, slash, start = incomplete.rpartition("/")
        found = (path for path in Path(folder or slash or ".").glob("*") if path.name.startswith(start))
        return names + [
            f"{path}/" if path.is_dir() else str(path)
            for path in found
            if path.suffix == ".toml" or path.is_dir()
        ]

    return complete
