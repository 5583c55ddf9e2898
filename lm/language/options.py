"""Shared command-line options of language models."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from lm.config.load import require_effect
from lm.config.settings import keys_of
from lm.console.options import nonempty
from lm.errors import ConfigError
from lm.language.config import LmConfig
from lm.runs.outputs import require_apart

Data = Annotated[
    str | None,
    typer.Option("--data", metavar="F", parser=nonempty, help="Text; default: the run's test split."),
]
Limit = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="Score only the first N tokens of the text.")
]

Cache = Annotated[
    str | None,
    typer.Option(
        metavar="N[,θ,λ]",
        help="Also score with a continuous cache of N words, exponent θ and weight λ; if left out, both are"
        " chosen on validation.",
    ),
]
Compat = Annotated[
    Literal["none", "paper"] | None,
    typer.Option(help="paper: count tokens like the authors' code. Default: the run's train.compat."),
]
TemperatureSearch = Annotated[
    bool, typer.Option("--temperature-search", help="Also score at the best temperature on validation.")
]
McSamples = Annotated[
    int,
    typer.Option(metavar="N", min=0, help="Also score the mean of N passes with dropout; 0 = off."),
]
McRate = Annotated[float, typer.Option(help="Factor on the dropout rates of --mc-samples.")]


def spare_texts(output: Path | None, runs: Sequence[Path], data: str | None) -> None:
    """Raise ConfigError if an output would overwrite a text: the given one, or a split of one of the runs."""
    if output is not None:
        from lm.runs.inputs import config_of

        splits = [config_of(run, LmConfig).config.data for run in runs]
        texts = [text for split in splits for text in (split.train, split.valid, split.test)]
        require_apart([output], [data, *texts])


def require_used(config: LmConfig, overrides: Sequence[str], open_keys: Collection[str] = ()) -> None:
    """Raise ConfigError for an override that nothing reads, or that a prepared training text has decided.

    ``open_keys`` may get any value.
    """
    require_effect(config, overrides, open_keys)
    given = keys_of(overrides)
    decided = [name for name in ("tokenizer", "lowercase", "vocab_size") if f"data.{name}" in given]
    if decided and Path(config.data.train).is_dir():
        raise ConfigError(
            f"--set data.{decided[0]}: {config.data.train} is prepared, which decided it; prepare it again"
            f" with --{decided[0].replace('_', '-')}"
        )


def lm_config(run: Path) -> LmConfig:
    """The config of a run. Rejects other folders before torch is loaded."""
    from lm.runs.inputs import config_of

    return config_of(run, LmConfig).config
