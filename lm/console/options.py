"""Arguments and options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer.models import ArgumentInfo, OptionInfo

from lm.config.presets import preset_names
from lm.disk.storage import require_writable
from lm.runs.outputs import require_foreign

RESAMPLES = 10_000  # of a paired bootstrap, unless another number is asked for
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a key, as in --set train.seed=2; may be repeated."
    ),
]


def filename(text: str) -> Path:
    """The parser of files to write: refuses an empty name, which would mean ``.``."""
    return Path(nonempty(text))


def nonempty(text: str) -> str:
    """The parser of names of files: refuses an empty one, as of a variable that is not set."""
    if not text:
        raise typer.BadParameter("is empty; name a file")
    return text


def writable(path: Path | None) -> Path | None:
    """The callback of options that name a file to write: refuses one before the work that it would lose."""
    if path is not None:
        require_foreign(path)
        require_writable(path)
    return path


def output_file(text: str, *names: str, metavar: str = "FILE") -> OptionInfo:
    """The option that names a file to write, with ``text`` as help."""
    info: OptionInfo = typer.Option(*names, metavar=metavar, help=text, parser=filename, callback=writable)
    return info


JsonFile = Annotated[
    Path | None,
    output_file("Also write the result to FILE as one JSON object, in place of what is there.", "--json"),
]


def named(text: str) -> Path:
    """The parser of folders: refuses an empty name, as of a variable that is not set; it would mean ``.``."""
    if not text:
        raise typer.BadParameter("is empty; name a folder")
    return Path(text)


def output_folder(text: str, *names: str) -> OptionInfo:
    """The option that names a folder to write, with ``text`` as help."""
    info: OptionInfo = typer.Option(*names, metavar="DIR", parser=named, help=text)
    return info


Processes = Annotated[
    int,
    typer.Option(
        min=1, max=1024, metavar="N", help="Number of processes on this machine that share the work."
    ),
]
NewRun = Annotated[
    Path | None, output_folder("Run folder; default: runs/<config name>, or RUN-finetuned.", "--run")
]
BadLineOption = Annotated[
    Literal["error", "skip"], typer.Option(help="Stop at bad input, or leave it out and list it.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.", parser=named)]
Checkpoint = Annotated[
    str, typer.Option(metavar="WHICH", help="best, last, average (of the best) or step-N.")
]


def config_argument(family: str) -> ArgumentInfo:
    """The argument that names a config: a preset of the family or a file, completed by the shell."""
    info: ArgumentInfo = typer.Argument(
        metavar="CONFIG",
        help=f"A preset (`{family} presets` lists them) or a .toml file.",
        autocompletion=config_completion(family),
    )
    return info


def config_completion(family: str) -> Callable[[str], list[str]]:
    """What completes the name of a config in the shell: presets of the family, and files and folders."""

    def complete(incomplete: str) -> list[str]:
        names = [name for name in preset_names(family) if name.startswith(incomplete)]
        folder, _, start = incomplete.rpartition("/")
        found = (path for path in Path(folder or ".").glob("*") if path.name.startswith(start))
        return names + [
            f"{path}/" if path.is_dir() else str(path)
            for path in found
            if path.suffix == ".toml" or path.is_dir()
        ]

    return complete
