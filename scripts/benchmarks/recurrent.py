"""Recurrent layers alone, forward and backward over a window, against torch.nn.LSTM."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.timing import Case, Ceiling, Variant, Work
from lm.cells.config import CellConfig
from lm.cells.layers import MLSTM, gated_layer
from lm.cells.lstm import WeightDropLSTM

SIZES, STEPS, STREAMS = (280, 960, 960, 620), 70, 12
Layer = Callable[[int, int], nn.Module]


def cases(ceiling: Ceiling) -> list[Case]:
    """The layers of PTB's MoS model."""
    layers: Sequence[tuple[str, Layer]] = (
        ("nn.LSTM", nn.LSTM),
        ("weight drop", partial(WeightDropLSTM, weight_dropout=0.5)),
        ("Mogrifier, 5 rounds, rank 60", partial(gated_layer, CellConfig(kind="mogrifier", rank=60))),
        ("Mogrifier, 5 rounds", partial(gated_layer, CellConfig(kind="mogrifier"))),
        ("mLSTM", MLSTM),
    )
    variants = [Variant(name, partial(work_on, layer), _floor(layer, ceiling)) for name, layer in layers]
    return [Case("recurrent layers 280-960-960-620", variants, ("tokens", STEPS * STREAMS))]


def _floor(layer: Layer, ceiling: Ceiling) -> float:
    """Three products of every matrix."""
    weights = sum(parameter.numel() for sizes in pairwise(SIZES) for parameter in layer(*sizes).parameters())
    return ceiling.seconds(6 * STEPS * STREAMS * weights)


def work_on(layer: Layer, steps: int = STEPS) -> Work:
    torch.manual_seed(1)
    layers = nn.ModuleList(layer(*sizes) for sizes in pairwise(SIZES))
    inputs = torch.randn(steps, STREAMS, SIZES[0])

    def work() -> None:
        outputs: Tensor = inputs
        for module, size in zip(layers, SIZES[1:], strict=True):
            zero = torch.zeros(STREAMS, size)
            start = (zero[None], zero[None]) if type(module) is nn.LSTM else (zero, zero)
            outputs, _ = module(outputs, start)
        outputs.sum().backward()

    return work
