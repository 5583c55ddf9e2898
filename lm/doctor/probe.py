"""Checks that need torch, for a process of its own: a crash or hang there ends only that process.

The process writes a line of JSON when a check begins and for each of its findings. An empty line comes
before it, since a library may have printed a part of a line.
"""

import json
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from lm.disk.storage import temporary_folder
from lm.doctor.checks import Diagnosis, careful

_STEPS = ("train.validate_every=2", "train.threads=1", "train.device=cpu", "head.products=float32")
SLOW = 0.67  # speed in times that of the naive formula, below which a head needs attention
TinyTraining = Callable[[Path, int], None]  # trains in a folder up to a number of updates


def tiny_settings(folder: Path, text: str, steps: int) -> list[str]:
    """Settings of a tiny training in a folder, on ``text`` for all splits, up to a number of updates."""
    source = folder.parent / "text.txt"
    source.write_text(text, encoding="utf-8")
    splits = [f"data.{split}={source}" for split in ("train", "valid", "test")]
    return [*_STEPS, *splits, f"train.max_steps={steps}"]


def probe(trial: TinyTraining) -> None:
    """Run the checks in this process; ``trial`` trains a tiny model of the family."""
    logging.disable(logging.WARNING)
    for name, examine in (
        ("torch", _torch),
        ("GPU", _gpu),
        ("head", _head),
        ("training", lambda: _training(trial)),
    ):
        _tell({"begin": name})
        for found in careful(name, examine):
            _tell(asdict(found))


def _tell(row: dict[str, object]) -> None:
    os.write(sys.__stdout__.fileno() if sys.__stdout__ else 1, f"\n{json.dumps(row)}\n".encode())


def _torch() -> Iterator[Diagnosis]:
    import torch

    says = (
        f"torch {torch.__version__}, {torch.get_num_threads()} threads,"
        f" instructions {torch.backends.cpu.get_cpu_capability()}"
    )
    yield Diagnosis("torch", "ok", says)


def _gpu() -> Iterator[Diagnosis]:
    import torch

    from lm.heads.kernel_choice import fused_kernels

    if not torch.cuda.is_available():
        if shutil.which("nvidia-smi") or Path("/dev/nvidia0").exists():
            remedy = "install a CUDA build of torch that fits the driver: see pytorch.org"
            yield Diagnosis("GPU", "warning", "there is one, but torch does not see it", remedy)
        else:
            yield Diagnosis("GPU", "ok", "none; everything runs on the processor, without a compiler")
        return
    name, (free, total) = torch.cuda.get_device_name(), torch.cuda.mem_get_info()
    says = f"{name}, CUDA {torch.version.cuda}, {free / 1e9:.1f} GB free of {total / 1e9:.1f} GB"
    says += "; transformers do not repeat bit for bit there (memory-efficient attention)"
    kernels = fused_kernels()
    if kernels is None:
        remedy = "pip install triton for faster mixtures"
        yield Diagnosis("GPU", "warning", f"{says}; no Triton kernels", remedy)
    elif not any(map(shutil.which, ("cc", "gcc", "clang"))):
        remedy = "install a C compiler, which Triton needs, or set HIGHRANK_FUSED=0"
        yield Diagnosis("GPU", "warning", f"{says}; Triton without a C compiler", remedy)
    else:
        yield Diagnosis("GPU", "ok", f"{says}; Triton kernels")


def _head() -> Iterator[Diagnosis]:
    """Speed of a mixture's loss with gradients, against the formula written out."""
    import torch

    from lm.heads.config import HeadConfig
    from lm.heads.head import Head

    generator = torch.Generator().manual_seed(1)
    head = Head(HeadConfig(kind="mos", components=5, embedding_size=64, tied=False), 64, 5000)
    hidden = torch.rand(64, 64, generator=generator)
    targets = torch.randint(5000, (64,), generator=generator)

    def naive() -> torch.Tensor:
        mixture, weight = head.mixer.mixture(hidden), head.output.weight
        bias = head.bias if head.bias is not None else 0.0
        words = (mixture.contexts @ weight.T + bias).log_softmax(-1)
        log_probs = (words + mixture.log_prior[..., None]).logsumexp(1)
        return -log_probs.gather(1, targets[:, None]).sum()

    def ours() -> torch.Tensor:
        return head.loss(hidden, targets)

    def seconds(loss: Callable[[], torch.Tensor]) -> float:
        start = time.perf_counter()
        torch.autograd.grad(loss(), [*head.parameters()])
        return time.perf_counter() - start

    exact, told = float(naive().detach()), float(ours().detach())
    if abs(exact - told) > 1e-4 * abs(exact):
        remedy = "file an issue with this line: the arithmetic of this torch build is off"
        yield Diagnosis("head", "problem", f"loss {told:.6g} instead of {exact:.6g}", remedy)
        return
    begin, ratios = time.perf_counter(), list[float]()
    while not ratios or (len(ratios) < 9 and time.perf_counter() - begin < 2):
        ratios.append(seconds(naive) / seconds(ours))
    speed = statistics.median(ratios)
    says = f"loss and gradients have {speed:.2g} times the speed of the naive formula, and equal results"
    if speed < SLOW:
        remedy = "set train.threads to the free processors, or measure again on an idle machine"
        yield Diagnosis("head", "warning", says, remedy)
    else:
        yield Diagnosis("head", "ok", says)


def _training(trial: TinyTraining) -> Iterator[Diagnosis]:
    """Four updates at once, and two and two, have equal bits."""
    from lm.runs.check import check_run

    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="highrank-doctor-", dir=temporary_folder()) as inner:
        whole, halves = Path(inner) / "whole", Path(inner) / "halves"
        trial(whole, 4)
        trial(halves, 2)
        trial(halves, 4)
        hashes = [check_run(run).state_sha256 for run in (whole, halves)]
    took = f"{time.perf_counter() - start:.1f} seconds"
    if hashes[0] == hashes[1] and hashes[0]:
        yield Diagnosis("training", "ok", f"a tiny model trains, and resumes bit-identically, in {took}")
    else:
        remedy = "file an issue with this report: runs that resume here differ from runs that do not"
        yield Diagnosis("training", "problem", "a resumed training differs from an uninterrupted one", remedy)
