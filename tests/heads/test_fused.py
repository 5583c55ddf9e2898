"""The Triton kernels against the formula in float64 and against the eager path.

Without CUDA they run under Triton's interpreter, in a process of its own, since that is chosen when Triton is
imported. With CUDA, ``-m gpu`` runs the same tests compiled, on shapes of several tiles.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from lm.heads.links import EXP, SIGSOFTMAX, Link
from lm.heads.loss_options import LossOptions, Output
from lm.heads.mixture_loss import one_pass_loss
from tests.support.plain_heads import example, make_head

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
NAMES = ("of_contexts", "of_prior", "of_weight", "of_bias", "of_shift")
outside = pytest.mark.skipif(INTERPRETED, reason="this is the interpreter's process")
on_devices = pytest.mark.parametrize(
    "device",
    [
        pytest.param(
            "cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="for the interpreter's process")
        ),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)


@outside
@pytest.mark.timeout(400)
def test_under_the_interpreter() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    if "passed" not in ended.stdout:
        pytest.skip(f"the interpreter of this Triton does not work here: {ended.stdout.splitlines()[-1]}")


@pytest.fixture(scope="module")
def fused() -> Any:
    """The module under test, imported where the tests that need it run."""
    from lm.heads import fused

    if INTERPRETED:
        _repair_interpreter()
    return fused


def _repair_interpreter() -> None:
    """Makes it multiply bfloat16, which it holds as bits; skips where it cannot loop under a recent NumPy."""
    import numpy as np
    import triton
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    multiply = InterpreterBuilder.create_dot

    def wide(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self: Any, left: Any, right: Any, *rest: Any) -> Any:
        return multiply(self, wide(left), wide(right), *rest)

    InterpreterBuilder.create_dot = create_dot

    @triton.jit
    def count(out: Any, end: Any) -> None:
        for number in range(0, end, 1):
            tl.store(out + number, number)

    try:
        count[(1,)](torch.empty(2), 2)
    except triton.runtime.errors.InterpreterError as error:
        pytest.skip(f"this Triton cannot loop under this NumPy: {error}")


class Case(NamedTuple):
    """What a loss takes; the gradient of the loss at its first five."""

    contexts: Tensor
    log_prior: Tensor
    weight: Tensor
    bias: Tensor | None
    shift: Tensor | None
    targets: Tensor
    token_weights: Tensor

    def to(self, where: Any) -> "Case":
        """On a device, or, except for the targets, in a precision."""
        moved = [None if part is None else part.to(where) for part in self]
        return Case(*moved)._replace(targets=self.targets) if where == torch.float64 else Case(*moved)


def case(link: Link, sizes: tuple[int, int, int, int], bias: bool = True, shift: float | None = None) -> Case:
    """Random float32 inputs of N tokens, K components, V words and contexts of E."""
    tokens, components, words, size = sizes
    return Case(
        torch.randn(tokens, components, size),
        torch.randn(tokens, components).log_softmax(1),
        torch.randn(words, size) * size**-0.5,
        torch.randn(words) if bias else None,
        None if shift is None else torch.tensor(shift),
        torch.randint(0, words, (tokens,)),
        torch.rand(tokens) - 0.2,
    )


def run(fused: Any, link: Link, given: Case, bf16: bool = False) -> Any:
    contexts, log_prior, weight, bias, shift, targets, weights = given
    options = LossOptions(link, bf16_products=bf16)
    return fused.fused_loss(contexts, log_prior, Output(weight, bias, shift), targets, weights, options)


def exact(link: Link, given: Case) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses (N,) and gradients of the formula, everything kept, in float64 on the CPU."""
    wide = given.to("cpu").to(torch.float64)
    leaves = [None if part is None else part.requires_grad_() for part in wide[:5]]
    contexts, log_prior, weight, bias, shift = leaves
    logits = contexts @ weight.t() if bias is None else contexts @ weight.t() + bias
    log_p = link.log_normalised(logits, shift)  # (N, K, V)
    index = wide.targets[:, None, None].expand(-1, contexts.shape[1], 1)
    nll = -(log_prior + log_p.gather(2, index)[..., 0]).logsumexp(1)
    wanted = [(name, leaf) for name, leaf in zip(NAMES, leaves, strict=True) if leaf is not None]
    gradients = torch.autograd.grad((wide.token_weights * nll).sum(), [leaf for _, leaf in wanted])
    return nll.detach(), {name: grad for (name, _), grad in zip(wanted, gradients, strict=True)}


def error(got: Tensor, wanted: Tensor) -> float:
    return ((got.cpu().double() - wanted).norm() / wanted.norm()).item()


