"""When the Triton kernels are chosen, and that their tiles fit on the chips they are chosen for."""

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lm.heads import fused_switch, kernel_choice
from lm.heads.links import EXP, RELU
from lm.heads.loss_options import LossOptions
from tests.support.plain_heads import example, make_head

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


@pytest.mark.parametrize("wrong", [lambda *_: 0.5, lambda *_: float("nan"), lambda *_: 1 / 0])
def test_kernels_that_do_not_work_are_told_of_once_and_left(
    wrong: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from lm.heads import fused

    place = (torch.device("cuda"), 280, EXP, True)
    fused.works.cache_clear()
    monkeypatch.setattr(fused, "error_on", wrong)
    assert not any(fused.works(*place) for _ in range(3))
    assert caplog.text.count("HIGHRANK_FUSED=0") == 1
    fused.works.cache_clear()
    monkeypatch.setattr(fused, "error_on", lambda *_: 0.001)
    assert fused.works(*place)
    fused.works.cache_clear()


def test_kernels_for_a_gpu_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel_choice.kernels_of("cuda") == "fused"
    monkeypatch.setenv(fused_switch.FUSED, "0")
    assert kernel_choice.kernels_of("cuda") == "in tensor operations"


def test_a_broken_triton_is_told_of_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "triton.py").write_text("raise ImportError('of another driver')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("triton", "lm.heads.fused", "lm.heads.fused_tiles"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in ("fused", "fused_tiles"):
        monkeypatch.delattr(f"lm.heads.{name}", raising=False)
    kernel_choice._fused_kernels.cache_clear()
    assert [kernel_choice.kernels_of("cuda"), kernel_choice.kernels_of("cuda")] == [
        "in tensor operations"
    ] * 2
    assert caplog.text.count("of another driver") == 1
    kernel_choice._fused_kernels.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["softmax", "sigsoftmax", "mos", "moss"])
@pytest.mark.parametrize("biased", [True, False])
def test_a_head_uses_them_unless_they_are_switched_off(
    kind: str, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm.heads import fused

    head = make_head(kind, size=16, output_bias=biased).float().cuda()
    hidden, targets, weights = (tensor.cuda() for tensor in example())
    calls = []
    monkeypatch.setattr(fused, "fused_loss", lambda *a, own=fused.fused_loss: calls.append(1) or own(*a))

    def gradients() -> list[Tensor]:
        loss = head.loss(hidden.float(), targets, weights.float())
        return [loss, *torch.autograd.grad(loss, list(head.parameters()))]

    exact = gradients()
    assert not calls  # exact products are faster in tensor operations
    monkeypatch.setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32")
    gradients()  # the first use of a link tries the kernels on an example
    calls.clear()
    for wanted, got in zip(exact, gradients(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=5e-3, atol=5e-3)
    assert len(calls) == 1
    monkeypatch.setenv(fused_switch.FUSED, "0")
    gradients()
    assert len(calls) == 1


def test_what_suits_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    from lm.heads import fused

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(fused, "works", lambda *_: True)
    bf16 = LossOptions(EXP, bf16_products=True)
    assert fused.suits(torch.zeros(1, 1, 8), bf16)
    assert not fused.suits(torch.zeros(1, 1, 8, dtype=torch.float64), bf16)
    assert not fused.suits(torch.zeros(1, 1, 8), LossOptions(RELU, bf16_products=True))
    assert not fused.suits(torch.zeros(1, 1, 8), LossOptions(EXP))
    assert not fused.suits(torch.zeros(1, 1, 8), replace(bf16, skip_below=0.1))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not fused.suits(torch.zeros(1, 1, 8), bf16)


def widths_and_tiles(size: int, dtype: torch.dtype, precision: str, shared: int) -> tuple[int, int, Any]:
    from lm.heads import fused

    return *fused._widths(size), fused.tiles_for(size, dtype, precision, shared)


HOPPER, AMPERE = (90, 232_448), (80, 166_912)  # compute capability; bytes of shared memory a program may have


def test_columns_are_held_by_two_powers_of_two_and_blocks_by_the_chip() -> None:
    for size in range(1, 1500):
        wide, rest, tiles = widths_and_tiles(size, torch.bfloat16, "ieee", HOPPER[1])
        assert wide.bit_count() == 1
        assert rest.bit_count() <= 1
        assert size <= wide + rest <= max(size + 16, 4 / 3 * size)
        assert rest == 0 or wide < size
        if tiles is None:
            assert size > 640
        else:
            assert (tiles.owned + 2 * tiles.streamed) * (wide + rest) * 2 <= HOPPER[1]


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "shared"), [HOPPER, AMPERE])
@pytest.mark.parametrize("kernel", ["totals", "shares of words", "shares of rows"])
@pytest.mark.parametrize(
    ("size", "dtype", "precision"),
    [
        (280, torch.bfloat16, "ieee"), (620, torch.bfloat16, "ieee"),
        (280, torch.float32, "tf32"), (280, torch.float32, "ieee"),
    ],
)  # fmt: skip
def test_kernels_compile_for_a_gpu_and_fit_on_it(
    architecture: int, shared: int, kernel: str, size: int, dtype: torch.dtype, precision: str
) -> None:
    """No GPU is needed for that."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from lm.heads import fused_tiles

    wide, rest, tiles = widths_and_tiles(size, dtype, precision, shared)
    function = getattr(fused_tiles, kernel.split()[0])
    constants = {
        "SIGMOID": True, "SIZE": -(-size // 8) * 8, "WIDE": wide, "REST": rest, "OWNED": tiles.owned,
        "STREAMED": tiles.streamed, "PRECISION": precision, "OF_WORDS": kernel.endswith("words"),
    }  # fmt: skip
    operand = "*bf16" if dtype == torch.bfloat16 else "*fp32"
    types = dict.fromkeys(("contexts", "weight", "owned", "streamed"), operand)
    types |= dict.fromkeys(constants, "constexpr") | dict.fromkeys(("rows", "words", "per_part"), "i32")
    types |= {"targets": "*i32"}
    names = function.arg_names
    source = ASTSource(
        function,
        {name: types.get(name, "*fp32") for name in names},
        {(names.index(name),): value for name, value in constants.items() if name in names},
        {
            (place,): [["tt.divisibility", 16]]
            for place, name in enumerate(names)
            if types.get(name, "*")[0] == "*"
        },
    )
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages, "enable_fp_fusion": True}
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    assert compiled.metadata.shared <= shared
    assert ("mma" in compiled.asm["ptx"]) == (dtype == torch.bfloat16 or precision == "tf32")
