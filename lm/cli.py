"""The ``lm`` command line."""

from collections.abc import Sequence

from lm.console import new_app, run_app, show, table
from lm.presets import preset_paths

app = new_app("Language models with high-rank output heads.")


@app.command()
def presets() -> None:
    """List the configs that come with Highrank."""
    paths = preset_paths("lm")
    if paths:
        show(table("Presets", [{"preset": path.stem} for path in paths]))
    else:
        show("No presets for language models yet; `dialog presets` lists those for dialog models.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run ``lm`` with the given or the process's arguments; raises SystemExit with the exit code."""
    run_app(app, "lm", arguments)
