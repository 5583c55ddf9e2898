"""Training on one's own file in one command: the corpus of a run is prepared in the run's folder."""

from collections.abc import Sequence
from pathlib import Path

from dialog.corpora.columns import ReadOptions
from dialog.prepare import PrepareOptions, prepare
from dialog.sources import locate
from dialog.utterance import SPLITS
from lm.errors import DataError
from lm.folder import MANIFEST, Prepared, contents, hash_inputs
from lm.inputs import CONFIG
from lm.lines import InputLog, visible
from lm.run import CORPUS
from lm.storage import read_json

_OPTIONS = PrepareOptions(valid_fraction=0.1, test_fraction=0.1)  # small corpora need larger shares


def prepare_own(source: str, run: Path) -> tuple[list[str], Prepared | None]:
    """Prepare ``source`` in ``RUN/corpus``; returns the settings that name its splits, and what was prepared.

    A folder that ``dialog prepare`` wrote is taken as it is. The same source again changes nothing. DataError
    where it cannot be read, or is another than when the run began; else as :func:`dialog.prepare.prepare`.
    """
    located = locate(source, ReadOptions(), InputLog())
    if located.format == "prepared":
        if any(split not in located.files for split in SPLITS):
            raise DataError(
                f"{visible(source)}: one split; name the folder that holds train, valid and test instead"
            )
        return [f"data.{split}={Path(source) / split}" for split in SPLITS], None
    corpus = run / CORPUS
    if (run / CONFIG).exists():
        _require_same(source, [path for files in located.files.values() for path in files], corpus)
    prepared = prepare(source, corpus, _OPTIONS)
    return [f"data.{split}={corpus / split}" for split in SPLITS], prepared


def _require_same(source: str, paths: Sequence[Path], corpus: Path) -> None:
    """Raise DataError unless a run's corpus was made of these files, which a data set does not have."""
    elsewhere = "train into another folder with --run"
    if not (corpus / MANIFEST).is_file():
        raise DataError(f"{visible(corpus.parent)}: began without --data, so leave it out; or {elsewhere}")
    manifest = read_json(corpus / MANIFEST)
    known = manifest.get("inputs") if isinstance(manifest, dict) else None
    if paths and isinstance(known, dict) and contents(known) != contents(hash_inputs(paths)):
        raise DataError(f"{visible(source)}: changed since this run began; restore it, or {elsewhere}")
