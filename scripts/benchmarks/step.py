"""A whole training step of a language model: forward, backward, clipping, optimiser."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from benchmarks.head import naive_loss
from benchmarks.timing import Case, Ceiling, Variant, Work
from lm.config.load import load_config
from lm.engine.optim import build_optimizer
from lm.engine.shapes import shapes_only
from lm.engine.update import StepLoss, Updater
from lm.heads.head import Head
from lm.heads.states import Layers
from lm.language.config import LmConfig
from lm.language.model import LanguageModel

STEPS, VOCAB = 70, 10_000
LossOf = Callable[[Head, Layers, Tensor], Tensor]
SOFTMAX = ("head.kind=softmax", "head.components=1", "head.latent_dropout=0")
BFLOAT16 = ("head.products=bfloat16",)


def cases(ceiling: Ceiling) -> list[Case]:
    """PTB as in Yang et al. (2018), 12 streams of 70 tokens: MoS, and softmax on the same layers."""
    variants = [
        _variant("MoS, naive head", (), naive_of_head, ceiling),
        _variant("MoS", (), Head.loss, ceiling),
        _variant("MoS, bfloat16 products", BFLOAT16, Head.loss, ceiling),
        _variant("softmax", SOFTMAX, Head.loss, ceiling),
        _variant("softmax, bfloat16 products", (*SOFTMAX, *BFLOAT16), Head.loss, ceiling),
    ]
    return [Case("training step, PTB", variants, ("tokens", 12 * STEPS))]


def _variant(name: str, overrides: Sequence[str], loss: LossOf, ceiling: Ceiling) -> Variant:
    config = load_config("ptb_mos", LmConfig, family="lm", overrides=overrides).config
    return Variant(name, partial(_work, config, loss), _floor(config, ceiling))


def _floor(config: LmConfig, ceiling: Ceiling) -> float:
    """Three products of every matrix that the tokens meet; the output matrix once a component."""
    with shapes_only():
        model = LanguageModel(config, VOCAB)
    layers = sum(parameter.numel() for parameter in model.layers.parameters())
    head = sum(parameter.numel() for parameter in model.head.parameters()) - model.head.weight.numel()
    tokens = config.train.batch_size * STEPS
    output = config.head.components * model.head.weight.numel()
    precision = "bfloat16" if config.head.products == "bfloat16" else "float32"  # auto is for trainings
    return ceiling.seconds(6 * tokens * (layers + head)) + ceiling.seconds(6 * tokens * output, precision)


def _work(config: LmConfig, loss: LossOf) -> Work:
    torch.manual_seed(1)
    model = LanguageModel(config, VOCAB)
    streams = config.train.batch_size
    tokens = torch.randint(0, VOCAB, (STEPS + 1, streams))
    state = model.initial_state(streams)

    def step_loss(batch: Tensor) -> StepLoss:
        hidden = model(batch[:-1], state).hidden
        nll = loss(model.head, hidden, batch[1:])
        return StepLoss(nll, nll.detach(), batch[1:].numel())

    optimizer = build_optimizer(config.optim, model, config.train.precision)
    updater = Updater(model, step_loss, optimizer, config.optim, config.train)

    def update() -> None:
        updater.apply(updater.gradients([tokens]), lr=1e-3)
        updater.clear()

    return update


def naive_of_head(head: Head, hidden: Layers, targets: Tensor) -> Tensor:
    """The papers' formula on the contexts of a head."""
    contexts, log_prior = head.mixer.contexts(hidden)
    assert log_prior is not None
    return naive_loss(
        contexts.flatten(0, 1), log_prior.flatten(0, 1), head.weight, head.bias, targets.flatten()
    )
