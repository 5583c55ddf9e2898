"""Training on one's own file in one command: the corpus of a run is prepared in the run's folder.

It is prepared once, before the run begins. From then on the run has it, wherever its source and the run are.
"""

import os
from pathlib import Path
from typing import NamedTuple

from dialog.config import DataConfig
from dialog.corpora.columns import ReadOptions
from dialog.corpora.prepare import PrepareOptions, dataset_inputs, prepare
from dialog.corpora.sources import locate, read_located
from dialog.utterance import SPLITS
from lm.disk.storage import read_json
from lm.errors import DataError, StorageError, visible
from lm.runs.inputs import saved_settings
from lm.runs.run import CORPUS
from lm.text.hub import HUB
from lm.text.lines import InputLog
from lm.text.prepared_folder import MANIFEST, Prepared, contents, damaged_outputs, hash_inputs

_OPTIONS = PrepareOptions(valid_fraction=0.1, test_fraction=0.1)  # small corpora need larger shares
_ELSEWHERE = "train into another folder with --run"


class OwnData(NamedTuple):
    """The settings that name the splits, what was prepared just now, and a note for the user."""

    settings: list[str]
    prepared: Prepared | None = None
    note: str = ""


def own_data(source: str | None, run: Path) -> OwnData:
    """The data of ``train --data source``, prepared in ``RUN/corpus`` unless the run has begun.

    A run that began has its corpus, which is verified. Its source, if given and there, is only compared.
    Without ``source``, no settings for a run that has no corpus. A folder that ``dialog prepare`` wrote is
    taken as it is. DataError where the source cannot be read, or is another than when the run began;
    StorageError where the corpus is damaged; else as :func:`dialog.corpora.prepare.prepare`.
    """
    corpus = run / CORPUS
    began = saved_settings(run)
    train = Path(str(began["data.train"].value if "data.train" in began else ""))
    if _is_own(train, "train") and (corpus / MANIFEST).is_file():
        for problem in damaged_outputs(corpus):
            raise StorageError(problem)
        note = "" if source is None else _compare(source, corpus)
        return OwnData([f"data.{split}={train.parent / split}" for split in SPLITS], note=note)
    if source is None:
        return OwnData([])
    located = locate(source, ReadOptions(), InputLog())
    if located.format == "prepared":
        if any(split not in located.files for split in SPLITS):
            raise DataError(
                f"{visible(source)}: one split; name the folder that holds train, valid and test instead"
            )
        return OwnData([f"data.{split}={Path(source) / split}" for split in SPLITS])
    if began:
        raise DataError(
            f"{visible(run)}: began without --data, or lost its {CORPUS}; leave --data out, restore the "
            f"corpus from a copy, or {_ELSEWHERE}"
        )
    return OwnData([f"data.{split}={corpus / split}" for split in SPLITS], prepare(source, corpus, _OPTIONS))


def in_run(run: Path, data: DataConfig) -> DataConfig:
    """The data of a run; splits of its own corpus are those in its folder, which may have been moved."""
    here = {split: run / CORPUS / split for split in SPLITS if _is_own(Path(getattr(data, split)), split)}
    return data.model_copy(update={split: str(path) for split, path in here.items() if path.is_dir()})


def _is_own(path: Path, split: str) -> bool:
    """Whether a split is, by its name, that of a run's own corpus."""
    return path.parts[-2:] == (CORPUS, split)


def _compare(source: str, corpus: Path) -> str:
    """A note where a source is not there to be compared; DataError where a corpus was made of another."""
    manifest = read_json(corpus / MANIFEST)
    made_of, inputs = (manifest["source"], manifest["inputs"]) if isinstance(manifest, dict) else ("", None)
    if not os.path.exists(source.removeprefix(HUB)) and source == made_of:
        return f"note: {visible(source)}: not here, so not compared; the run goes on with {visible(corpus)}"
    located = locate(source, ReadOptions(), InputLog())
    if located.format == "prepared":
        same = os.path.samefile(source, corpus)
    else:
        paths = [path for files in located.files.values() for path in files]
        now = hash_inputs(paths) or dataset_inputs(source, read_located(located, ReadOptions(), InputLog()))
        same = isinstance(inputs, dict) and contents(now) == contents(inputs)
    if not same:
        raise DataError(
            f"{visible(source)}: changed since this run began, or another source; restore it, leave --data "
            f"out, or {_ELSEWHERE}"
        )
    return ""
