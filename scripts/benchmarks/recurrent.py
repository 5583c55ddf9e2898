"""Recurrent layers alone, forward and backward over a window, against torch.nn.LSTM."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.timing import Case, Ceiling, Variant, Work
from lm.recurrent import WeightDropLSTM

SIZES, STEPS, STREAMS = (280, 960, 960, 620), 70, 12
Layer = Callable[[int, int], nn.Module]


def cases(ceiling: Ceiling) -> list[Case]:
    """The layers of PTB's MoS model."""
    weights = sum(4 * h * (x + h) for x, h in pairwise(SIZES))
    floor = ceiling.seconds(6 * STEPS * STREAMS * weights)
    layers: Sequence[tuple[str, Layer]] = (
        ("nn.LSTM", nn.LSTM),
        ("weight drop", partial(WeightDropLSTM, weight_dropout=0.5)),
    )
    variants = [Variant(name, partial(work_on, layer), floor) for name, layer in layers]
    return [Case("recurrent layers 280-960-960-620", variants, ("tokens", STEPS * STREAMS))]


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
