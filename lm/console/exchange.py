"""Commands of both command lines that exchange models with other programs: ``export`` and ``import``."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import BaseModel

from lm.console.options import Checkpoint, RunFolder, foldername, output_folder
from lm.console.output import show
from lm.errors import StorageError
from lm.huggingface.folder import require_export, require_exportable, require_new_run
from lm.libraries import require_libraries
from lm.runs.checkpoint import CheckpointStore
from lm.runs.inputs import config_of


def add_exchange(app: typer.Typer, family: str, schema: type[BaseModel], module: str) -> None:
    """Add the commands ``export`` and ``import``.

    ``module`` has the functions ``export_run`` and ``import_run``, and loads transformers.
    """

    text = "Write the model of a run as a folder for other programs: weights, tokenizer and model card."

    @app.command(help=f"{text}\n\nExample: {family} export runs/mos --to hf exported/mos")
    def export(
        run: RunFolder,
        out: Annotated[Path, typer.Argument(metavar="DIR", parser=foldername, help="Folder to write.")],
        to: Annotated[
            Literal["hf"], typer.Option(help="Format of the folder; hf: transformers of Hugging Face.")
        ] = "hf",
        checkpoint: Checkpoint = "best",
        license: Annotated[
            str | None, typer.Option(metavar="ID", help="Licence of the weights, for the model card.")
        ] = None,
    ) -> None:
        config_of(run, schema)  # what is bad is refused before anything heavy is loaded
        if CheckpointStore.of(run).fingerprint(checkpoint) is None:
            raise StorageError(f"{run}: no checkpoint {checkpoint!r}; choose last, or train the run first")
        require_exportable(out)
        require_libraries(f"export --to {to}", "hf", "transformers")
        import_module(module).export_run(run, out, checkpoint, license)
        show(f"{out}: written")

    text = "Write an exported folder as a run, with the same weights bit for bit."

    @app.command("import", help=f"{text}\n\nExample: {family} import exported/mos --run runs/mos2")
    def import_folder(
        folder: Annotated[
            Path, typer.Argument(metavar="DIR", parser=foldername, help="Folder that export wrote.")
        ],
        run: Annotated[Path, output_folder("Run folder to write.", "--run")],
    ) -> None:
        require_export(folder, family)
        require_new_run(run)
        require_libraries("import", "hf", "transformers")
        import_module(module).import_run(folder, run)
        show(f"{run}: written")