PLAIN, SHIFTED, BARE = (EXP, True, None), (SIGSOFTMAX, True, 0.7), (SIGSOFTMAX, False, None)
SHAPES = [  # N, K, V, E: less than a tile, odd sizes, a column over a power of two, several tiles
    (*PLAIN, (1, 3, 5, 3)),
    (*SHIFTED, (7, 1, 37, 5)),
    (*PLAIN, (7, 3, 50, 33)),
    (*BARE, (6, 3, 50, 33)),
    (*SHIFTED, (17, 2, 70, 48)),
    (*PLAIN, (18, 1, 17, 5)),  # a tile that holds the target alone
    pytest.param(*PLAIN, (301, 3, 1003, 280), marks=pytest.mark.gpu),
    pytest.param(*SHIFTED, (301, 3, 1003, 280), marks=pytest.mark.gpu),
    pytest.param(*PLAIN, (840, 1, 10_000, 300), marks=pytest.mark.gpu),
    pytest.param(*BARE, (130, 15, 517, 64), marks=pytest.mark.gpu),
]


@pytest.mark.filterwarnings("ignore:divide by zero")  # by the interpreter, of a row without other words
@on_devices
@pytest.mark.parametrize(("link", "bias", "shift", "sizes"), SHAPES)
def test_losses_and_gradients_are_the_formula(
    fused: Any, device: str, link: Link, bias: bool, shift: float | None, sizes: tuple[int, int, int, int]
) -> None:
    given = case(link, sizes, bias, shift).to(device)
    got = run(fused, link, given)
    nll, gradients = exact(link, given)
    assert error(got.token_nll, nll) < 2e-6
    for name, wanted in gradients.items():
        assert error(getattr(got, name), wanted) < 1e-5, name


@pytest.mark.filterwarnings("ignore:divide by zero")  # by the interpreter, of a row without other words
@on_devices
def test_a_vocabulary_of_one_word_has_no_loss_and_nothing_to_learn(fused: Any, device: str) -> None:
    given = case(SIGSOFTMAX, (3, 2, 1, 5), shift=0.7).to(device)
    got = run(fused, SIGSOFTMAX, given)
    assert got.token_nll.abs().max() < 1e-6
    posterior = given.log_prior.exp() * given.token_weights[:, None]
    torch.testing.assert_close(got.of_prior, -posterior)
    for name in ("of_contexts", "of_weight", "of_bias", "of_shift"):
        assert getattr(got, name).abs().max() < 1e-6, name


@on_devices
@pytest.mark.parametrize("kind", ["softmax", "sigsoftmax", "moc", "mos", "moss"])
def test_every_head_has_the_loss_and_gradients_of_the_eager_path(fused: Any, device: str, kind: str) -> None:
    head = make_head(kind).float().to(device)
    hidden, targets, weights = (part.to(device) for part in example())
    contexts, log_prior, *_ = head.mixer.mixture(hidden.detach().float())
    contexts, log_prior = (part.detach().requires_grad_() for part in (contexts, log_prior))
    output, options = head.output.tempered(contexts)[1], LossOptions(head.link)
    loss = one_pass_loss(contexts, log_prior, output, targets, weights.float(), options)
    leaves = {"of_contexts": contexts, "of_prior": log_prior, "of_weight": head.weight, "of_bias": head.bias}
    if head.shift is not None:
        leaves["of_shift"] = head.shift
    wanted = torch.autograd.grad(loss, list(leaves.values()))
    got = fused.fused_loss(contexts, log_prior, output, targets, weights.float(), options)
    torch.testing.assert_close((weights.float() * got.token_nll).sum(), loss.detach())
    for name, gradient in zip(leaves, wanted, strict=True):
        torch.testing.assert_close(getattr(got, name), gradient, rtol=1e-5, atol=2e-6)


