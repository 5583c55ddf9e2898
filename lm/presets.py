"""The configs that come with Highrank: where they are and what they are called."""

from pathlib import Path

from lm.errors import ConfigError
from lm.suggest import did_you_mean

PACKAGES = Path(__file__).resolve().parent.parent


def preset_paths(family: str) -> list[Path]:
    """The presets of ``dialog`` or ``lm``, sorted by name; files named ``_*.toml`` are bases, not presets.

    Installed from a wheel they are in ``<family>/configs``, in a checkout in ``configs/<family>``.
    """
    installed = PACKAGES / family / "configs"
    folder = installed if installed.is_dir() else PACKAGES / "configs" / family
    return sorted(path for path in folder.glob("*.toml") if not path.name.startswith("_"))


def find_config(source: str, family: str) -> Path:
    """The file that ``source`` means: a preset by its exact name, or a path.

    Raises ConfigError where there is no such file, naming the nearest preset.
    """
    presets = {path.stem: path for path in preset_paths(family)}
    if source in presets:
        return _short(presets[source])
    path = Path(source)
    if path.is_dir():
        raise ConfigError(
            f"{source}: a folder; give a preset (`{family} presets` lists them) or a .toml file"
        )
    if path.exists():
        return path
    hint = did_you_mean(path.stem, presets) or f"; `{family} presets` lists the presets"
    looks_like_path = path.suffix == ".toml" or len(path.parts) > 1
    raise ConfigError(f"{source}: no such {'file' if looks_like_path else 'preset or file'}{hint}")


def _short(path: Path) -> Path:
    """Relative to the working folder where that is shorter to read: errors and provenance name it."""
    folder = Path.cwd()
    return path.relative_to(folder) if path.is_relative_to(folder) else path
