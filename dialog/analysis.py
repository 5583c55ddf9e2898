"""Analysis of trained dialog models: the rank of their log-probabilities on true responses."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from dialog.batches import fingerprint
from dialog.corpora.own_data import in_run
from dialog.evaluate import EvaluationData, load_test_set, require_readable
from dialog.evaluation_names import setting_name
from dialog.seq2seq import Seq2Seq
from dialog.task import EncodedDialogs, encode_dialogs, score_batches
from dialog.trained import TrainedModel
from lm.console.measured import Measured, MeasuredText
from lm.disk.storage import make_folder
from lm.disk.tensors import sha256_of
from lm.engine.device import flushed_denormals
from lm.errors import DataError, visible
from lm.runs.evaluations import loaded, require_measurable
from lm.spectra.run_rank import Predictions, RunRank, rank_of_predictions
from lm.steps import OnProgress, no_progress


@flushed_denormals()
def rank_of_run(
    run: Path,
    data: str | None = None,
    limit: int | None = None,
    checkpoint: str = "best",
    progress: OnProgress = no_progress,
) -> Measured[RunRank]:
    """Measure the rank of the log-probabilities of a run: a matrix of tokens of true responses by words.

    The singular values are kept in RUN/analysis.

    Args:
        run: folder of a dialog run.
        data: a source for :func:`dialog.corpora.corpus.load_dialogs`; default: the run's own test split.
        limit: number of contexts; None = all.
        checkpoint: ``best``, ``last``, ``average-best`` or ``step-N``.
        progress: called with the share of the factorisation.

    Raises:
        ConfigError: a bad option.
        DataError: bad data, or log-probabilities that are not finite.
        StorageError: a bad run, or a full disk.
    """
    require_measurable(run, "analysis")
    trained, weights = loaded(run, checkpoint, TrainedModel.load)
    own = in_run(run, trained.config.data)
    test = load_test_set(data, None, limit, own)
    require_readable(trained, test, own)
    make_folder(run / "analysis")
    decode = trained.config.decode
    name = setting_name(test.name, checkpoint, decode, decode, ())
    try:
        found = rank_of_predictions(
            predictions_of(trained, test),
            progress,
            spectrum=run / "analysis" / f"rank-{name}.npz",
            checkpoint=checkpoint,
            fingerprint=weights or "",
        )
    except DataError as error:
        raise DataError(f"{visible(run)}: {error}") from None
    text = MeasuredText(test.name, test.source, test.fingerprint())
    return Measured(checkpoint, trained.config.train.seed, str(trained.device), found, text)


def predictions_of(trained: TrainedModel, test: EvaluationData) -> Predictions:
    """The log-probabilities of every word, by the first model, at every token of the true responses."""
    encoded = encode_dialogs(test.dialogs, trained.codec, trained.config)
    items, model = encoded.items[: len(test.examples)], trained.first
    rows = sum(len(item.response) - 1 for item in items)
    blocks = partial(_blocks, model, encoded, len(items), trained.device)
    weights = sha256_of(model.named_parameters())
    return Predictions(model.head, rows, len(trained.codec.vocabulary), blocks, weights, fingerprint(items))


def _blocks(
    model: Seq2Seq, data: EncodedDialogs, examples: int, device: torch.device, rows: int
) -> Iterator[Tensor]:
    """log P of every word at every token of the first examples, in float64, in blocks (n, V) of few rows."""
    head = copy.deepcopy(model.head).double()
    for indices in score_batches(data):
        if not (own := [index for index in indices if index < examples]):
            break
        batch = data.batch(own).to(device)
        with torch.no_grad():
            hidden, targets, _ = model.hidden(batch)
        for at in range(0, len(targets), rows):
            part = hidden.rows(slice(at, at + rows))
            source = part.source and replace(part.source, keys=part.source.keys.double())
            with torch.no_grad():
                block = head.log_probs(part.map(Tensor.double)._replace(source=source))
            yield block
