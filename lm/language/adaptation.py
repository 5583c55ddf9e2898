"""Dynamic evaluation: the model is trained on the text that it is evaluated on (Krause et al. 2018).

Each window of a few tokens is first scored with the current weights. Then one update adapts the weights to
it:

    θ ← θ − η · g / (RMS + ε) + λ · R ⊙ (θ₀ − θ),    R = RMS / mean RMS, at most 1 / λ,

with g the gradient of a window's mean loss. RMS of a weight is the root mean square of its g over the
training data. The mean of RMS is either the mean over parameter tensors of the mean of each, or the mean over
all weights (Melis et al. 2020). R is capped for each setting separately. In the authors' grid search the
tightest cap so far persists.
"""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

from lm.arrays import Floats
from lm.cells.layers import Layer
from lm.config.section import MAX_SIZE
from lm.config.suggest import did_you_mean
from lm.errors import DataError, DivergenceError, require
from lm.heads.states import Layers
from lm.language.config import WindowConfig
from lm.language.model import LanguageModel
from lm.language.scoring import require_distribution, windows_of
from lm.language.trained import TrainedLm
from lm.language.windows import Ids, Streams
from lm.steps import OnAdvance, OnProgress, no_advance, no_progress
from lm.trunks.trunk import TrunkState

Scaling = Literal["normalised", "original", "elements"]

ADAPT_LENGTH = 5  # tokens of a window
STREAMS = 100  # batch size for statistics of the training data
_CHECKED = 200  # windows between tests of the losses and of a sum of probabilities
_HOPELESS = 700.0  # nats a token; exp(700) is close to the largest float64


@dataclass(frozen=True)
class DynamicSetting:
    """Hyper-parameters of dynamic evaluation: η, λ, ε and their scaling.

    ``normalised`` follows the formula of this module. ``original`` is the scaling of the MoS paper. Its RMS
    is √Σg², which grows with the number of windows of training data, and its R divides by a sum over tensors
    instead of a mean. ``elements`` is ``normalised`` with the mean over all weights (Melis et al. 2020).
    Melis et al. sum the loss over a window, so their ε is ours times the window's length.
    """

    lr: float
    decay: float
    eps: float = 2e-5
    scaling: Scaling = "normalised"
    window: int = ADAPT_LENGTH
    streams: int = STREAMS  # batch size for RMS

    def __post_init__(self) -> None:
        for name in ("lr", "decay"):
            number = getattr(self, name)
            require(0 <= number < math.inf, f"--{name} {number:g}: must be a finite number of at least 0")
        require(0 < self.eps < math.inf, f"--eps {self.eps:g}: must be a finite number above 0")
        require(1 <= self.window <= MAX_SIZE, f"--window {self.window}: must be from 1 to {MAX_SIZE}")
        require(self.streams >= 1, f"--streams {self.streams}: must be at least 1")
        require(
            self.scaling in get_args(Scaling),
            f"--scaling {self.scaling!r}: must be one of {', '.join(get_args(Scaling))}",
        )

    def normalised(self, windows: int, tensors: int) -> "DynamicSetting":
        """The ``normalised`` equivalent of ``original``: λ / tensors, η / √windows, ε / √windows."""
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


def named_setting(name: str) -> DynamicSetting:
    """The published setting of a name. ConfigError for an unknown name."""
    known = DYNAMIC_SETTINGS
    hint = did_you_mean(name, known) or f"; choose from {', '.join(known)}"
    require(name in known, f"--setting {name}: no such setting{hint}")
    return known[name]


@dataclass
class Statistics:
    """Sums of squared gradients over the first ``windows`` windows of the training data."""

    squares: dict[str, Tensor]  # Σ g² of every parameter of :func:`scored_parameters`
    state: TrunkState  # of the streams after these windows
    windows: int = 0

    @classmethod
    def empty(cls, model: LanguageModel, streams: int) -> "Statistics":
        """Statistics of zero windows."""
        squares = {
            name: torch.zeros_like(p, requires_grad=False) for name, p in scored_parameters(model).items()
        }
        return cls(squares, model.initial_state(streams))


