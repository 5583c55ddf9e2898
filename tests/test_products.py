"""Compiled products against tensor operations."""

import pytest
import torch
from torch import Tensor

from lm.kernels.products import FEW_PRODUCTS, CompiledProducts, EagerProducts, products_with

compiled = isinstance(products_with(torch.zeros(2, 2), FEW_PRODUCTS + 1), CompiledProducts)
needs_compiler = pytest.mark.skipif(not compiled, reason="no C++ compiler")


def both(matrix: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """What the compiled path writes, and then adds to."""
    products = products_with(matrix, FEW_PRODUCTS + 1)
    written = products.write(rows, torch.full((len(rows), len(matrix)), torch.nan))
    added = written.clone()
    products.add(rows, added)
    return written, added


@needs_compiler
@pytest.mark.parametrize("count", [1, 3, 4, 11, 12, 13, 29])
@pytest.mark.parametrize(("columns", "inner"), [(1, 1), (31, 7), (32, 64), (33, 5), (100, 130)])
@pytest.mark.parametrize("transposed", [False, True])
def test_compiled_products_are_products(count: int, columns: int, inner: int, transposed: bool) -> None:
    matrix = torch.randn(inner, columns).t() if transposed else torch.randn(columns, inner)
    rows = torch.randn(count, inner)
    written, added = both(matrix, rows)
    wanted = (rows.double() @ matrix.double().t()).float()
    torch.testing.assert_close(written, wanted, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(added, 2 * wanted, atol=2e-4, rtol=1e-5)


@needs_compiler
def test_a_row_depends_neither_on_the_others_nor_on_the_threads() -> None:
    matrix, rows = torch.randn(500, 300), torch.randn(17, 300)
    whole, _ = both(matrix, rows)
    alone = torch.cat([both(matrix, row[None])[0] for row in rows])
    assert torch.equal(whole, alone)
    torch.set_num_threads(2)
    assert torch.equal(whole, both(matrix, rows)[0])


@needs_compiler
def test_a_nan_reaches_its_row_and_no_other() -> None:
    rows = torch.randn(13, 40)
    rows[5, 7] = torch.nan
    written, _ = both(torch.randn(33, 40), rows)
    assert written.isnan().any(1).tolist() == [row == 5 for row in range(13)]


@needs_compiler
def test_memory_that_does_not_fit_is_refused() -> None:
    products = products_with(torch.randn(8, 6), FEW_PRODUCTS + 1)
    with pytest.raises(ValueError, match="into"):
        products.write(torch.randn(2, 6), torch.empty(2, 7))
    with pytest.raises(ValueError, match="float32"):
        products.write(torch.randn(2, 6).double(), torch.empty(2, 8))
    with pytest.raises(ValueError, match="side by side"):
        products.add(torch.randn(6, 2).t(), torch.empty(2, 8))


def test_a_few_products_and_other_precisions_go_in_tensor_operations() -> None:
    assert isinstance(products_with(torch.zeros(2, 2), FEW_PRODUCTS), EagerProducts)
    assert isinstance(products_with(torch.zeros(2, 2).double(), FEW_PRODUCTS + 1), EagerProducts)
