"""Log-probabilities of a language model on a text, whose rank :mod:`lm.spectra.run_rank` measures."""

import hashlib
from functools import partial

from lm.disk.tensors import sha256_of
from lm.language.corpora.split_files import add_ids
from lm.language.trained import TrainedLm
from lm.language.windows import Ids
from lm.spectra.run_rank import Predictions


def predictions_of(trained: TrainedLm, ids: Ids) -> Predictions:
    """The log-probabilities of every word at every token of a text."""
    digest = hashlib.sha256()
    add_ids(digest, ids)
    model, words = trained.model, len(trained.codec.vocabulary)
    blocks, weights = partial(trained.log_probs, ids), sha256_of(model.named_parameters())
    return Predictions(model.head, len(ids), words, blocks, weights, digest.hexdigest())