def scored_parameters(model: LanguageModel) -> dict[str, nn.Parameter]:
    """Parameters with elements that a token's probability depends on: all but those of the past decoder."""
    past = model.head.past
    others = set() if past is None else set(map(id, past.parameters()))
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.numel() and id(parameter) not in others
    }


def gather(
    trained: TrainedLm,
    files: Sequence[Ids],
    statistics: Statistics,
    window: int = ADAPT_LENGTH,
    *,
    paper: bool = False,
    progress: OnProgress = no_progress,
    commit: Callable[[], None] | None = None,
) -> None:
    """Continue the statistics to the end of the training data, laid out as streams.

    Dropout is off. g is the gradient of the mean loss over the tokens of a window in all streams, not
    clipped, without penalties or weight decay. ``paper`` omits the tokens that :class:`Streams` omits in
    training. ``progress``, in windows, and ``commit`` are called after every window, with the statistics up
    to date. ``commit`` may raise. DataError if there is no window.
    """
    model, streams = trained.model, statistics.state.streams
    laid_out = Streams(files, streams, trained.codec.vocabulary.bos, paper=paper)
    config = WindowConfig(length=window, random=False, rescale_lr=False)
    total = sum(1 for _ in laid_out.spans(config, np.random.default_rng(0), training=True))
    if not total:
        raise DataError(f"the training data have too few tokens for {streams} streams; use a longer text")
    spans = laid_out.spans(config, np.random.default_rng(0), training=True)
    parameters, squares = list(scored_parameters(model).values()), list(statistics.squares.values())
    with adaptable(model):
        for span in islice(spans, statistics.windows, None):
            batch = laid_out.window(span).to(trained.device)
            before = model.initial_state(streams) if batch.first else statistics.state
            outputs = model(batch.tokens, before)
            loss = model.head.loss(outputs.hidden, batch.targets) / batch.targets.numel()
            gradients = torch.autograd.grad(loss, parameters)
            torch._foreach_addcmul_(squares, gradients, gradients)
            statistics.state = outputs.state.detached()
            statistics.windows += 1
            progress(statistics.windows, total)
            if commit is not None:
                commit()


class AdaptedWindow(NamedTuple):
    """States (n, 1, H) that predict the ``targets`` (n,) of a window, and their −log P (n,) in nats."""

    hidden: Layers
    targets: Tensor
    nll: Tensor


