"""Precisions that a config leaves open by ``auto``, chosen by a benchmark when training starts.

Products in bfloat16 are several times as fast as float32 on one processor and many times as slow on another.
The faster precision at the run's own sizes is saved in its config.json. A resumed run reads it there instead
of measuring again, so results stay bit-identical. A value that a config or ``--set`` gives is used as given.

K components · E context size · V words.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from pydantic import BaseModel

from lm.config.difference import flat_config
from lm.config.load import Resolved, with_settings
from lm.config.settings import Setting
from lm.engine.events import Note, Reporter
from lm.heads.config import HeadConfig
from lm.heads.links import EXP
from lm.heads.loss_options import LossOptions, Output, rounded
from lm.heads.mixture_loss import one_pass_log_probs, one_pass_loss
from lm.heads.registry import HEADS
from lm.runs.inputs import saved_settings

C = TypeVar("C", bound=BaseModel)
Work = Callable[[], object]

CLEARLY = 1.25  # least speed of bfloat16, in times that of float32, that is worth its rounding
SMALL = 2**19  # entries of an output matrix; products of smaller ones take too little time to matter
LOSS_ROWS, DECODED_ROWS = 300, 96  # of logits in the benchmark: a chunk of the loss, and some beams
TRIED_WORDS = 4096  # at most, in the benchmark
ROUNDS = 5
HOPELESS = 0.25  # speed of bfloat16, in times that of float32; below it, trying ends early
HOPELESS_ROUNDS = 2  # rounds before that


class Tried(NamedTuple):
    """One job with products in float32 and in bfloat16."""

    float32: Work
    bfloat16: Work


def kept_precisions(resolved: Resolved[C], folder: Path) -> Resolved[C]:
    """The config with the choices that an earlier training saved in the folder, with their provenance.

    A run saved with ``auto``, or before ``auto`` existed, continues in float32, as it began. Raises
    StorageError for a damaged config.
    """
    saved = saved_settings(folder)
    kept = {key: saved[key] for key in _open(resolved) if key in saved and saved[key].value}
    return with_settings(resolved, kept, type(resolved.config)) if kept else resolved


def measured_precisions(
    resolved: Resolved[C], sizes: tuple[int, int], device: torch.device, folder: Path, report: Reporter
) -> Resolved[C]:
    """The config with choices for an output matrix of ``sizes`` (V, E), which are reported.

    Nothing is measured if the folder holds a run. The global random generators are not used.
    """
    config: Any = resolved.config
    keys = [] if saved_settings(folder) else _open(resolved)
    found = {key: _choice(JOBS[key](config.head, sizes, device), device) for key in keys}
    if not found:
        return resolved
    report(Note("; ".join(f"{key} = {one.value}, {one.where}" for key, one in found.items())))
    return with_settings(resolved, found, type(resolved.config))


def _choice(tried: Tried | None, device: torch.device) -> Setting:
    if tried is None:
        return Setting("float32", "as products this small take little time")
    speed = speed_of(tried, device)
    value = "bfloat16" if speed > CLEARLY else "float32"
    times = f"{speed:.2g}"
    compared = "is as fast as float32" if times == "1" else f"has {times} times the speed of float32"
    return Setting(value, f"as bfloat16 {compared} here")


def speed_of(tried: Tried, device: torch.device) -> float:
    """Speed of bfloat16 in times that of float32: the shortest times of alternating rounds.

    Other work on the machine only lengthens a round, so the shortest is the least disturbed.
    """
    exact, rough = list[float](), list[float]()
    for work in tried:
        work()
    while len(exact) < ROUNDS and not (len(exact) == HOPELESS_ROUNDS and min(exact) < HOPELESS * min(rough)):
        exact.append(_seconds(tried.float32, device))
        rough.append(_seconds(tried.bfloat16, device))
    return min(exact) / min(rough)


def _seconds(work: Work, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _loss(head: HeadConfig, sizes: tuple[int, int], device: torch.device) -> Tried | None:
    """The loss with its gradients."""
    inputs = _Inputs.of(head, sizes, device, LOSS_ROWS)
    return inputs and Tried(lambda: inputs.gradients(False), lambda: inputs.gradients(True))


def _decoding(head: HeadConfig, sizes: tuple[int, int], device: torch.device) -> Tried | None:
    """Log-probabilities of every word."""
    inputs = _Inputs.of(head, sizes, device, DECODED_ROWS)
    if inputs is None:
        return None
    contexts, prior, output = inputs.contexts.detach(), inputs.prior, inputs.output
    operand = rounded(output.weight.detach())
    return Tried(
        lambda: one_pass_log_probs(contexts, prior, output, LossOptions(EXP)),
        lambda: one_pass_log_probs(contexts, prior, output, LossOptions(EXP), operand),
    )


JOBS = {"head.products": _loss, "decode.products": _decoding}


class _Inputs(NamedTuple):
    """Random inputs of a head for some words, and for tokens with some rows of logits."""

    contexts: torch.Tensor  # (n, K, E)
    prior: torch.Tensor  # (n, K)
    output: Output
    targets: torch.Tensor  # (n,)

    @classmethod
    def of(
        cls, head: HeadConfig, sizes: tuple[int, int], device: torch.device, rows: int
    ) -> "_Inputs | None":
        """Draw inputs; None if the products are too small to matter."""
        vocab, size = sizes
        if size * vocab < SMALL:
            return None
        components = head.components if HEADS[head.kind].logits_by_component else 1
        words, tokens = min(vocab, TRIED_WORDS), max(1, rows // components)
        generator = torch.Generator().manual_seed(1)

        def drawn(*shape: int) -> torch.Tensor:
            return torch.rand(shape, generator=generator).sub_(0.5).to(device)

        weight = drawn(words, size).requires_grad_()
        targets = torch.arange(tokens, device=device) % words
        prior = drawn(tokens, components).log_softmax(1)
        contexts = drawn(tokens, components, size).requires_grad_()
        return cls(contexts, prior, Output(weight, None, None), targets)

    def gradients(self, bf16: bool) -> object:
        options = LossOptions(EXP, bf16_products=bf16)
        loss = one_pass_loss(self.contexts, self.prior, self.output, self.targets, None, options)
        return torch.autograd.grad(loss, (self.contexts, self.output.weight))


def _open(resolved: Resolved[C]) -> list[str]:
    """Keys whose value is ``auto``."""
    values = flat_config(resolved.config)
    return [key for key in JOBS if values.get(key) == "auto"]
