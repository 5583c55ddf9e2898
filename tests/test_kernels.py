"""The compiled kernels against the tensor operations that they stand for, and life without a compiler."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from test_heads import V, example, make_head
from torch import Tensor

from lm.kernels import native
from lm.kernels.rows import CompiledRows, EagerRows, rows_for
from lm.links import EXP, RELU, SIGMOID, SIGSOFTMAX, Link

needs_compiler = pytest.mark.skipif(native.library() is None, reason="no C++ compiler")
BOTH = pytest.mark.parametrize("link", [EXP, SIGSOFTMAX], ids=["exp", "sigsoftmax"])


@pytest.fixture
def fresh_library() -> Iterator[None]:
    """The library is looked for again, before the test and after it."""
    native.library.cache_clear()
    yield
    native.library.cache_clear()


def logits(columns: int, magnitude: float, offset: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    values = torch.randn(9, columns) * magnitude + offset
    return values.to(dtype), torch.randn(columns) * magnitude


@needs_compiler
@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [1, 15, 16, 17, 1000, 2500])
@pytest.mark.parametrize(("magnitude", "offset"), [(1, 0), (30, 0), (30, 300), (30, -300), (300, 0)])
def test_compiled_rows_are_the_formula(
    link: Link, dtype: torch.dtype, columns: int, magnitude: float, offset: float
) -> None:
    values, bias = logits(columns, magnitude, offset, dtype)
    shift = torch.tensor(0.3) if link is SIGSOFTMAX else None
    rows = rows_for(link, values)
    assert isinstance(rows, CompiledRows)

    exact = values.double() + bias
    wide, words = None if shift is None else shift.double(), torch.arange(9) % columns
    log_g = link.log(exact, wide).scatter(1, words[:, None], -torch.inf)
    top = log_g.amax(1, keepdim=True)
    shares = (log_g - top).exp()

    got_top, total = rows.shares_(values, words, bias, shift)
    if columns == 1:  # no other word
        assert (got_top < -1e37).all()
        assert total.isfinite().all()
        return
    error = 4e-7 * (1 + exact.abs().max().item())  # a logit is rounded to float32 once the bias is on it
    torch.testing.assert_close(got_top.double(), top, rtol=1e-6, atol=error)
    torch.testing.assert_close(total.double(), shares.sum(1, keepdim=True), rtol=error, atol=0)
    rounding = 2**-8 if dtype == torch.bfloat16 else 0
    torch.testing.assert_close(
        values.double(), shares * link.slope(exact, wide), rtol=rounding + 2 * error, atol=1e-30
    )

    factors = torch.rand(9, 1)
    sums = rows.column_sums(values, factors)
    torch.testing.assert_close(sums.double(), (values.double() * factors).sum(0), rtol=1e-5, atol=1e-30)


@needs_compiler
@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("components", [1, 3])
@pytest.mark.parametrize("columns", [1, 15, 16, 17, 1000])
@pytest.mark.parametrize(("magnitude", "offset"), [(1, 0), (30, 0), (30, 300), (30, -300), (300, 0)])
def test_compiled_mixtures_are_the_formula(
    link: Link, dtype: torch.dtype, components: int, columns: int, magnitude: float, offset: float
) -> None:
    values, bias = logits(columns, magnitude, offset, dtype)
    shift = torch.tensor(0.3) if link is SIGSOFTMAX else None
    offsets = torch.randn(9 // components, components)
    kept, rows = values.clone(), rows_for(link, values)
    assert isinstance(rows, CompiledRows)

    exact = values.double() + bias
    log_g = link.log(exact, None if shift is None else shift.double())
    error = 6e-7 * (1 + 2 * exact.abs().max().item())
    totals = rows.log_totals(values, bias, shift)
    torch.testing.assert_close(totals.double(), log_g.logsumexp(1, keepdim=True), rtol=0, atol=error)
    expected = (log_g.unflatten(0, offsets.shape) + offsets[..., None]).logsumexp(1)
    mixed = rows.mixed(values, bias, shift, offsets)
    torch.testing.assert_close(mixed.double(), expected, rtol=0, atol=error)
    assert torch.equal(values, kept)
    eager = EagerRows(link, values)
    torch.testing.assert_close(eager.log_totals(values, bias, shift), totals, rtol=0, atol=2 * error)
    torch.testing.assert_close(eager.mixed(values, bias, shift, offsets), mixed, rtol=0, atol=2 * error)


@needs_compiler
@BOTH
@pytest.mark.parametrize("column", [0, 20, 32])
def test_a_nan_reaches_its_token_in_a_mixture(link: Link, column: int) -> None:
    values, bias = logits(33, 1, 0, torch.float32)
    values[4, column] = float("nan")
    rows = rows_for(link, values)
    assert rows.log_totals(values, bias, None)[4].isnan()
    mixed = rows.mixed(values, bias, None, torch.zeros(3, 3))
    assert mixed.isnan().nonzero().tolist() == [[1, column]]


@needs_compiler
@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("column", [0, 20, 32])
def test_a_nan_reaches_the_total_of_its_row_and_no_other(link: Link, dtype: torch.dtype, column: int) -> None:
    values, bias = logits(33, 1, 0, dtype)
    values[4, column] = float("nan")
    _, total = rows_for(link, values).shares_(values, torch.ones(9, dtype=torch.long), bias, None)
    assert total.isnan().flatten().tolist() == [row == 4 for row in range(9)]
    assert values[4, column].isnan()


@needs_compiler
@pytest.mark.parametrize("kind", ["softmax", "sigsoftmax", "moc", "mos", "moss"])
@pytest.mark.parametrize("products", ["float32", "bfloat16"])
def test_the_loss_of_every_head_and_its_gradients_are_those_without_a_compiler(
    kind: str, products: str, monkeypatch: pytest.MonkeyPatch, fresh_library: None
) -> None:
    head = make_head(kind, products=products).float()
    hidden, targets, weights = (
        tensor.float() if tensor.is_floating_point() else tensor for tensor in example()
    )
    hidden = hidden.detach().requires_grad_()

    def gradients() -> list[Tensor]:
        loss = head.loss(hidden, targets, weights)
        return [loss.detach(), *torch.autograd.grad(loss, [hidden, *head.parameters()])]

    compiled = gradients()
    monkeypatch.setenv(native.SWITCH, "0")
    native.library.cache_clear()
    for ours, theirs in zip(compiled, gradients(), strict=True):
        tolerance = 1e-5 if products == "float32" else 5e-3  # shares are rounded from other last bits
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("link", "dtype"),
    [(RELU, torch.float32), (SIGMOID, torch.bfloat16), (EXP, torch.float64)],
    ids=["relu", "sigmoid", "exp in float64"],
)
def test_the_rest_goes_in_tensor_operations(link: Link, dtype: torch.dtype) -> None:
    assert isinstance(rows_for(link, torch.empty(3, V, dtype=dtype)), EagerRows)


@pytest.mark.parametrize("compiler", ["false", "/nowhere/g++", "cat -u"])
def test_a_machine_without_a_working_compiler_does_without_and_says_so(
    compiler: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    fresh_library: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert native.library() is None
    assert compiler.split()[0] in caplog.text
    assert isinstance(rows_for(EXP, torch.empty(3, V)), EagerRows)
    assert not list(tmp_path.rglob("*.so"))


@needs_compiler
def test_the_library_is_compiled_once_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fresh_library: None
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.library() is not None
    (kept,) = tmp_path.rglob("*.so")
    native.library.cache_clear()
    monkeypatch.setattr(native, "_compile", None)  # it would fail if it were called
    assert native.library() is not None
    assert list(tmp_path.rglob("*.so")) == [kept]


@needs_compiler
@pytest.mark.parametrize("home", ["a file", "none"])
def test_without_a_cache_it_is_kept_among_temporary_files(
    home: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fresh_library: None
) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if home == "none":
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", nobody)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert native.library() is not None
    (kept,) = tmp_path.rglob("*.so")
    assert kept.parent.stat().st_mode & 0o77 == 0
    native.library.cache_clear()
    monkeypatch.setattr(native, "_compile", None)  # it would fail if it were called
    assert native.library() is not None


@needs_compiler
def test_a_compiler_may_have_arguments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fresh_library: None
) -> None:
    monkeypatch.setenv("CXX", "g++ -O1" if shutil.which("g++") else "clang++ -O1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.library() is not None
    assert len(list(tmp_path.rglob("*.so"))) == 1


@needs_compiler
@pytest.mark.parametrize("kind", ["softmax", "sigsoftmax", "mos", "moss"])
def test_a_word_that_is_impossible_is_so_in_every_head(kind: str) -> None:
    head = make_head(kind).float()
    assert head.bias is not None
    with torch.no_grad():
        head.bias[3] = -torch.inf
        log_probs = head.log_probs(example()[0].float())
    assert (log_probs[:, 3] == -torch.inf).all()
    assert log_probs.isfinite().sum() == log_probs.numel() - len(log_probs)


@needs_compiler
def test_kernels_take_biases_and_priors_of_any_kind() -> None:
    """Of another precision, or with gaps in memory."""
    rows = rows_for(EXP, torch.empty(6, V))
    logits, bias, offsets = torch.randn(6, V), torch.randn(V, 2).double()[:, 0], torch.randn(3, 2).t()
    ours = rows.mixed(logits.clone(), bias, None, offsets)
    theirs = EagerRows(EXP, torch.empty(6, V)).mixed(logits.clone(), bias.float(), None, offsets)
    torch.testing.assert_close(ours, theirs)
