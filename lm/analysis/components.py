"""Components of a trained language model on a text, for ``lm analyze components``."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lm.console.tables import Table
from lm.errors import ConfigError
from lm.heads.usage import WORDS, component_report, component_sums, prior_report, prior_sums
from lm.language.scoring import windows_of
from lm.parallel.slices import summed

if TYPE_CHECKING:
    from lm.language.trained import TrainedLm
    from lm.language.windows import Ids


def components_of_run(trained: "TrainedLm", ids: "Ids", shown: int = WORDS) -> dict[str, Any]:
    """Analyse the components of a run on a text.

    MoC mixes contexts, so its components have a prior but no predictions. Raises ConfigError for a head
    without components.
    """
    head = trained.model.head
    if head.prior is None:
        of = f"with {head.config.components} component{'s' if head.config.components > 1 else ''}"
        raise ConfigError(
            f"head.kind = {head.config.kind!r} {of} has no prior to analyse; "
            "name a run of moc, mos, moss or doc with head.components > 1"
        )
    vocab, prior, link = len(trained.codec.vocabulary), head.prior, head.mixer.prior_link
    components = head.config.components
    shapes: list[tuple[int, ...]] = [(2,), (components,)]
    if head.mixer.mixes_contexts:

        def priors(part: range) -> Iterator[Tensor]:
            for hidden, _ in trained.readings(ids, part=part):
                with torch.no_grad():
                    block = link.log_normalised(prior(hidden.last[:, 0]).double())
                yield block

        result = prior_report(*summed(trained.group, windows_of(ids), priors, prior_sums, shapes))
    else:
        rows = max(1, min(64, (8 << 20) // (components * vocab)))  # at most 64 MB of float64 per block

        def blocks(part: range) -> Iterator[tuple[Tensor, Tensor]]:
            return trained.component_log_probs(ids, rows=rows, part=part)

        shapes += [(), (components,), (components, vocab)]
        sums = summed(trained.group, windows_of(ids, rows), blocks, component_sums, shapes)
        result = component_report(trained.codec.vocabulary.tokens, shown, *sums)
    return {"head": head.config.kind} | result


def component_tables(name: str, result: dict[str, Any]) -> list[Table | str]:
    """Table with a row per component of a run, the most used first, and a summary."""
    usage = result["usage"]
    rows = []
    for index in sorted(range(len(usage)), key=lambda index: (-usage[index], index)):
        row: dict[str, object] = {"component": index + 1, "mean π": usage[index]}
        if "preferred" in result:
            row |= {
                "posterior": result["posterior_usage"][index],
                "specialisation, nats": result["specialisation"][index],
                "prefers": " ".join(word["word"] for word in result["preferred"][index]),
            }
        rows.append(row)
    return [
        Table(f"Components of {name}", rows),
        f"entropy of the prior {result['prior_entropy']:.3f} nats a token, which is "
        f"{result['prior_perplexity']:.2f} of {result['components']} components; "
        f"{result['effective_components']:.2f} are in use over the {result['tokens']:,} tokens",
    ]