@on_devices
@pytest.mark.parametrize(("link", "shift"), [(EXP, None), (SIGSOFTMAX, 0.5)])
@pytest.mark.parametrize("magnitude", [300.0, -300.0])
def test_extreme_logits_are_finite_and_right(
    fused: Any,
    device: str,
    link: Link,
    shift: float | None,
    magnitude: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All tiles of a row to one program, whose maximum has to rise and to stay."""
    monkeypatch.setattr(fused, "PROGRAMS", 0)
    given = case(link, (6, 2, 40, 8), shift=shift)
    given = given._replace(weight=given.weight * 40, bias=torch.linspace(0, magnitude, 40)).to(device)
    got = run(fused, link, given)
    nll, gradients = exact(link, given)
    assert nll.max() > 50
    torch.testing.assert_close(got.token_nll.cpu().double(), nll, rtol=1e-5, atol=1e-4)
    for name, wanted in gradients.items():
        torch.testing.assert_close(getattr(got, name).cpu().double(), wanted, rtol=1e-3, atol=1e-3)


@on_devices
@pytest.mark.parametrize(("link", "shift"), [(EXP, None), (SIGSOFTMAX, 0.7)])
def test_bfloat16_products_round_operands_and_nothing_else(
    fused: Any, device: str, link: Link, shift: float | None
) -> None:
    """Against float64 with operands rounded alike, what remains is the rounding of shares, 2⁻⁹ each."""
    given = case(link, (9, 3, 40, 33), shift=shift)
    rounded = (given.contexts.bfloat16().float(), given.weight.bfloat16().float())
    given = given._replace(contexts=rounded[0], weight=rounded[1]).to(device)
    got = run(fused, link, given, bf16=True)
    nll, gradients = exact(link, given)
    assert error(got.token_nll, nll) < 2e-6
    for name, wanted in gradients.items():
        assert error(getattr(got, name), wanted) < 2e-3, name
        exact_too = name in ("of_prior", "of_bias", "of_shift")
        assert not exact_too or error(getattr(got, name), wanted) < 5e-6, name


@on_devices
@pytest.mark.parametrize("link", [EXP, SIGSOFTMAX])
def test_the_example_tells_whether_kernels_agree(
    fused: Any, device: str, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "INTERPRETED", fused.Tiles(64, 64, 1, 1))  # much faster than small ones

    def error() -> float:
        return float(fused.error_on(torch.device(device), 33, link, True))

    assert 0 < error() < fused.TOLERANCE / 2
    if link is EXP:
        return
    contexts, weight = fused._Kernels.towards_contexts, fused._Kernels.towards_weight

    def times_five(*given: Any) -> Any:
        products, sums = weight(*given)
        return products, 5 * sums

    for name, wrong in (
        ("towards_contexts", lambda *given: float("nan") * contexts(*given)),
        ("towards_weight", times_five),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(fused._Kernels, name, wrong)
            assert not error() <= fused.TOLERANCE


@on_devices
@pytest.mark.parametrize("link", [EXP, SIGSOFTMAX])
def test_gradients_with_bfloat16_products_are_within_a_two_thousandth(
    fused: Any, device: str, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "INTERPRETED", fused.Tiles(64, 64, 1, 1))  # much faster than small ones
    given = case(link, (20, 3, 500, 33))
    scaled = given._replace(contexts=given.contexts.tanh(), weight=given.weight / 3).to(device)
    got = run(fused, link, scaled, bf16=True)
    nll, gradients = exact(link, scaled)
    assert error(got.token_nll, nll) < 5e-4
    for name, wanted in gradients.items():
        assert error(getattr(got, name), wanted) < 5e-4, name


@on_devices
def test_the_gradient_of_a_token_that_is_all_but_certain_survives_bfloat16(fused: Any, device: str) -> None:
    """p − 1 ≈ −10⁻⁴ at the target, where p itself in bfloat16 is 1."""
    given = case(EXP, (1, 1, 40, 16))
    given.bias[given.targets] = 14.0
    rounded = (given.contexts.bfloat16().float(), given.weight.bfloat16().float())
    given = given._replace(contexts=rounded[0], weight=rounded[1]).to(device)
    nll, gradients = exact(EXP, given)
    assert 1e-5 < nll.item() < 1e-3
    got = run(fused, EXP, given, bf16=True)
    for name in ("of_contexts", "of_weight"):
        assert error(getattr(got, name), gradients[name]) < 1e-2, name


@pytest.mark.filterwarnings("ignore:All-NaN", "ignore:invalid value")  # by the interpreter
@on_devices
def test_a_nan_reaches_the_loss_of_its_token_and_no_other(fused: Any, device: str) -> None:
    given = case(EXP, (20, 1, 40, 16))
    given.contexts[3, 0, 5] = float("nan")
    got = run(fused, EXP, given.to(device))
    assert got.token_nll.isnan().nonzero().flatten().tolist() == [3]
    assert got.of_contexts.isnan().flatten(1).all(1).nonzero().flatten().tolist() == [3]
    assert got.of_weight.isnan().any()


@on_devices
def test_no_tokens_are_no_loss(fused: Any, device: str) -> None:
    got = run(fused, EXP, case(EXP, (0, 3, 20, 16)).to(device))
    assert got.token_nll.shape == (0,)
    assert got.of_contexts.shape == (0, 3, 16)
    assert (got.of_weight == 0).all()
    assert (got.of_bias == 0).all()


@on_devices
def test_results_repeat_to_the_bit(fused: Any, device: str) -> None:
    given = case(EXP, (64, 3, 40, 16) if device == "cuda" else (9, 3, 20, 16)).to(device)
    for one, other in zip(run(fused, EXP, given, bf16=True), run(fused, EXP, given, bf16=True), strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [128, 280, 400, 512, 620])
@pytest.mark.parametrize("bf16", [True, False])
def test_tensor_cores_at_the_sizes_of_the_papers(
    fused: Any, size: int, bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "_precision", lambda: "tf32")
    given = case(SIGSOFTMAX, (130, 3, 2003, size), shift=0.7).to("cuda")
    if not fused.suits(given.contexts, LossOptions(SIGSOFTMAX, bf16_products=bf16)):
        pytest.skip("too large for this GPU")
    got = run(fused, SIGSOFTMAX, given, bf16)
    nll, gradients = exact(SIGSOFTMAX, given)
    assert error(got.token_nll, nll) < 2e-3
    for name, wanted in gradients.items():
        assert error(getattr(got, name), wanted) < 5e-3, name


@on_devices
def test_targets_that_are_no_words_are_refused(fused: Any, device: str) -> None:
    if device == "cuda":
        pytest.skip("an assertion there ends the process's use of the GPU")
    given = case(EXP, (9, 3, 20, 16))
    with pytest.raises(RuntimeError):
        run(fused, EXP, given._replace(targets=-given.targets - 1), bf16=False)
