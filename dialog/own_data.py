"""Training on one's own file in one command: the corpus of a run is prepared in the run's folder."""

from pathlib import Path

from dialog.corpora.columns import ReadOptions
from dialog.prepare import PrepareOptions, prepare
from dialog.sources import locate
from dialog.utterance import SPLITS
from lm.errors import DataError
from lm.folder import MANIFEST, Prepared, contents, hash_inputs
from lm.lines import InputLog, visible
from lm.run import CONFIG, CORPUS
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
    known = read_json(corpus / MANIFEST) if (run / CONFIG).exists() and (corpus / MANIFEST).exists() else None
    inputs = hash_inputs(path for files in located.files.values() for path in files)
    if inputs and isinstance(known, dict) and contents(known["inputs"]) != contents(inputs):
        raise DataError(
            f"{visible(source)}: changed since this run began; restore it, "
            "or train into another folder with --run"
        )
    prepared = prepare(source, corpus, _OPTIONS)
    return [f"data.{split}={corpus / split}" for split in SPLITS], prepared
