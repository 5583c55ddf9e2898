"""Analyses of trained dialog models on true responses: ranks of log-probabilities, gradients of the head."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from dialog.batches import fingerprint
from dialog.config import DialogConfig
from dialog.corpora.own_data import in_run
from dialog.evaluate import EvaluationData, load_test_set, own_test_corpus, require_readable
from dialog.evaluation_names import setting_name
from dialog.task import EncodedDialogs
from dialog.trained import TrainedModel
from lm.disk.tensors import sha256_of
from lm.engine.device import flushed_denormals
from lm.runs.measured import Measured, MeasuredText, measurement
from lm.runs.opened import Opened, naming, opened_models, require_runs
from lm.spectra.derivatives import HeadGradients
from lm.spectra.gradient import GradientMeasures, measure_gradients
from lm.spectra.run_rank import Predictions, RunRank, measure_rank
from lm.steps import OnProgress, no_progress


@dataclass(frozen=True)
class AnalysedModel:
    """A model of a run, and the contexts whose true responses it is to predict."""

    opened: Opened[TrainedModel]
    test: EvaluationData

    @property
    def text(self) -> MeasuredText:
        """The name, source and hash of the contexts."""
        return MeasuredText(self.test.name, self.test.source, self.test.fingerprint())

    @cached_property
    def encoded(self) -> EncodedDialogs:
        """Token ids of the contexts and their true responses."""
        trained = self.opened.trained
        return EncodedDialogs(self.test.examples, trained.codec, trained.config.data)

    def predictions(self) -> Predictions:
        """The log-probabilities of every word at every token."""
        model, words = self.opened.trained.first, len(self.opened.trained.codec.vocabulary)
        items, weights = self.encoded.items, sha256_of(model.named_parameters())
        rows = sum(len(item.response) - 1 for item in items)
        return Predictions(model.head, rows, words, self._log_probs, weights, fingerprint(items))

    def gradients(self) -> HeadGradients:
        """Gradients of the head, without dropout, at every token."""
        trained = self.opened.trained
        return HeadGradients.of(trained.first.head, trained.readings(self.encoded))

    def _log_probs(self, rows: int) -> Iterator[Tensor]:
        """log P of every word at every token, in float64, in blocks (n, V) of few rows."""
        head = copy.deepcopy(self.opened.trained.first.head).double()
        for hidden, targets in self.opened.trained.readings(self.encoded):
            for at in range(0, len(targets), rows):
                with torch.no_grad():
                    block = head.log_probs(hidden.rows(slice(at, at + rows)).double())
                yield block


def require_corpora(runs: Sequence[Path], data: str | None) -> None:
    """Raise StorageError for a path that is no run, DataError for a missing test split that is to be read."""

    def own_test(run: Path, config: DialogConfig) -> str:
        return own_test_corpus(in_run(run, config.data))

    require_runs(runs, DialogConfig, own_test if data is None else None)


def analysed_models(
    runs: Sequence[Path], data: str | None, limit: int | None, checkpoint: str, every: bool = False
) -> Iterator[AnalysedModel]:
    """Yield one checkpoint of each run, or ``every`` stored one, with the contexts to analyse.

    Args:
        runs: folders of dialog runs.
        data: a source for :func:`dialog.corpora.corpus.load_dialogs`; None = the run's own test split.
        limit: number of contexts; None = all.
        checkpoint: ``best``, ``last``, ``average-best`` or ``step-N``.
        every: yield every stored checkpoint; ``checkpoint`` is then ignored.

    Raises:
        ConfigError: a bad option.
        DataError: bad data, data of unknown words, or a missing test split, before any run is loaded.
        StorageError: a path that is no run, before any run is loaded; a bad run.
    """
    require_corpora(runs, data)
    for opened in opened_models(runs, checkpoint, every, TrainedModel.load):
        own = in_run(opened.run, opened.trained.config.data)
        with naming(opened, data):
            test = load_test_set(data, None, limit, own)
            require_readable(opened.trained, test, own)
        yield AnalysedModel(opened, test)


def ranks_of_models(
    runs: Sequence[Path], progress: OnProgress, data: str | None, limit: int | None, checkpoint: str
) -> Iterator[Measured[RunRank]]:
    """Yield the rank of each run's log-probabilities, see :func:`lm.spectra.run_rank.measure_rank`."""
    for read in analysed_models(runs, data, limit, checkpoint):
        decode = read.opened.trained.config.decode
        name = setting_name(read.test.name, checkpoint, decode, decode, ())
        yield measure_rank(read.opened, read.text, name, read.predictions(), progress)


@flushed_denormals()
def gradients_of_model(
    read: AnalysedModel, sample: int, progress: OnProgress = no_progress
) -> Measured[GradientMeasures]:
    """Measure the gradients of a run's head, see :func:`lm.spectra.gradient.measure_gradients`."""
    with naming(read.opened):
        found = measure_gradients(read.gradients(), sample, progress)
    return measurement(read.opened, read.text, found)
