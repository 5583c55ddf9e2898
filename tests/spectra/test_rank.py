"""Numerical rank in bounded memory: equal to LAPACK's, bounded, and what theory says of each head."""

import copy
import math
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lm.analysis.rank import predictions_of
from lm.disk.jsonfile import canonical_json
from lm.errors import DataError, DivergenceError, StorageError
from lm.heads.head import Head, HeadConfig
from lm.results import as_json
from lm.spectra.bidiagonal import bidiagonal_values
from lm.spectra.rank import FactorPlan, matrix_rank
from lm.spectra.run_rank import RunRank, rank_of_predictions, rank_tables
from lm.spectra.scratch import ScratchMatrix
from lm.spectra.spectrum import RankResult, effective_rank
from lm.steps import Steps
from tests.support.signals import signal_at


def in_blocks(matrix: np.ndarray, rows: int = 50) -> Iterator[np.ndarray]:
    return (matrix[start : start + rows] for start in range(0, len(matrix), rows))


def matrix_of(kind: str, tokens: int, vocab: int) -> np.ndarray:
    random = np.random.default_rng(tokens * 1000 + vocab)
    size = min(tokens, vocab)
    if kind == "random":
        return random.standard_normal((tokens, vocab))
    left = np.linalg.qr(random.standard_normal((tokens, size)))[0]
    right = np.linalg.qr(random.standard_normal((vocab, size)))[0]
    values = {
        "ill-conditioned": np.logspace(3, -15, size),
        "low rank": np.where(np.arange(size) < 3, 5.0, 0.0),
        "clustered": np.repeat([4.0, 4.0 - 1e-13, 1e-9, 0.0], -(-size // 4))[:size],
    }[kind]
    return (left * values) @ right.T


def plan_of(matrix: np.ndarray, memory: int, dense: int = 0) -> FactorPlan:
    return FactorPlan(max(matrix.shape), min(matrix.shape), memory, dense)


SHAPES = [(90, 40), (40, 90), (64, 64), (37, 36), (200, 7), (5, 120), (1, 9), (9, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("kind", ["random", "ill-conditioned", "low rank", "clustered"])
@pytest.mark.parametrize(("tokens", "vocab"), SHAPES)
def test_singular_values_are_those_of_lapack(kind: str, tokens: int, vocab: int) -> None:
    matrix = matrix_of(kind, tokens, vocab)
    expected = np.linalg.svd(matrix, compute_uv=False)
    size = min(matrix.shape)
    for memory, dense in ((8 * 5 * 11 * size, 0), (8 * 16 * 6 * size, 0), (1 << 20, 1024)):
        plan = plan_of(matrix, memory, dense)
        result = matrix_rank(in_blocks(matrix, 13), tokens, vocab, plan=plan)
        assert result.singular_values.shape == expected.shape
        assert (np.diff(result.singular_values) <= 0).all()
        assert np.abs(result.singular_values - expected).max() <= 1e-14 * expected[0]


def test_the_gram_matrix_would_not_do() -> None:
    matrix = matrix_of("ill-conditioned", 90, 40)
    result = matrix_rank(in_blocks(matrix), 90, 40, plan=plan_of(matrix, 1 << 18))
    exact = np.linalg.svd(matrix, compute_uv=False)
    gram = np.sqrt(np.abs(np.linalg.eigvalsh(matrix.T @ matrix)[::-1]))
    assert np.abs(gram - exact).max() > 1e-10 * exact[0]
    assert result.rank == RankResult(exact, (90, 40)).rank < RankResult(gram, (90, 40)).rank


def test_the_cut_into_blocks_is_immaterial() -> None:
    matrix = matrix_of("random", 70, 30)
    plan = plan_of(matrix, 1 << 17)
    whole = matrix_rank(iter([matrix]), 70, 30, plan=plan).singular_values
    ragged = [torch.from_numpy(matrix[:1]), matrix[1:1], matrix[1:66], matrix[66:]]
    assert np.array_equal(whole, matrix_rank(iter(ragged), 70, 30, plan=plan).singular_values)


SQUARE = [(600, 600), (600, 620), (620, 600), (1200, 600)]  # the triangle is larger than the quarter


@pytest.mark.parametrize(
    ("tokens", "vocab"),
    [(1600, 100), (100, 1600), *(pytest.param(*shape, marks=pytest.mark.slow) for shape in SQUARE)],
)
def test_memory_stays_within_a_quarter_of_the_matrix(tokens: int, vocab: int, tmp_path: Path) -> None:
    quarter = tokens * vocab * 8 // 4
    random = np.random.default_rng(1)
    blocks = (random.standard_normal((2, vocab)) for _ in range(tokens // 2))
    plan = FactorPlan.of(tokens, vocab, memory=quarter)
    matrix_rank(in_blocks(np.ones((4, 3))), 4, 3)  # imports and caches are no part of the bound
    tracemalloc.start()
    try:
        matrix_rank(blocks, tokens, vocab, scratch=tmp_path, plan=plan)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < quarter
    assert not list(tmp_path.iterdir())


def test_by_default_the_memory_is_a_quarter_of_the_matrix() -> None:
    assert FactorPlan.of(82_430, 10_000).memory == 82_430 * 10_000 * 2
    assert FactorPlan.of(10, 10).memory == 32 << 20
    assert not FactorPlan.of(82_430, 10_000).is_dense
    assert FactorPlan.of(82_430, 500).is_dense
    for tokens, vocab in ((10_000, 10_000), (20_000, 10_000), (3_000, 33_278), (245_570, 33_278)):
        plan = FactorPlan.of(tokens, vocab)
        size = min(tokens, vocab)
        assert plan.width >= 32
        assert 13 * plan.width * size * 8 <= plan.memory, "the band reduction"
        assert (2 * plan.rows + 2 * plan.width) * size * 8 <= plan.memory, "the merge"


def head_of(kind: str, bias: bool, size: int = 6, vocab: int = 60) -> Head:
    mixture = kind in ("moc", "mos", "moss")
    config = HeadConfig(
        kind=kind,
        components=4 if mixture else 1,
        embedding_size=size if mixture else None,
        output_bias=bias,
        tied=False,
    )
    head = Head(config, size, vocab).double().eval()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(std=1.0)
    return head


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tokens", [40, 60, 150])
@pytest.mark.parametrize("kind", ["softmax", "moc", "sigsoftmax", "mos", "moss"])
def test_rank_is_what_theory_says_of_each_head(kind: str, tokens: int, bias: bool) -> None:
    """Softmax and MoC cannot exceed E + 1 (normaliser) + 1 (bias) and reach it; the others pass it."""
    head = head_of(kind, bias)
    with torch.no_grad():
        matrix = head.log_probs(torch.randn(tokens, 6, dtype=torch.float64))
    for dense in (0, 1024):
        result = matrix_rank(
            in_blocks(matrix.numpy()), tokens, 60, plan=plan_of(matrix.numpy(), 1 << 18, dense)
        )
        if kind in ("softmax", "moc"):
            assert result.rank == 6 + 1 + bias
        else:
            assert result.rank > 6 + 2
            assert result.rank >= (8 if kind == "sigsoftmax" else 30)


def test_rounding_to_float32_is_seen_by_the_float64_threshold_and_not_by_its_own() -> None:
    head = head_of("softmax", bias=True)
    with torch.no_grad():
        matrix = head.log_probs(torch.randn(150, 6, dtype=torch.float64)).float().double().numpy()
    result = matrix_rank(in_blocks(matrix), 150, 60)
    assert result.rank == 60
    assert result.ranks["roundoff_float32"] == 8


def test_thresholds_are_the_published_formulas() -> None:
    result = RankResult(np.array([8.0, 1e-5, 1e-14]), (5, 3))
    assert result.thresholds == {
        "roundoff_float64": 0.5 * 3 * 8.0 * 2.0**-52,
        "roundoff_float32": 0.5 * 3 * 8.0 * 2.0**-23,
        "numpy_float64": 5 * 8.0 * 2.0**-52,
        "numpy_float32": 5 * 8.0 * 2.0**-23,
    }
    assert result.ranks == {
        "roundoff_float64": 3,
        "roundoff_float32": 2,
        "numpy_float64": 3,
        "numpy_float32": 2,
    }
    assert result.dtype == "float64"


def test_bisection_holds_for_degenerate_bidiagonal_matrices() -> None:
    def values(diagonal: list[float], above: list[float]) -> list[float]:
        return bidiagonal_values(np.array(diagonal), np.array(above), Steps(1)).tolist()

    assert values([0.0, 0.0], [0.0]) == [0.0, 0.0]
    assert values([-3.0], []) == pytest.approx([3.0], rel=1e-15)
    assert values([0.0, 0.0, 0.0], [2.0, 0.0]) == pytest.approx([2.0, 0.0, 0.0], abs=1e-15)
    assert values([1e-200, 1.0], [0.0]) == pytest.approx([1.0, 0.0], abs=1e-16)
    assert values([3e-200, 0.0], [4e-200]) == pytest.approx([5e-200, 0.0], rel=1e-15, abs=1e-215)
    assert values([3e120, 0.0], [4e120]) == pytest.approx([5e120, 0.0], rel=1e-15, abs=1e105)


def test_progress_ends_at_the_total_and_a_signal_can_interrupt_every_stage() -> None:
    matrix = matrix_of("random", 150, 120)
    told: list[tuple[int, int]] = []
    plan = plan_of(matrix, 1 << 17)
    with signal_at() as calls:
        matrix_rank(in_blocks(matrix), 150, 120, lambda *pair: told.append(pair), plan=plan)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert {total for _, total in told} == {plan.work}
    assert 0.9 <= told[-1][0] / plan.work <= 1

    for call in range(1, calls[0], max(1, calls[0] // 10)):
        with pytest.raises(KeyboardInterrupt), signal_at(call):
            matrix_rank(in_blocks(matrix), 150, 120, plan=plan)


def test_bad_matrices_are_refused(tmp_path: Path) -> None:
    matrix = np.zeros((4, 3))
    with pytest.raises(DataError, match="longer text"):
        matrix_rank(iter([]), 0, 3)
    infinite = matrix.copy()
    infinite[2, 1] = -np.inf
    with pytest.raises(DivergenceError, match=r"^log-probabilities of token 3 are not finite"):
        matrix_rank(in_blocks(infinite, 2), 4, 3, what="log-probabilities of token")
    for blocks in ([matrix.astype(np.float32)], [matrix[:, :2]], [matrix[0]], [matrix[:3]]):
        with pytest.raises(ValueError, match=r"blocks must be|got \d+ rows"):
            matrix_rank(iter(blocks), 4, 3)
    with pytest.raises(StorageError):
        matrix_rank(in_blocks(matrix), 4, 3, scratch=tmp_path / "missing" / "\0")
    assert matrix_rank(in_blocks(matrix), 4, 3).rank == 0


def test_effective_rank_counts_equal_values() -> None:
    assert effective_rank(np.array([3.0, 3.0, 3.0, 0.0])) == pytest.approx(3)
    assert effective_rank(np.array([1.0, 0.0])) == 1
    assert effective_rank(np.zeros(3)) == 0
    p = np.array([0.7, 0.3])
    assert effective_rank(5 * p) == pytest.approx(math.exp(-float((p * np.log(p)).sum())))


def test_a_scratch_matrix_keeps_what_is_written(tmp_path: Path) -> None:
    expected, random = np.zeros((7, 5)), np.random.default_rng(0)
    with ScratchMatrix(7, 5, tmp_path) as matrix:
        for _ in range(30):
            top, left = random.integers(7), random.integers(5)
            rows, columns = slice(top, random.integers(top, 8)), slice(left, random.integers(left, 6))
            values = random.standard_normal((rows.stop - rows.start, columns.stop - columns.start))
            matrix.write(rows, columns, values)
            expected[rows, columns] = values
            assert np.array_equal(matrix.read(rows, columns), values)
            assert np.array_equal(matrix.read(slice(None), slice(left, None)), expected[:, left:])
        with pytest.raises(ValueError, match="values of shape"):
            matrix.write(slice(0, 2), slice(0, 2), np.zeros((2, 3)))
    with pytest.raises(StorageError, match="B, but only"):
        ScratchMatrix(1 << 25, 1 << 25, tmp_path)


class StandIn:
    """As much of a trained model as ranks ask for: a head on fixed hidden states."""

    def __init__(self, head: Head) -> None:
        self.model = SimpleNamespace(head=head, named_parameters=head.named_parameters)
        self.calls = 0
        self.codec = SimpleNamespace(vocabulary=range(head.vocab_size))
        self.states = torch.randn(500, head.hidden_size)

    def log_probs(self, ids: np.ndarray, rows: int = 256) -> Iterator[torch.Tensor]:
        self.calls += 1
        head = copy.deepcopy(self.model.head).double()
        for start in range(0, len(ids), rows):
            yield head.log_probs(self.states[start : min(start + rows, len(ids))].double()).detach()


@pytest.mark.parametrize(("kind", "ceiling"), [("softmax", 7), ("mos", None)])
def test_the_rank_of_a_run_is_reported_with_its_ceiling(
    kind: str, ceiling: int | None, tmp_path: Path
) -> None:
    run, path = StandIn(head_of(kind, bias=False)), tmp_path / "spectrum.npz"
    result = rank_of_predictions(predictions_of(run, np.arange(200)), spectrum=path, scratch=tmp_path)
    assert (result.tokens, result.vocabulary, result.dtype) == (200, 60, "float64")
    assert result.ceiling == ceiling
    assert (result.rank == 7) if ceiling else (result.rank > 30)
    loaded = RankResult.load(path)
    assert vars(result) == vars(result) | {
        name: getattr(loaded, name)
        for name in ("rank", "ranks", "thresholds", "dtype", "weights_sha256", "ids_sha256")
    }
    extremes = [result.largest_singular_value, result.smallest_singular_value]
    assert loaded.singular_values[[0, -1]].tolist() == extremes
    canonical_json(as_json(result))
    assert len(rank_tables({"a": result, "b": result})[0].rows) == 2


@pytest.mark.parametrize(("kind", "ceiling"), [("mos", 7), ("mixtape", 7), ("moss", None)])
def test_one_component_has_the_ceiling_of_a_softmax(kind: str, ceiling: int | None, tmp_path: Path) -> None:
    config = HeadConfig(kind=kind, embedding_size=6, tied=False, output_bias=False, context_scale=4.0)
    run = StandIn(Head(config, 6, 60).double().eval())
    result = rank_of_predictions(predictions_of(run, np.arange(200)), scratch=tmp_path)
    assert result.ceiling == ceiling
    assert (result.rank == 7) == (ceiling == 7)


@pytest.mark.parametrize(
    ("kind", "activation", "bias", "rank"),
    [
        ("softmax", "tanh", False, 7),
        ("softmax", "tanh", True, 8),
        ("mos", "none", True, 8),
        ("mos", "tanh", True, 11),
    ],
)
def test_a_head_that_is_wider_than_its_states_has_the_ceiling_of_the_states(
    kind: str, activation: str, bias: bool, rank: int, tmp_path: Path
) -> None:
    """Unless a function bends its contexts."""
    config = HeadConfig(
        kind=kind, embedding_size=9, tied=False, output_bias=bias, context_activation=activation
    )
    head = Head(config, 6, 60).double().eval()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    result = rank_of_predictions(predictions_of(StandIn(head), np.arange(200)), scratch=tmp_path)
    assert result.rank == result.ceiling == rank


def test_a_spectrum_is_measured_once_for_its_weights_and_tokens(tmp_path: Path) -> None:
    run, path = StandIn(head_of("mos", bias=False)), tmp_path / "rank-test.first-80.npz"
    ids, others = np.arange(80), np.arange(80)[::-1]

    def measure(ids: np.ndarray) -> RunRank:
        return rank_of_predictions(predictions_of(run, ids), spectrum=path, scratch=tmp_path)

    first = measure(ids)
    assert (first.spectrum, first.kept_from_before, run.calls) == (str(path), False, 1)
    before = path.read_bytes()
    assert measure(ids) == replace(first, kept_from_before=True)
    assert measure(ids.astype(np.int32)) == replace(first, kept_from_before=True), (
        "the same ids, stored wider"
    )
    assert run.calls == 1
    beside = measure(others)
    assert beside.spectrum == str(tmp_path / f"rank-test.first-80.{beside.ids_sha256[:6]}.npz")
    assert not beside.kept_from_before
    assert measure(others).kept_from_before
    assert measure(ids).kept_from_before
    assert (path.read_bytes(), run.calls) == (before, 2)
    with torch.no_grad():
        next(iter(run.model.head.parameters())).mul_(1.5)
    again = measure(ids)
    assert (again.spectrum, again.kept_from_before, run.calls) == (str(path), False, 3)
    assert again.weights_sha256 != first.weights_sha256
    path.write_bytes(before[:100])
    assert measure(ids) == again
    assert run.calls == 4
    footer = rank_tables({"a": again, "b": replace(again, kept_from_before=True)})[-1]
    assert footer == "reused results: b"


def test_a_stored_spectrum_takes_the_fingerprint_of_its_checkpoint_without_a_new_measurement(
    tmp_path: Path,
) -> None:
    run, path, ids = StandIn(head_of("mos", bias=False)), tmp_path / "rank-test.npz", np.arange(80)
    first = rank_of_predictions(predictions_of(run, ids), spectrum=path)  # as in a file of an older version
    values = RankResult.load(path).singular_values
    for checkpoint, fingerprint in (("best", "a"), ("best", "b"), ("last", "b")):
        again = rank_of_predictions(
            predictions_of(run, ids), spectrum=path, checkpoint=checkpoint, fingerprint=fingerprint
        )
        assert again == replace(first, kept_from_before=True)
        stored = RankResult.load(path)
        assert (stored.checkpoint, stored.fingerprint) == (checkpoint, fingerprint)
        assert (stored.weights_sha256, stored.ids_sha256) == (first.weights_sha256, first.ids_sha256)
        assert np.array_equal(stored.singular_values, values)
    assert run.calls == 1
