"""Validation of a training: its loss, and what follows from it for best, schedule and averages."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from lm.engine.agreement import Agreement
from lm.engine.config import TrainConfig
from lm.engine.events import Note, Reporter, Validated, Validating
from lm.engine.journal import Journal, NoJournal
from lm.engine.state import Bookmark, TrainingState
from lm.heads.saturation import ContextWatch, watched_contexts
from lm.measures import perplexity


class Validator:
    """Validates the averaged weights of a training.

    ``slices`` yields sums of nats, and tokens, of slices of the validation split. ``trained``: the model
    began as one that was trained elsewhere.
    """

    def __init__(
        self,
        slices: Callable[[], Iterator[tuple[float, int]]],
        train: TrainConfig,
        state: TrainingState,
        agreement: Agreement,
        journal: Journal | NoJournal,
        report: Reporter,
        *,
        trained: bool,
    ) -> None:
        self._slices, self._train, self._state = slices, train, state
        self._agreement, self._journal, self._report = agreement, journal, report
        self._trained = trained

    def validate(self) -> None:
        """Validate, and record the result only. Interrupted leaves all unchanged."""
        self._report(Validating())
        nll, tokens, contexts = self._score()
        progress, averager = self._state.progress, self._state.averager
        best = progress.judge(nll, self._train.min_delta, self._train.keep_best)
        self._state.schedule.observe(better=progress.stale == 0)
        averages = averager.observe(progress.history, progress.step)
        metrics = {"nll": nll, "perplexity": perplexity(nll), "tokens": float(tokens)}
        self._journal.record(progress, "valid", metrics)
        self._report(Validated(progress.step, metrics, best, averager.count > 0))
        if averages:
            self._journal.record(progress, "event", {"event": "averaging"})
            self._report(Note("validation stalls: averaging of the weights begins"))
        self._tell_saturation(contexts)

    def _score(self) -> tuple[float, int, ContextWatch]:
        """Sums of nats and of tokens, and the contexts of the head. The task stays as it is."""
        task = self._state.task
        before = Bookmark(task)
        task.model.eval()
        try:
            with torch.no_grad(), self._state.averager.swap(), watched_contexts(task.model) as contexts:
                total, tokens = self._agreement.scored(self._slices())
        finally:
            task.model.train()
            before.restore()
        return total / tokens, tokens, contexts

    def _tell_saturation(self, contexts: ContextWatch) -> None:
        """Log saturated contexts at every validation, and tell when this begins and ends."""
        progress = self._state.progress
        if contexts.saturated:
            event: dict[str, Any] = {"event": "saturated", "derivative": contexts.derivative}
            self._journal.record(progress, "event", event)
        if contexts.saturated != progress.saturated:
            progress.saturated = contexts.saturated
            self._report(Note(contexts.note(trained=self._trained)))
