"""What rows of logits come to, block after block, against the formula in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lm.heads import rows as rows_module
from lm.heads.links import EXP, RELU, SIGMOID, SIGSOFTMAX, Link
from lm.heads.rows import Rows
from tests.support.plain_heads import example, make_head

LINKS = pytest.mark.parametrize(
    "link", [EXP, SIGSOFTMAX, SIGMOID, RELU], ids=lambda link: type(link).__name__
)
SMOOTH = pytest.mark.parametrize("link", [EXP, SIGSOFTMAX], ids=["exp", "sigsoftmax"])
MAGNITUDES = pytest.mark.parametrize(
    ("magnitude", "offset"), [(1, 0), (30, 0), (30, 300), (30, -300), (300, 0)]
)
FEW = 7000  # bytes of a cache that holds one row of 1,000 words, and all of 17


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "cache_bytes", lambda: FEW)


def logits(columns: int, magnitude: float, offset: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    values = torch.randn(9, columns) * magnitude + offset
    return values.to(dtype), torch.randn(columns) * magnitude


def log_probs(
    rows: Rows, logits: Tensor, bias: Tensor | None, shift: Tensor | None, log_prior: Tensor
) -> Tensor:
    found = torch.full((len(log_prior), logits.shape[1]), torch.nan)
    rows.log_probs(logits, bias, shift, log_prior, out=found)
    return found


@SMOOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [1, 17, 1000])
@MAGNITUDES
def test_shares_are_the_formula(
    link: Link, dtype: torch.dtype, columns: int, magnitude: float, offset: float
) -> None:
    values, bias = logits(columns, magnitude, offset, dtype)
    shift = torch.tensor(0.3) if link is SIGSOFTMAX else None
    rows = Rows(link, values)
    exact = values.double() + bias
    wide, words = None if shift is None else shift.double(), torch.arange(9) % columns
    log_g = link.log(exact, wide).scatter(1, words[:, None], -torch.inf)

    top, total = rows.shares_(values, words, bias, shift)
    if columns == 1:  # no other word
        assert (top < -1e37).all()
        assert total.isfinite().all()
        return
    error = 4e-7 * (1 + exact.abs().max().item())  # a logit is rounded to float32 once the bias is on it
    largest = log_g.amax(1, keepdim=True)
    assert (top >= largest - error).all()
    assert (top <= largest + 0.7 + error).all()
    shares = (log_g - top.double()).exp()
    torch.testing.assert_close(total.double(), shares.sum(1, keepdim=True), rtol=2 * error, atol=0)
    rounding = 2**-8 if dtype == torch.bfloat16 else 0
    torch.testing.assert_close(
        values.double(), shares * link.slope(exact, wide), rtol=rounding + 3 * error, atol=1e-30
    )
    factors = torch.rand(9, 1)
    sums = rows.column_sums(values, factors)
    torch.testing.assert_close(sums.double(), (values.double() * factors).sum(0), rtol=1e-5, atol=1e-30)


@SMOOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("components", [1, 3, 9])
@pytest.mark.parametrize("columns", [1, 17, 1000])
@MAGNITUDES
def test_mixtures_are_the_formula(
    link: Link, dtype: torch.dtype, components: int, columns: int, magnitude: float, offset: float
) -> None:
    values, bias = logits(columns, magnitude, offset, dtype)
    shift = torch.tensor(0.3) if link is SIGSOFTMAX else None
    log_prior = torch.randn(9 // components, components).log_softmax(1)
    kept, rows = values.clone(), Rows(link, values)
    exact = values.double() + bias
    log_g = link.log(exact, None if shift is None else shift.double())
    error = 6e-7 * (1 + 2 * exact.abs().max().item())
    totals = rows.log_totals(values, bias, shift)
    torch.testing.assert_close(totals.double(), log_g.logsumexp(1, keepdim=True), rtol=0, atol=error)
    parts = log_g.log_softmax(1).unflatten(0, log_prior.shape)
    expected = (parts + log_prior[..., None].double()).logsumexp(1)
    mixed = log_probs(rows, values, bias, shift, log_prior)
    torch.testing.assert_close(mixed.double(), expected, rtol=0, atol=error)
    assert torch.equal(values, kept)


def test_an_improbable_word_changes_no_other_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "cache_bytes", lambda: 1000 * FEW)  # all tokens in one block
    values, bias = logits(1000, 3, 0, torch.float32)
    log_prior = torch.randn(3, 3).log_softmax(1)
    before = log_probs(Rows(EXP, values), values, bias, None, log_prior)
    values[3:6, 7] = -200.0  # a word of the second token, in all of its components
    after = log_probs(Rows(EXP, values), values, bias, None, log_prior)
    assert after[1, 7] < -150
    assert torch.equal(after[[0, 2]], before[[0, 2]])


@LINKS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_blocks_change_no_more_than_rounding(
    link: Link, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, bias = logits(1000, 3, 0, dtype)
    words, log_prior = torch.arange(9), torch.randn(3, 3).log_softmax(1)
    found = []
    for size in (FEW, 10 * FEW, 1000 * FEW):
        monkeypatch.setattr(rows_module, "cache_bytes", lambda size=size: size)
        rows, shares = Rows(link, values), values.clone()
        mixed = log_probs(rows, shares, bias, None, log_prior)
        totals = rows.log_totals(shares, bias, None)
        found.append([mixed, totals, *rows.shares_(shares, words, bias, None), shares])
    for one, two, whole in zip(*found, strict=True):  # only vectors of other lengths end a block
        rounding = 2**-8 if whole.dtype == torch.bfloat16 else 2e-6
        torch.testing.assert_close(one, whole, rtol=rounding, atol=1e-6)
        torch.testing.assert_close(two, whole, rtol=rounding, atol=1e-6)


@LINKS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("column", [0, 20, 32])
def test_a_nan_reaches_its_row_and_no_other(link: Link, dtype: torch.dtype, column: int) -> None:
    values, bias = logits(33, 1, 0, dtype)
    values[4, column] = float("nan")
    rows = Rows(link, values)
    assert rows.log_totals(values, bias, None).isnan().flatten().tolist() == [row == 4 for row in range(9)]
    mixed = log_probs(rows, values, bias, None, torch.zeros(3, 3).log_softmax(1))
    assert mixed.isnan().all(1).tolist() == mixed.isnan().any(1).tolist() == [False, True, False]
    _, total = rows.shares_(values, torch.ones(9, dtype=torch.long), bias, None)
    assert total.isnan().flatten().tolist() == [row == 4 for row in range(9)]
    assert values[4, column].isnan()


@pytest.mark.parametrize("kind", ["softmax", "sigsoftmax", "mos", "moss"])
def test_a_word_that_is_impossible_is_so_in_every_head(kind: str) -> None:
    head = make_head(kind).float()
    assert head.bias is not None
    with torch.no_grad():
        head.bias[3] = -torch.inf
        log_probs = head.log_probs(example()[0].float())
    assert (log_probs[:, 3] == -torch.inf).all()
    assert log_probs.isfinite().sum() == log_probs.numel() - len(log_probs)


class Largest(TorchDispatchMode):
    """The size of the largest tensor that is made, in numbers."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and not any(made is one for one in args):
            self.numbers = max(
                self.numbers, made.numel() * (made.storage_offset() == 0) * ("new" in func.__name__)
            )
        return made


@pytest.mark.parametrize(("dtype", "copied"), [(torch.float32, False), (torch.bfloat16, True)])
def test_shares_of_exact_logits_take_no_copy(dtype: torch.dtype, copied: bool) -> None:
    values, bias = logits(1000, 1, 0, dtype)
    with Largest() as made:
        Rows(EXP, values).shares_(values, torch.arange(9), bias, None)
    assert (made.numbers >= 1000) == copied
