"""Names of evaluations, and so of their files in a run."""

from collections.abc import Sequence
from pathlib import Path

from dialog.decoding.config import DecodeConfig
from lm.runs.evaluations import hashed_end, setting_slug, slug

_LONGEST = 40  # characters of an option


def evaluation_name(source: str, references: Path | None = None) -> str:
    """Name of an evaluation of some data: ``test``, ``test+test_multi_ref``, ``smalltalk-test``."""
    stem = source if ":" in source else Path(source).stem
    parts = (stem, references.stem) if references else (stem,)
    return "+".join(slug(part) for part in parts)


def setting_name(
    name: str, checkpoint: str, decode: DecodeConfig, usual: DecodeConfig, others: Sequence[Path]
) -> str:
    """``name`` with the non-default options of the evaluation: ``test.last.beam-3``.

    It contains the checkpoint, except ``best``, decoding options that differ from the run's config, and the
    ``others`` of an ensemble.
    """
    other = [] if checkpoint == "best" else [checkpoint]
    configured = usual.model_dump()
    other += [f"{key}-{value}" for key, value in decode.model_dump().items() if value != configured[key]]
    other += [f"with-{run.name}" for run in others]
    return ".".join([name, *(_short(setting_slug(part)) for part in other)])


def _short(part: str) -> str:
    """A part of a file name; the end of a long one becomes a hash."""
    return part if len(part) <= _LONGEST else hashed_end(part, part[:20])