@dataclass(frozen=True)
class Adaptation:
    """Dynamic evaluation of a model, whose weights and mode are restored after each text.

    ``temperature`` divides the logits of every component, also in the loss that is learnt from. ``sampler``
    is a model with active dropout that is adapted instead of the trained model. In the authors' code
    (``paper``) the first token is read but not predicted.
    """

    trained: TrainedLm
    statistics: Statistics
    setting: DynamicSetting
    paper: bool = False
    temperature: float = 1.0
    sampler: LanguageModel | None = None

    def nll(self, ids: Ids, advance: OnAdvance = no_advance) -> Floats:
        """−log P of every token in nats before its window is learnt, (N,), or (N − 1,) for ``paper``.

        DivergenceError if a loss is not finite. Every 200 windows and at the last one, also if the
        probabilities for a target do not sum to one.
        """
        losses: list[Tensor] = []
        last = windows_of(ids, self.setting.window, paper=self.paper)
        with closing(self.windows(ids)) as windows:
            for window in windows:
                losses.append(window.nll)
                if len(losses) % _CHECKED == 0 or len(losses) == last:
                    _require_finite(losses[-_CHECKED:], self.setting)
                    self._require_distribution(window)
                advance(len(window.targets))
        return torch.cat(losses).double().cpu().numpy()

    def _require_distribution(self, window: AdaptedWindow) -> None:
        """Test a window, before the weights adapt to it."""
        model = self.trained.model
        if self.sampler is None:
            states = model.for_head(window.hidden)
            require_distribution(model.head, states, window.targets, window.nll, self.temperature)

    def readings(self, ids: Ids) -> Generator[tuple[Layers, Tensor]]:
        """Yield states, without gradients, and targets of each window, as ``TrainedLm.readings`` does.

        Close the generator, as that of :meth:`windows`.
        """
        with closing(self.windows(ids)) as windows:
            for window in windows:
                yield window.hidden.map(Tensor.detach), window.targets

    def windows(self, ids: Ids) -> Generator[AdaptedWindow]:
        """Yield each window of a text before the weights adapt to it.

        While the caller has a window, the weights of the model are those that scored it. The end of the text
        and closing the generator restore the trained weights.
        """
        model = self.sampler or self.trained.model
        parameters: list[Tensor] = list(scored_parameters(model).values())
        step, pull = factors(self.statistics, self.setting)
        with adaptable(model, dropping=self.sampler is not None) as start:
            reader, tokens = self.trained.begin(ids, paper=self.paper, model=model)
            for targets in tokens.split(self.setting.window):
                hidden, count = reader.read(targets), len(targets)
                weights = hidden.last.new_ones(count, requires_grad=True)  # the gradient at one is the nll
                loss = model.head.loss(
                    model.for_head(hidden), targets, weights, component_temperature=self.temperature
                )
                *gradients, nll = torch.autograd.grad(loss, [*parameters, weights])
                yield AdaptedWindow(hidden, targets, nll)
                with torch.no_grad():
                    torch._foreach_lerp_(parameters, start, pull)
                    torch._foreach_addcmul_(parameters, gradients, step, value=-1 / count)


def factors(statistics: Statistics, setting: DynamicSetting) -> tuple[list[Tensor], list[Tensor]]:
    """Factors η / (RMS + ε) of the gradient and min(λ R, 1) of the pull towards θ₀, for every parameter."""
    squares = list(statistics.squares.values())
    setting = setting.normalised(statistics.windows, len(squares))
    rms = [(square / statistics.windows).sqrt() for square in squares]
    if setting.scaling == "elements":
        mean = torch.stack([tensor.sum() for tensor in rms]).sum() / sum(tensor.numel() for tensor in rms)
    else:
        mean = torch.stack([tensor.mean() for tensor in rms]).mean()
    if not (bool(torch.isfinite(mean)) and float(mean) > 0):
        raise DivergenceError(
            f"the gradients over the training data have the mean RMS {float(mean):g}, which must be finite"
            " and above 0; choose another checkpoint"
        )
    step = [setting.lr / (tensor + setting.eps) for tensor in rms]
    pull = [(tensor * (setting.decay / mean)).clamp_(max=1) for tensor in rms]
    return step, pull


@contextmanager
def adaptable(model: LanguageModel, *, dropping: bool = False) -> Iterator[list[Tensor]]:
    """Enable gradients with all dropout off. Restore weights and modes at the end.

    A model that is ``dropping``, in training mode, keeps its dropout. cuDNN refuses backpropagation through
    recurrent layers in evaluation mode. So only these layers are in training mode, without weight dropout.
    Yields copies of the parameters of :func:`scored_parameters`.
    """
    parameters, training = list(scored_parameters(model).values()), model.training
    start = [parameter.detach().clone() for parameter in parameters]
    layers = [layer for layer in model.modules() if isinstance(layer, Layer)]
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
    """Raise DivergenceError if a loss is NaN, or if the mean loss is too large for a perplexity."""
    if not float(torch.cat(list(losses)).double().mean()) < _HOPELESS:
        raise DivergenceError(
            f"dynamic evaluation with lr {setting.lr:g}, decay {setting.decay:g} and eps {setting.eps:g}"
            " diverges; lower --lr or raise --eps"
        )
