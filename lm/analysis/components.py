"""Components of a trained language model on a text, for ``lm analyze components``."""

import copy
from collections.abc import Iterator

from torch import Tensor

from lm.console.tables import Table
from lm.errors import ConfigError
from lm.heads.states import Layers
from lm.heads.usage import (
    ComponentUse,
    block_rows,
    component_sums,
    joints,
    prediction_use,
    prior_sums,
    prior_use,
    priors,
)
from lm.language.scoring import windows_of
from lm.language.trained import TrainedLm
from lm.language.windows import Ids
from lm.parallel.slices import summed


def components_of_run(trained: TrainedLm, ids: Ids) -> ComponentUse:
    """Analyse the components of a run on a text; the processes of its group share the text.

    ConfigError for a head without components, DataError without a token.
    """
    head = copy.deepcopy(trained.model.head).double()
    kind, components, vocab = head.config.kind, head.config.components, head.vocab_size
    if head.prior is None:
        of = f"with {components} component{'s' if components > 1 else ''}"
        raise ConfigError(
            f"head.kind = {kind!r} {of} has no prior to analyse; "
            "name a run of moc, mos, moss, doc, mfs or cpr with head.components > 1"
        )
    rows = block_rows(head)
    windows, group = windows_of(ids, rows), trained.group

    def states(own: range) -> Iterator[tuple[Layers, Tensor]]:
        for hidden, targets in trained.readings(ids, window=rows, only=own):
            yield hidden.map(_first_column), targets

    shapes: list[tuple[int, ...]] = [(2,), (components,)]
    if head.mixer.mixes_contexts:
        sums = summed(group, windows, lambda own: priors(head, states(own)), prior_sums, shapes)
        return ComponentUse(kind, prior_use(*sums))
    shapes += [(), (components,), (components, vocab)]
    sums = summed(group, windows, lambda own: joints(head, states(own)), component_sums, shapes)
    return ComponentUse(kind, *prediction_use(trained.codec.vocabulary.tokens, *sums))


def _first_column(layer: Tensor) -> Tensor:
    return layer[:, 0].double()


def component_tables(name: str, use: ComponentUse) -> list[Table | str]:
    """Table with a row per component of a run, the most used first, and a summary."""
    usage, found = use.prior.usage, use.predictions
    rows = []
    for index in sorted(range(len(usage)), key=lambda index: (-usage[index], index)):
        row: dict[str, object] = {"component": index + 1, "mean π": usage[index]}
        if found:
            row |= {
                "posterior": found.posterior_usage[index],
                "specialisation, nats": found.specialisation[index],
                "prefers": " ".join(word.word for word in found.preferred[index]),
            }
        rows.append(row)
    prior = use.prior
    return [
        Table(f"Components of {name}", rows),
        f"entropy of the prior {prior.prior_entropy:.3f} nats a token, which is "
        f"{prior.prior_perplexity:.2f} of {prior.components} components; "
        f"{prior.effective_components:.2f} are in use over the {prior.tokens:,} tokens",
    ]
