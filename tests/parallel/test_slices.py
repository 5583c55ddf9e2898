"""Work on slices gives the bits of one process, for every number of processes."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dialog.metrics.references import build_references
from lm.analysis.components import components_of_run
from lm.analysis.divergence import divergence_of_run
from lm.language.refinements import search_temperature
from lm.language.scoring import score_lines, token_nll
from lm.language.trained import TrainedLm
from lm.parallel.group import ALONE, Group
from lm.parallel.slices import joined, joined_rows, own_slice, summed
from tests.support.ranks import together
from tests.support.reference_items import ITEMS, TEST, TRAIN
from tests.support.tiny_lm import ids_of, text_of, tiny_codec, tiny_lm

SIZES = (2, 3, 5)
WORK: dict[str, Callable[[TrainedLm], object]] = {
    "nll": lambda trained: token_nll(trained, ids_of(trained, 900)).tolist(),
    "nll as in the paper": lambda trained: token_nll(trained, ids_of(trained, 900), paper=True).tolist(),
    "fewer windows than processes": lambda trained: token_nll(trained, ids_of(trained, 300)).tolist(),
    "divergence": lambda trained: divergence_of_run(trained, ids_of(trained, 900)),
    "components": lambda trained: components_of_run(trained, ids_of(trained, 900)),
}


@given(st.integers(0, 200), st.integers(1, 9))
def test_slices_are_joined_in_order(count: int, size: int) -> None:
    def work(group: Group) -> object:
        numbers = joined(group, count, lambda part: part)
        rows = joined_rows(group, count, lambda part: torch.tensor([*part], dtype=torch.int64))
        return numbers, rows.tolist(), len(own_slice(group, count))

    results = together(size, work)
    lengths = [own for _, _, own in results]  # type: ignore[misc]
    assert [result[:2] for result in results] == [([*range(count)], [*range(count)])] * size  # type: ignore[index]
    assert sum(lengths) == count
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(0, 200), st.integers(1, 9))
def test_sums_have_the_same_bits_for_every_number_of_processes(count: int, size: int) -> None:
    values = torch.rand(count, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(count))

    def total(blocks: Iterator[Tensor]) -> tuple[Tensor, Tensor]:
        whole = sum(blocks, torch.zeros(2, 3, dtype=torch.float64))
        return whole, whole.sum()

    def work(group: Group) -> object:
        shapes = ((2, 3), ())
        sums = summed(group, count, lambda part: iter(values[part.start : part.stop]), total, shapes)
        assert [tuple(tensor.shape) for tensor in sums] == [*shapes]
        return [tensor.tolist() for tensor in sums]

    alone = work(ALONE)
    assert together(size, work) == [alone] * size
    assert alone[1] == pytest.approx(math.fsum(values.flatten().tolist()))  # type: ignore[index]


@pytest.mark.parametrize("kind", WORK)
@pytest.mark.parametrize("head", ["moc", "mos"])
def test_measures_of_a_text_have_the_bits_of_one_process(kind: str, head: str) -> None:
    trained = tiny_lm(kind=head, components=3, tied=False, dtype=torch.float32)
    alone = WORK[kind](trained)
    for size in SIZES:
        assert together(size, lambda group: WORK[kind](replace(trained, group=group))) == [alone] * size


def test_a_temperature_is_chosen_with_the_bits_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("valid.txt").write_text(text_of(200, 1))
    trained = tiny_lm()
    alone = search_temperature(trained)
    assert together(3, lambda group: search_temperature(replace(trained, group=group))) == [alone] * 3


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("tokens", ["whitespace", "byte"])
def test_lines_are_scored_with_the_bits_of_one_process(
    tokens: str, independent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that come in pieces, as long ones of bytes do, carry their state from piece to piece."""
    monkeypatch.setattr("lm.language.scoring.TOKENS_TOGETHER", 40)
    monkeypatch.setattr("lm.text.parts.BYTES_AT_ONCE", 64)
    path = tmp_path / "text.txt"
    path.write_text(text_of(60, 4) + ("" if tokens == "whitespace" else "ab c" * 99))
    trained = tiny_lm(codec=tiny_codec(tokens))

    def rows(group: Group) -> object:
        return [*score_lines(replace(trained, group=group), path, independent=independent)]

    alone = rows(ALONE)
    for size in SIZES:
        assert together(size, rows) == [alone] * size


def test_references_are_those_of_one_process() -> None:
    for size in SIZES:
        assert together(size, lambda group: build_references(TRAIN, TEST, 5, group)) == [ITEMS] * size


def test_scores_do_not_depend_on_the_text_after_them() -> None:
    trained = tiny_lm()
    ids = ids_of(trained, 900)
    np.testing.assert_array_equal(token_nll(trained, ids)[:512], token_nll(trained, ids[:512]))
