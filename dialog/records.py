"""What the evaluations of a dialog run are called; :mod:`lm.runs.evaluations` keeps them."""

from pathlib import Path

from dialog.config import DecodeConfig
from lm.runs.evaluations import plain


def evaluation_name(source: str, references: Path | None = None) -> str:
    """What an evaluation is called after its data: ``test``, ``test+test_multi_ref``, ``smalltalk-test``."""
    stem = source if ":" in source else Path(source).stem
    parts = (stem, references.stem) if references else (stem,)
    return "+".join(plain(part) for part in parts)


def setting_name(name: str, checkpoint: str, decode: DecodeConfig, usual: DecodeConfig) -> str:
    """``name`` with what is not usual about the evaluation: ``test.last.beam-3``.

    Named are the checkpoint, unless it is ``best``, and decoding where it differs from the run's config.
    """
    other = [] if checkpoint == "best" else [checkpoint]
    configured = usual.model_dump()
    other += [f"{key}-{value}" for key, value in decode.model_dump().items() if value != configured[key]]
    return ".".join([name, *map(plain, other)])
