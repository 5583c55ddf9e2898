"""Writer of configs as TOML text for files that people edit."""

import json
from collections.abc import Mapping

from pydantic import BaseModel

from lm.config.difference import flat_config
from lm.errors import ConfigError, encodable, visible


def config_text(config: BaseModel) -> str:
    """A complete config with every key, which loads without other files."""
    return toml_text({key: value for key, value in flat_config(config).items() if key != "extends"})


def toml_text(values: Mapping[str, object]) -> str:
    """Dotted keys and their values as TOML, one table per section. None becomes ``none``."""
    tables: dict[str, list[str]] = {"": []}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        tables.setdefault(section, []).append(f"{name} = {literal(value)}")
    blocks = [[f"[{section}]" if section else "", *lines] for section, lines in tables.items() if lines]
    return "\n\n".join("\n".join(block).strip() for block in blocks) + "\n"


def setting_text(key: str, value: object) -> str:
    """``KEY=VALUE`` as ``--set`` reads it. Text needs quotes only where it has some, or blanks around it."""
    plain = isinstance(value, str) and value == value.strip() and not value.startswith(("'", '"'))
    return f"{key}={value if plain else literal(value)}"


def literal(value: object) -> str:
    """A value as TOML, which equals its JSON. Unprintable characters are escaped.

    Raises ConfigError for text that is not Unicode, such as the name of a file in another encoding.
    """
    text = json.dumps("none" if value is None else value, ensure_ascii=False)
    if not encodable(text):
        raise ConfigError(f"{visible(text)}: not UTF-8, which TOML needs; rename the file")
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
