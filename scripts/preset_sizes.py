"""Write how many parameters every preset has, so that `presets` need not build the models.

python scripts/preset_sizes.py
"""

import json

from dialog.config import DialogConfig
from dialog.describe import describe as describe_dialog
from lm.config.load import load_config
from lm.config.presets import SIZES, preset_folder, preset_names, sizes_of
from lm.language.config import LmConfig
from lm.language.describe import describe


def parameters(family: str, name: str) -> dict[str, str | int]:
    """Number of parameters of a preset, and the fingerprint of its sizes."""
    if family == "dialog":
        dialog = load_config(name, DialogConfig, family=family).config
        return {"of": sizes_of(dialog), "parameters": describe_dialog(dialog)["parameters"]}
    config = load_config(name, LmConfig, family=family).config
    return {"of": sizes_of(config), "parameters": describe(config)["parameters"]}


def main() -> None:
    for family in ("dialog", "lm"):
        entries = {name: parameters(family, name) for name in preset_names(family)}
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
        (preset_folder(family) / SIZES).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
