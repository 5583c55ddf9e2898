"""Rank of the log-probabilities of language models on a text."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from lm.analysis.opened import opened_with_text
from lm.disk.tensors import sha256_of
from lm.language.corpora.split_files import add_ids
from lm.language.trained import TrainedLm
from lm.language.windows import Ids
from lm.runs.measured import Measured
from lm.spectra.run_rank import Predictions, RunRank, measure_rank
from lm.steps import OnProgress


def ranks_of_runs(
    runs: Sequence[Path], progress: OnProgress, data: str | None, limit: int | None, checkpoint: str
) -> Iterator[Measured[RunRank]]:
    """Yield the rank of each run's log-probabilities on a text, see :func:`measure_rank`."""
    for opened, text in opened_with_text(runs, data, limit, checkpoint):
        predictions = predictions_of(opened.trained, text.ids)
        yield measure_rank(opened, text, text.name_at(checkpoint), predictions, progress)


def predictions_of(trained: TrainedLm, ids: Ids) -> Predictions:
    """The log-probabilities of every word at every token of a text."""
    digest = hashlib.sha256()
    add_ids(digest, ids)
    model, words = trained.model, len(trained.codec.vocabulary)
    blocks, weights = partial(trained.log_probs, ids), sha256_of(model.named_parameters())
    return Predictions(model.head, len(ids), words, blocks, weights, digest.hexdigest())
