"""Gradients that the head of a language model passes back, which :mod:`lm.spectra.gradient` measures."""

from lm.engine.device import flushed_denormals
from lm.language.trained import TrainedLm
from lm.language.windows import Ids
from lm.spectra.derivatives import HeadGradients
from lm.spectra.gradient import GradientMeasures, measure_gradients
from lm.steps import OnProgress, no_progress


@flushed_denormals()
def gradients_of_run(
    trained: TrainedLm, ids: Ids, sample: int, progress: OnProgress = no_progress
) -> GradientMeasures:
    """Measure the gradients at every token of a text, see :func:`lm.spectra.gradient.measure_gradients`."""
    return measure_gradients(gradients_of(trained, ids), sample, progress)


def gradients_of(trained: TrainedLm, ids: Ids) -> HeadGradients:
    """Gradients of a model without dropout at every token of a text. Raises DataError without a token."""
    read = ((hidden.map(lambda h: h[:, 0]), targets) for hidden, targets in trained.readings(ids))
    return HeadGradients.of(trained.model.head, read)
