"""Growth of time and memory with tokens, components and words of a head, steps of a window, and sources."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from benchmarks import beam, head, recurrent, timing
from benchmarks.timing import Case, Ceiling, Variant, Work
from lm.cells.lstm import WeightDropLSTM
from lm.console.pictures import save_figure
from lm.heads.links import EXP
from lm.heads.loss_options import LossOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BFLOAT16 = partial(head.ours, LossOptions(EXP, bf16_products=True))
_LAYER = partial(WeightDropLSTM, weight_dropout=0.5)
SWEEPS: dict[str, tuple[Sequence[int], Callable[[int], Work]]] = {
    "tokens": ((210, 420, 840, 1680, 3360), lambda n: head.work_on(_BFLOAT16, 15, 10_000, n)),
    "components": ((1, 2, 5, 10, 15, 20), lambda k: head.work_on(_BFLOAT16, k, 10_000)),
    "words": ((2_500, 5_000, 10_000, 20_000, 40_000), lambda v: head.work_on(_BFLOAT16, 15, v)),
    "steps of the recurrent layers": ((18, 35, 70, 140), lambda t: recurrent.work_on(_LAYER, t)),
    "sources of a beam search": (
        (1, 2, 4, 8, 16),
        lambda s: beam.work_on((beam.LENGTH,) * s, beam.exact_step, beam.ours),
    ),
}


def cases(ceiling: Ceiling) -> list[Case]:
    """A case a sweep, a variant a value; what does not vary is as in PTB's MoS model."""
    return [
        Case(name, [Variant(f"{value:,}", partial(prepare, value)) for value in values])
        for name, (values, prepare) in SWEEPS.items()
    ]


def peak_megabytes(work: Work) -> float:
    """Memory that one run needs above what is there before it and the gradients that it returns."""
    returned: list[Any] = []
    peak = timing.peak_megabytes(lambda: returned.append(work()))
    gradients = [tensor for tensor in returned[0] or () if isinstance(tensor, Tensor)]
    return peak - sum(tensor.nbytes for tensor in gradients) / 2**20


def draw(records: Sequence[dict[str, Any]], picture: Path) -> None:
    """Time above, peak memory below, a column a sweep; both axes start at 0, so that linear looks linear."""
    save_figure([picture], partial(_draw, records), size=(15, 5))


def _draw(records: Sequence[dict[str, Any]], figure: "Figure") -> None:
    axes = figure.subplots(2, len(SWEEPS), sharex="col")
    for column, name in enumerate(SWEEPS):
        found = [record for record in records if record["subject"] == "scaling" and record["case"] == name]
        values = [int(record["variant"].replace(",", "")) for record in found]
        for row, (key, label) in enumerate((("seconds", "seconds"), ("peak MB", "MB of scratch"))):
            axis = axes[row, column]
            axis.plot(values, [record[key] for record in found], marker=".", color="#4e79a7")
            axis.set_xlim(0, None)
            axis.set_ylim(0, None)
            axis.grid(alpha=0.3)
            axis.spines[["top", "right"]].set_visible(False)
            axis.set_ylabel(label if column == 0 else None)
        axes[1, column].set_xlabel(name)
