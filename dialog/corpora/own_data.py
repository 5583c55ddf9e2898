"""``train --data SOURCE``: prepare the corpus of a run in the run's folder.

The corpus is prepared once, before the run begins. Afterwards the run no longer needs its source, and its
folder may be moved.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dialog.config import DataConfig
from dialog.corpora.columns import ReadOptions
from dialog.corpora.prepare import DialogPreparation, PrepareOptions, dataset_inputs, prepare
from dialog.corpora.sources import locate, read_located
from lm.config.named_data import SPLITS
from lm.config.settings import keys_of
from lm.disk.jsonfile import read_json
from lm.errors import DataError, StorageError, require, visible
from lm.launched import several
from lm.runs.inputs import saved_settings
from lm.runs.run import CORPUS
from lm.text.hub import HUB
from lm.text.lines import InputLog
from lm.text.prepared_folder import MANIFEST, Prepared, contents, damaged_outputs, hash_inputs

OWN_OPTIONS = PrepareOptions(valid_fraction=0.1, test_fraction=0.1)  # small corpora need larger shares
_SPLIT_KEYS = frozenset(f"data.{split}" for split in SPLITS)
_ELSEWHERE = "train into another folder with --run"


class OwnData(NamedTuple):
    """Settings that name the splits, the corpus if it was just prepared, and a note for the user."""

    settings: list[str]
    prepared: Prepared | None = None
    note: str = ""


def require_single_source(source: str | None, overrides: Sequence[str]) -> None:
    """Raise ConfigError for ``--data`` with ``--set`` of a split, or in several processes of torchrun."""
    if source is None:
        return
    named = [key for key in keys_of(overrides) if key in _SPLIT_KEYS]
    require(not named, f"--set {''.join(named[:1])}: --data already names the text of every split; omit one")
    require(
        not several(),
        "--data: processes of torchrun cannot share its preparation; give --processes N instead of torchrun,"
        " or the folder that `dialog prepare` writes by --set data.train, data.valid and data.test",
    )


@contextmanager
def _then_train() -> Iterator[None]:
    """Add the way back to training to errors whose remedy is an option of ``dialog prepare``."""
    try:
        yield
    except DataError as error:
        if f"`{DialogPreparation.command} …" not in str(error):
            raise
        raise DataError(f"{error}; then name the folder that it writes with --data") from error


@_then_train()
def own_data(source: str | None, run: Path, data: DataConfig) -> OwnData:
    """Return the data settings of ``train --data source``.

    ``RUN/corpus`` is prepared unless the run has begun; its report counts tokens with the tokenizer of
    ``data``. The corpus of a run that has begun is verified, and compared with ``source`` if that is given
    and exists. Without ``source``, a run without a corpus gets no settings. A folder that ``dialog prepare``
    wrote is used directly. Raises DataError if the source is unreadable or differs from that of the begun
    run. Raises StorageError if the corpus is damaged. Otherwise raises as
    :func:`dialog.corpora.prepare.prepare`.
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
            raise DataError(f"{source}: a single split; name the folder with train, valid and test instead")
        return OwnData([f"data.{split}={Path(source) / split}" for split in SPLITS])
    if began:
        raise DataError(
            f"{run}: began without --data, or lost its {CORPUS}; omit --data, restore the "
            f"corpus from a copy, or {_ELSEWHERE}"
        )
    options = replace(
        OWN_OPTIONS,
        tokenizer=None if data.tokenizer == "hf" else data.tokenizer,  # which would load transformers
        lowercase=data.lowercase,
        vocab_size=data.vocab_size,
    )
    return OwnData([f"data.{split}={corpus / split}" for split in SPLITS], prepare(source, corpus, options))


def in_run(run: Path, data: DataConfig) -> DataConfig:
    """Data section of a run, with splits of its own corpus looked up in the run's present folder."""
    here = {split: run / CORPUS / split for split in SPLITS if _is_own(Path(getattr(data, split)), split)}
    return data.model_copy(update={split: str(path) for split, path in here.items() if path.is_dir()})


def _is_own(path: Path, split: str) -> bool:
    """True if a split's path ends as the path of a run's own corpus does."""
    return path.parts[-2:] == (CORPUS, split)


def _compare(source: str, corpus: Path) -> str:
    """Compare a source with the one recorded for a corpus.

    Returns a note if the source is absent. Raises DataError if they differ.
    """
    manifest = read_json(corpus / MANIFEST)
    made_of, inputs = (manifest["source"], manifest["inputs"]) if isinstance(manifest, dict) else ("", None)
    if not os.path.exists(source.removeprefix(HUB)) and source == made_of:
        return f"note: {visible(source)}: not found, so not compared; continuing with {visible(corpus)}"
    located = locate(source, ReadOptions(), InputLog())
    if located.format == "prepared":
        same = os.path.samefile(source, corpus)
    else:
        paths = [path for files in located.files.values() for path in files]
        now = hash_inputs(paths) or dataset_inputs(source, read_located(located, ReadOptions(), InputLog()))
        same = isinstance(inputs, dict) and contents(now) == contents(inputs)
    if not same:
        raise DataError(
            f"{source}: changed since this run began, or another source; restore it, omit --data, "
            f"or {_ELSEWHERE}"
        )
    return ""
