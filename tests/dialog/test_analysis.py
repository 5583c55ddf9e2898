"""The rank of a dialog model's predictions: that of their whole matrix, and kept with the run."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dialog.analysis import predictions_of, rank_of_run
from dialog.config import DialogConfig
from dialog.evaluate import load_test_set
from dialog.task import build_model
from dialog.trained import TrainedModel
from lm.config.load import Resolved, save_config
from lm.errors import DataError
from lm.runs.checkpoint import CheckpointStore
from lm.text.vocabulary import Codec
from tests.support.evaluable_run import conversations, evaluable_run, write_dialogs

HEADS = [
    {"kind": "softmax", "embedding_size": 4, "tied": False},
    {"kind": "mos", "components": 3, "embedding_size": 4, "tied": False, "products": "bfloat16"},
    {
        **{"kind": "cpr", "components": 2, "embedding_size": 4, "tied": False, "candidates": [5]},
        "source": "pointer",
    },
]


@pytest.fixture
def run(in_tmp: Path) -> Path:
    """A run whose test split takes several batches."""
    folder = evaluable_run(in_tmp)
    write_dialogs(in_tmp / "test.jsonl", conversations(2, 60))
    return folder


def with_head(run: Path, head: dict[str, object]) -> TrainedModel:
    """The run with a random model of another head."""
    saved = json.loads((run / "config.json").read_text())["config"]
    config = DialogConfig.model_validate(saved | {"head": head}, strict=False)
    save_config(Resolved(config, {}), run / "config.json")
    model = build_model(config, Codec.load(run))
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter)
    CheckpointStore.of(run).commit(2, {"model": model.state_dict()}, {}, {})
    return TrainedModel.load(run)


@pytest.mark.parametrize("head", HEADS, ids=lambda head: str(head["kind"]))
@pytest.mark.parametrize("limit", [None, 5, 6, 290])
def test_the_rank_is_that_of_the_predictions_of_every_token(
    run: Path, head: dict[str, object], limit: int | None
) -> None:
    trained = with_head(run, head)
    test = load_test_set(None, None, limit, trained.config.data)
    predictions = predictions_of(trained, test)
    matrix = torch.cat([*predictions.blocks(3)]).numpy()
    scores = trained.nll(test.dialogs)[: len(test.examples)]
    assert matrix.shape == (predictions.rows, predictions.words)
    assert predictions.rows == sum(score.tokens for score in scores)
    np.testing.assert_allclose(np.exp(matrix).sum(1), 1, rtol=1e-12)
    measured = rank_of_run(run, limit=limit).found
    values = np.linalg.svd(matrix, compute_uv=False)
    threshold = 0.5 * np.sqrt(sum(matrix.shape) + 1) * values[0] * np.finfo(float).eps
    assert measured.rank == int((values > threshold).sum())
    assert measured.ceiling == (6 if head["kind"] == "softmax" else None)
    assert (measured.rank == 6) == (head["kind"] == "softmax")
    assert (measured.tokens, measured.vocabulary) == matrix.shape


def test_the_likelihood_of_true_responses_is_in_the_matrix(run: Path) -> None:
    trained = with_head(run, HEADS[1])
    test = load_test_set(None, None, None, trained.config.data)
    matrix = torch.cat([*predictions_of(trained, test).blocks(50)])
    targets = torch.cat([targets for _, targets in trained.readings(test.dialogs)])
    nll = -matrix.gather(1, targets[:, None]).sum()
    assert float(nll) == pytest.approx(sum(score.nll for score in trained.nll(test.dialogs)), rel=1e-5)


def test_singular_values_are_kept_until_weights_or_text_change(
    run: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    from dialog.cli import main

    with_head(run, HEADS[0])
    words = ["analyze", "rank", str(run), "--json", "found.json"]
    assert ending(main, *words)[0] == 0
    first = json.loads(Path("found.json").read_text())["runs"][str(run)]
    assert first["rank"] == first["ceiling"] == 6
    assert not first["kept_from_before"]
    assert Path(first["spectrum"]).is_file()
    assert (run / "analysis/rank.svg").is_file()
    assert "reused results" in ending(main, *words)[1]
    assert not rank_of_run(run, limit=5).found.kept_from_before
    assert not rank_of_run(run, checkpoint="last").found.kept_from_before
    with_head(run, HEADS[0])
    assert not rank_of_run(run).found.kept_from_before


def test_a_result_does_not_overwrite_a_corpus(run: Path, ending: Callable[..., tuple[int, str, str]]) -> None:
    from dialog.cli import main

    before = Path("test.jsonl").read_bytes()
    code, _, error = ending(main, "analyze", "rank", str(run), "--json", "test.jsonl")
    assert (code, error.count("\n")) == (2, 1)
    assert Path("test.jsonl").read_bytes() == before


def test_a_corpus_of_unknown_words_is_refused(run: Path) -> None:
    with_head(run, HEADS[0])
    text = [{"speaker": "AB"[turn % 2], "text": "zq zw zx"} for turn in range(6)]
    Path("foreign.jsonl").write_text(json.dumps({"id": "1", "utterances": text}) + "\n")
    with pytest.raises(DataError, match=r"foreign\.jsonl: 100% of its tokens are unknown"):
        rank_of_run(run, "foreign.jsonl")


def test_a_diverged_model_is_named(run: Path) -> None:
    trained = with_head(run, HEADS[0])
    state = {name: tensor * float("nan") for name, tensor in trained.model.state_dict().items()}
    CheckpointStore.of(run).commit(3, {"model": state}, {}, {})
    with pytest.raises(DataError, match="run: log-probabilities of token 1 are not finite"):
        rank_of_run(run)


def test_blocks_leave_gradients_on(run: Path) -> None:
    trained = with_head(run, HEADS[0])
    blocks = predictions_of(trained, load_test_set(None, None, None, trained.config.data)).blocks(5)
    assert not next(blocks).requires_grad
    assert torch.is_grad_enabled()
