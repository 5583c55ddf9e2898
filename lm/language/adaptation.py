"""Dynamic evaluation: the model goes on learning from the text that it is evaluated on (Krause et al. 2018).

Windows of a few tokens are predicted with the weights as they are, and only then learnt from:

    θ ← θ − η · g / (RMS + ε) + λ · R ⊙ (θ₀ − θ),    R = RMS / mean RMS, at most 1 / λ,

with g the gradient of a window's mean loss, and RMS, of every weight, the root mean square of g over the
training data. The mean of RMS is over parameter tensors of the mean of each, or, as in Melis et al. (2020),
over all weights. R is capped for each setting anew; in the authors' grid search the tightest cap of all
settings before stays.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from lm.cells.layers import Layer
from lm.errors import DataError, DivergenceError, require
from lm.language.config import WindowConfig
from lm.language.model import LanguageModel, ModelState, detached
from lm.language.scoring import Floats, no_advance
from lm.language.trained import TrainedLm
from lm.language.windows import Ids, Streams
from lm.steps import OnProgress, no_progress

Scaling = Literal["normalised", "original", "elements"]

ADAPT_LENGTH = 5  # tokens that are predicted, then learnt from
STREAMS = 100  # into which the training data are laid for statistics
_CHECKED = 200  # windows between looks at whether the loss is still a number
_HOPELESS = 700.0  # nats a token, whose exponential is about the largest number


@dataclass(frozen=True)
class DynamicSetting:
    """η, λ and ε.

    ``original`` numbers, those of the MoS paper, are for RMS = √Σg², which grows with the number of windows
    of training data, and for R that is divided by a sum over tensors in place of a mean. ``elements`` is
    ``normalised`` but for the mean, which is over all weights (Melis et al. 2020); their gradients are of
    losses summed over a window, so that their ε is ours times its length.
    """

    lr: float
    decay: float
    eps: float = 2e-5
    scaling: Scaling = "normalised"
    window: int = ADAPT_LENGTH
    streams: int = STREAMS  # into which the training data are laid for RMS

    def __post_init__(self) -> None:
        require(
            0 <= self.lr < math.inf and 0 <= self.decay < math.inf and 0 < self.eps < math.inf,
            f"--lr {self.lr:g} --decay {self.decay:g} --eps {self.eps:g}: must be at least 0, --eps above 0",
        )
        for name in ("window", "streams"):
            value = getattr(self, name)
            require(value >= 1, f"--{name} {value}: must be at least 1")
        require(
            self.scaling in get_args(Scaling),
            f"--scaling {self.scaling!r}: must be one of {', '.join(get_args(Scaling))}",
        )

    def normalised(self, windows: int, tensors: int) -> "DynamicSetting":
        """The setting that does the same without ``original``: λ / tensors, η / √windows, ε / √windows."""
        if self.scaling != "original":
            return self
        root = math.sqrt(windows)
        lr, decay, eps = self.lr / root, self.decay / tensors, self.eps / root
        return replace(self, lr=lr, decay=decay, eps=eps, scaling="normalised")


DYNAMIC_SETTINGS = {
    "default": DynamicSetting(5e-5, 2e-3),
    "paper-mos-ptb": DynamicSetting(2e-3, 0.075, 1e-3, "original"),
    "paper-mos-wt2": DynamicSetting(2e-3, 0.02, 2e-3, "original"),
    "paper-awd": DynamicSetting(2e-3, 0.02, 1e-3, "original"),  # for both corpora
}
GRID_LR, GRID_DECAY = (3e-5, 4e-5, 5e-5, 6e-5, 7e-5, 1e-4), (1e-3, 2e-3, 3e-3, 5e-3)
RANGES = {"lr": (1e-6, 1e-3), "decay": (1e-6, 1e-2), "eps": (1e-8, 1e-2)}  # Melis et al. (2020), Table 6


@dataclass
class Statistics:
    """What the gradients over the first so many windows of the training data are like."""

    squares: dict[str, Tensor]  # Σ g² of every parameter
    state: ModelState  # of the streams after those windows
    windows: int = 0

    @classmethod
    def empty(cls, model: LanguageModel, streams: int) -> "Statistics":
        """Those of no window yet."""
        squares = {name: torch.zeros_like(p, requires_grad=False) for name, p in model.named_parameters()}
        return cls(squares, model.initial_state(streams))


def gather(
    trained: TrainedLm,
    shards: Sequence[Ids],
    statistics: Statistics,
    window: int = ADAPT_LENGTH,
    *,
    paper: bool = False,
    progress: OnProgress = no_progress,
    commit: Callable[[], None] | None = None,
) -> None:
    """Goes on with the statistics to the end of the training data, laid out as streams.

    Dropout is off, and g is the gradient of the mean loss over the tokens of a window in all streams: not
    clipped, without penalties or weight decay. ``paper`` leaves out what :class:`Streams` leaves out for it
    in training. ``progress``, in windows, and ``commit`` are called after every window, with the statistics
    up to date. ``commit`` may raise. DataError where there is no window.
    """
    model, streams = trained.model, statistics.state[0][0].shape[0]
    laid_out = Streams(shards, streams, trained.codec.vocabulary.eos, paper=paper)
    config = WindowConfig(length=window, random=False, rescale_lr=False)
    total = sum(1 for _ in laid_out.spans(config, np.random.default_rng(0), training=True))
    if not total:
        raise DataError(f"the training data have too few tokens for {streams} streams; use a longer text")
    spans = laid_out.spans(config, np.random.default_rng(0), training=True)
    parameters, squares = list(model.parameters()), list(statistics.squares.values())
    with adaptable(model):
        for span in islice(spans, statistics.windows, None):
            batch = laid_out.window(span).to(trained.device)
            before = model.initial_state(streams) if batch.first else statistics.state
            outputs = model(batch.tokens, before)
            loss = model.head.loss(outputs.hidden, batch.targets) / batch.targets.numel()
            gradients = torch.autograd.grad(loss, parameters)
            torch._foreach_addcmul_(squares, gradients, gradients)
            statistics.state = detached(outputs.state)
            statistics.windows += 1
            progress(statistics.windows, total)
            if commit is not None:
                commit()


def dynamic_nll(
    trained: TrainedLm,
    ids: Ids,
    statistics: Statistics,
    setting: DynamicSetting,
    *,
    paper: bool = False,
    temperature: float = 1.0,
    sampler: LanguageModel | None = None,
    advance: Callable[[int], None] = no_advance,
) -> Floats:
    """−log P of every token in nats, each predicted before its window is learnt from: (N,), or (N − 1,).

    The model is as before when this ends, however it ends. DivergenceError where a loss is not finite.

    Args:
        temperature: divides the logits of every component, in what is learnt from too.
        sampler: reads and learns in place of the trained model, and drops units while it does.
    """
    model = sampler or trained.model
    parameters: list[Tensor] = list(model.parameters())
    step, pull = factors(statistics, setting)
    losses: list[Tensor] = []
    with adaptable(model, dropping=sampler is not None) as start:
        reader, tokens = trained.begin(ids, paper=paper, model=model)
        for targets in tokens.split(setting.window):
            hidden, count = reader.read(targets), len(targets)
            weights = hidden.last.new_ones(
                count, requires_grad=True
            )  # the gradient at one is its token's nll
            loss = model.head.loss(
                model.for_head(hidden), targets, weights, component_temperature=temperature
            )
            *gradients, nll = torch.autograd.grad(loss, [*parameters, weights])
            with torch.no_grad():
                torch._foreach_lerp_(parameters, start, pull)
                torch._foreach_addcmul_(parameters, gradients, step, value=-1 / count)
            losses.append(nll)
            if len(losses) % _CHECKED == 0:
                _require_finite(losses[-_CHECKED:], setting)
            advance(count)
    _require_finite(losses, setting)
    return torch.cat(losses).double().cpu().numpy()


def factors(statistics: Statistics, setting: DynamicSetting) -> tuple[list[Tensor], list[Tensor]]:
    """η / (RMS + ε) and min(λ R, 1) of every parameter: factors on a gradient and on the way back."""
    squares = list(statistics.squares.values())
    setting = setting.normalised(statistics.windows, len(squares))
    rms = [(square / statistics.windows).sqrt() for square in squares]
    if setting.scaling == "elements":
        mean = torch.stack([tensor.sum() for tensor in rms]).sum() / sum(tensor.numel() for tensor in rms)
    else:
        mean = torch.stack([tensor.mean() for tensor in rms]).mean()
    if not (bool(torch.isfinite(mean)) and float(mean) > 0):
        raise DivergenceError("the gradients over the training data are not finite, or all 0")
    step = [setting.lr / (tensor + setting.eps) for tensor in rms]
    pull = [(tensor * (setting.decay / mean)).clamp_(max=1) for tensor in rms]
    return step, pull


@contextmanager
def adaptable(model: LanguageModel, *, dropping: bool = False) -> Iterator[list[Tensor]]:
    """Within, gradients can be had with all dropout off; afterwards weights and modes are as they were.

    A model that is ``dropping``, in training mode, goes on with that. cuDNN refuses to go back through
    recurrent layers in evaluation mode, so those alone are in training mode, without weight dropout. Yields
    copies of the parameters.
    """
    parameters, training = list(model.parameters()), model.training
    start = [parameter.detach().clone() for parameter in parameters]
    layers = [layer for layer in model.layers if isinstance(layer, Layer)]
    rates = [layer.weight_dropout for layer in layers]
    if not dropping:
        model.eval()
        for layer in layers:
            layer.weight_dropout = 0.0
            layer.train()
    try:
        yield start
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, start, strict=True):
                parameter.copy_(value)
        for layer, rate in zip(layers, rates, strict=True):
            layer.weight_dropout = rate
        model.train(training)


def _require_finite(losses: Sequence[Tensor], setting: DynamicSetting) -> None:
    """DivergenceError where a loss is no number, or all together are none that a perplexity could be of."""
    if not float(torch.cat(list(losses)).double().mean()) < _HOPELESS:
        raise DivergenceError(
            f"dynamic evaluation with lr {setting.lr:g}, decay {setting.decay:g} and eps {setting.eps:g}"
            " diverges; lower --lr or raise --eps"
        )
