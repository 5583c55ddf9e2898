"""Details of an evaluation for reports: passages word by word, and the use of components."""

import numpy as np
from torch import Tensor

from lm.arrays import Floats
from lm.heads.usage import use_in_sample
from lm.language.trained import TrainedLm
from lm.language.windows import Ids
from lm.results import as_json
from lm.runs.evaluations import JsonObject, spread

PASSAGE, PASSAGES = 60, 4  # tokens of a passage, and number of passages


def passages_and_use(trained: TrainedLm, ids: Ids, nll: Floats, *, whole: bool) -> JsonObject:
    """``samples`` and ``components`` of an evaluation.

    A sample has the ``index`` of its first scored token, its ``words``, and the ``nll`` of each in nats.
    ``components`` is that of :func:`lm.heads.usage.use_in_sample`, or None unless ``whole``, that is if the
    model is one of several.
    """
    scored, words = ids[len(ids) - len(nll) :], trained.codec.vocabulary
    passages = [
        {
            "index": start,
            "words": words.words(np.asarray(scored[start : start + PASSAGE]).tolist()),
            "nll": nll[start : start + PASSAGE].tolist(),
        }
        for start in (PASSAGE * number for number in spread(-(-len(nll) // PASSAGE), PASSAGES))
    ]
    states = ((hidden.map(_first_column), targets) for hidden, targets in trained.readings(ids))
    use = use_in_sample(trained.model.head, states, words.tokens) if whole else None
    return {"samples": passages, "components": use and as_json(use)}


def _first_column(layer: Tensor) -> Tensor:
    return layer[:, 0]
