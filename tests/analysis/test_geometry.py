"""Anisotropy and the matrix of histories by futures: equal to their definitions."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lm.analysis.examples import Wanted, find_examples
from lm.analysis.geometry import (
    ENERGY,
    HISTORY,
    ExtendedMatrix,
    anisotropy,
    geometry_of_run,
    histories_of_run,
)
from lm.cli import main
from lm.errors import DataError, DivergenceError
from lm.language.model import LanguageModel
from lm.spectra.spectrum import RankResult, effective_rank
from tests.support.tiny_lm import ids_of, tiny_lm, write_run


def test_anisotropy_is_the_mean_cosine_of_pairs() -> None:
    rows = torch.randn(9, 4, dtype=torch.float64) + 1
    cosines = [
        float(torch.cosine_similarity(rows[i], rows[j], 0)) for i in range(9) for j in range(9) if i != j
    ]
    assert anisotropy(rows) == pytest.approx(sum(cosines) / 72)
    assert anisotropy(torch.ones(5, 3, dtype=torch.float64)) == pytest.approx(1)
    assert anisotropy(torch.eye(6, dtype=torch.float64)) == pytest.approx(0)


def test_states_contexts_and_output_have_their_own_geometry() -> None:
    trained = tiny_lm(kind="mos", components=3, embedding_size=6, latent_dropout=0.0)
    found = geometry_of_run(trained, ids_of(trained, 50))
    for spread in (found.states, found.contexts, found.output):
        assert spread.size == 6
        assert 1 <= spread.effective_rank <= 6
        assert spread.entropy == pytest.approx(math.log(spread.effective_rank))
    output = trained.model.head.weight.detach()
    assert found.output.anisotropy == pytest.approx(anisotropy(output))
    with pytest.raises(DataError, match="a pair of states takes two tokens"):
        geometry_of_run(trained, ids_of(trained, 1))


def test_the_matrix_has_the_logits_after_history_and_future() -> None:
    trained = tiny_lm()
    ids = ids_of(trained, 200)
    matrix = ExtendedMatrix.of(trained, ids, 3, 5)
    blocks = list(matrix.blocks())
    assert len(blocks) == 6
    assert sorted({len(future) for future in matrix.futures}) == [1, 2, 3, 4]
    model = trained.model
    for column in range(3):
        for future, block in zip((torch.empty(0, dtype=torch.long), *matrix.futures), blocks, strict=True):
            tokens = torch.cat((matrix.histories[:, column], future))[:, None]
            with torch.no_grad():
                hidden = model(tokens, model.initial_state(1)).hidden.last[-1]
                log_probs = model.head.log_probs(hidden)[0]
            torch.testing.assert_close(block[:, column], log_probs - log_probs.mean())


def test_a_softmax_bounds_the_rank_of_one_future_only() -> None:
    """The centred matrix of the empty future has rank E, or E + 1 with an output bias."""
    trained = tiny_lm(tied=False, embedding_size=2)
    found = histories_of_run(trained, ids_of(trained, 400), 20, 6)
    ranks = {row.futures: row for row in found.matrices}
    assert list(ranks) == [0, 1, 4, 6]
    assert ranks[0].rank == 3
    assert ranks[6].rank > 3
    for row in ranks.values():
        assert 1 <= row.effective_rank <= row.rank
        assert 1 <= row.energy_rank <= row.rank
    with pytest.raises(DataError, match="too few"):
        ExtendedMatrix.of(trained, ids_of(trained, 2 * HISTORY), 20, 6)


def test_one_pass_over_the_futures_measures_every_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = tiny_lm()
    ids = ids_of(trained, 400)
    blocks = [block.numpy() for block in ExtendedMatrix.of(trained, ids, 20, 6).blocks()]
    calls = []
    forward = LanguageModel.forward
    monkeypatch.setattr(LanguageModel, "forward", lambda *read: calls.append(read) or forward(*read))
    found = histories_of_run(trained, ids, 20, 6)
    assert len(calls) == 1 + 6
    for row in found.matrices:
        matrix = np.concatenate(blocks[: row.futures + 1])
        values = np.linalg.svd(matrix, compute_uv=False)
        assert row.rank == RankResult(values, matrix.shape).rank
        assert row.effective_rank == pytest.approx(effective_rank(values))
        kept = (values[: row.energy_rank] ** 2).sum(), (values[: row.energy_rank - 1] ** 2).sum()
        assert kept[0] >= ENERGY * (values**2).sum() > kept[1]


def test_an_error_names_the_future_that_is_not_finite() -> None:
    trained = tiny_lm()
    matrix = ExtendedMatrix.of(trained, ids_of(trained, 400), 20, 2)
    torch.nn.init.constant_(trained.model.head.weight, math.nan)
    with pytest.raises(DivergenceError, match="after future 0 are not finite"):
        matrix.measured([0, 2])


def test_vectors_that_are_not_finite_are_refused() -> None:
    trained = tiny_lm()
    torch.nn.init.constant_(trained.model.head.weight, math.nan)
    with pytest.raises(DivergenceError, match="not finite"):
        geometry_of_run(trained, ids_of(trained, 40))
    rows = [torch.full((3, 5), math.nan)]
    with pytest.raises(DivergenceError, match="not finite"):
        find_examples(iter(rows), iter(rows), np.arange(3), "abcde", Wanted())


def test_the_commands_measure_runs(
    ending: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    for command in (("geometry",), ("histories", "--histories", "9", "--futures", "2")):
        code, _, err = ending(main, "analyze", *command, "--json", "g.json", "a", "--over-training")
        assert (code, err) == (0, "")
        assert np.size(json.loads(Path("g.json").read_text())["runs"]["a step-3"])
