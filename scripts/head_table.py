"""Tables of heads that are trained alike, as their files in scripts/tables describe them."""

import shlex
from pathlib import Path
from typing import Literal

from pages.result_entries import ANALYSED, SCHEMAS, config_sha256
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dialog.analysis_cli import analyze as dialog_analyze
from lm.analysis.cli import analyze as lm_analyze
from lm.config.load import load_config
from lm.config.suggest import did_you_mean
from lm.config.tomlfile import read_toml
from lm.errors import ConfigError, require

COMMANDS = {"lm": lm_analyze, "dialog": dialog_analyze}


def analyses_of(program: str) -> list[str]:
    """Analyses of a program whose numbers an entry can have."""
    names = (command.name or command.callback.__name__ for command in COMMANDS[program].registered_commands)
    return [name for name in names if name in ANALYSED]


class Table(BaseModel):
    """Trainings of a table, and their measurements; the keys of its file.

    The preset of a head is ``preset`` and its name. ``evaluation`` is the name of the evaluation that
    ``evaluate``, options of the command, writes into RUN/evaluation. ``unit`` is the column of its contexts
    that numbers the units of the text, such as ``dialog``; if "", every row is a unit. ``analyses`` are
    options by name of the command of the program's ``analyze``. ``heads`` are labels by name, or the file of
    a table beside this one that has the same. ``trials`` are further settings, of which ``--trial`` chooses
    one list by name. A table that evaluates the validation split, to choose by it, has no test perplexity.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    about: str
    program: Literal["lm", "dialog"]
    preset: str
    settings: list[str]
    seeds: list[int] = Field(min_length=1)
    evaluation: str
    evaluate: list[str]
    unit: str
    heads: dict[str, str] = Field(min_length=1)
    analyses: dict[str, list[str]] = {}
    trials: dict[str, list[str]] = {}

    @classmethod
    def read(cls, path: Path) -> "Table":
        """Read a table from a TOML file; ConfigError with the line of the first mistake."""
        data, lines = read_toml(path)
        if isinstance(other := data.get("heads"), str):
            data["heads"] = read_toml(path.parent / other)[0].get("heads")
        try:
            table = cls.model_validate(data)
        except ValidationError as error:
            first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
            key = tuple(str(part) for part in first["loc"] if isinstance(part, str))
            line = f":{lines[key]}" if key in lines else ""
            message = first["msg"].lower()
            if first["type"] == "extra_forbidden":
                message = f"unknown key{did_you_mean(key[0], cls.model_fields)}"
            raise ConfigError(f"{path}{line}: {'.'.join(key)}: {message}") from None
        known = analyses_of(table.program)
        for name in table.analyses:
            require(name in known, f"{path}: analyses.{name}: choose from {', '.join(known)}")
        lists = {"settings": table.settings} | {f"trials.{name}": own for name, own in table.trials.items()}
        for key, settings in lists.items():
            seeded = any(setting.startswith("train.seed=") for setting in settings)
            require(not seeded, f"{path}: {key}: leave out train.seed, which seeds sets")
        return table

    def trial(self, name: str) -> "Table":
        """The table with the settings of a trial; ConfigError if it has no such trial."""
        known = ", ".join(self.trials) or "nothing, since the table has no [trials]"
        require(name in self.trials, f"--trial {name}: choose from {known}")
        settings = self.trials[name]
        about = f"{self.about} Trial of {', '.join(settings)}."
        return self.model_copy(update={"about": about, "settings": [*self.settings, *settings]})

    @property
    def measured(self) -> list[str]:
        """How the numbers of an entry are measured."""
        analyses = (shlex.join([name, *options]) for name, options in self.analyses.items())
        return [self.evaluation, self.unit, *self.evaluate, *analyses]

    def seeded(self, seed: int) -> list[str]:
        """The settings of a training."""
        return [*self.settings, f"train.seed={seed}"]

    def hash_of(self, head: str, seed: int) -> str:
        """SHA-256 of the config of a training. ConfigError for a bad preset or setting."""
        preset, schema = f"{self.preset}{head}", SCHEMAS[self.program]
        resolved = load_config(preset, schema, family=self.program, overrides=self.seeded(seed))
        return config_sha256(resolved.config)
