"""Ranks of predictions of dialog models, kept with the run, and the gradients of their heads."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dialog.analysis import AnalysedModel, analysed_models, gradients_of_model, ranks_of_models
from dialog.config import DialogConfig
from dialog.task import build_model
from dialog.trained import TrainedModel
from lm.config.load import Resolved, save_config
from lm.errors import DataError, DivergenceError
from lm.runs.checkpoint import CheckpointStore
from lm.spectra.run_rank import RunRank
from lm.steps import no_progress
from lm.text.vocabulary import Codec
from tests.support.evaluable_run import conversations, evaluable_run, write_dialogs

HEADS = [
    {"kind": "softmax", "embedding_size": 4, "tied": False},
    {"kind": "mos", "components": 3, "embedding_size": 4, "tied": False, "products": "bfloat16"},
    {"kind": "doc", "components": 3, "lower_components": [1], "embedding_size": 4, "tied": False},
    {"kind": "mfs", "components": 2, "partitions": 3, "facet_layers": 1, "embedding_size": 4, "tied": False},
    {"kind": "cpr", "components": 2, "embedding_size": 4, "tied": False, "source": "words"},
    {
        **{"kind": "cpr", "components": 2, "embedding_size": 4, "tied": False, "candidates": [5]},
        "source": "pointer",
    },
]

TRANSFORMER = {
    "encoder": {"kind": "transformer", "context_size": 8, "layers": 2},
    "decoder": {"kind": "transformer", "hidden_size": 8, "layers": 2},
}


@pytest.fixture
def run(in_tmp: Path) -> Path:
    """A run whose test split takes several batches."""
    folder = evaluable_run(in_tmp)
    write_dialogs(in_tmp / "test.jsonl", conversations(2, 60))
    return folder


def with_head(run: Path, head: dict[str, object], *, transforms: bool = False) -> TrainedModel:
    """The run with a random model of another head, on a transformer if ``transforms``."""
    saved = json.loads((run / "config.json").read_text())["config"]
    parts = TRANSFORMER if transforms else {}
    config = DialogConfig.model_validate(saved | parts | {"head": head}, strict=False)
    save_config(Resolved(config, {}), run / "config.json")
    model = build_model(config, Codec.load(run))
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter)
    CheckpointStore.of(run).commit(2, {"model": model.state_dict()}, {}, {})
    return TrainedModel.load(run)


def one(run: Path, limit: int | None = None, checkpoint: str = "best") -> AnalysedModel:
    """The model of a run, with contexts of its test split."""
    [read] = analysed_models([run], None, limit, checkpoint)
    return read


def rank_of(run: Path, limit: int | None = None, checkpoint: str = "best") -> RunRank:
    """The rank of a run on its test split."""
    [measured] = ranks_of_models([run], no_progress, None, limit, checkpoint)
    return measured.found


@pytest.mark.parametrize("head", HEADS, ids=lambda head: str(head["kind"]))
@pytest.mark.parametrize("limit", [None, 5, 6, 290])
def test_the_rank_is_that_of_the_predictions_of_every_token(
    run: Path, head: dict[str, object], limit: int | None
) -> None:
    trained = with_head(run, head)
    read = one(run, limit)
    predictions = read.predictions()
    matrix = torch.cat([*predictions.blocks(3)]).numpy()
    scores = trained.nll(read.test.dialogs)[: len(read.test.examples)]
    assert matrix.shape == (predictions.rows, predictions.words)
    assert predictions.rows == sum(score.tokens for score in scores)
    np.testing.assert_allclose(np.exp(matrix).sum(1), 1, rtol=1e-12)
    measured = rank_of(run, limit)
    values = np.linalg.svd(matrix, compute_uv=False)
    threshold = 0.5 * np.sqrt(sum(matrix.shape) + 1) * values[0] * np.finfo(float).eps
    assert measured.rank == int((values > threshold).sum())
    assert measured.ceiling == (6 if head["kind"] == "softmax" else None)
    assert (measured.rank == 6) == (head["kind"] == "softmax")
    assert (measured.tokens, measured.vocabulary) == matrix.shape


def test_the_likelihood_of_true_responses_is_in_the_matrix(run: Path) -> None:
    trained, read = with_head(run, HEADS[1]), one(run)
    matrix = torch.cat([*read.predictions().blocks(50)])
    targets = torch.cat([targets for _, targets in read.opened.trained.readings(read.encoded)])
    nll = -matrix.gather(1, targets[:, None]).sum()
    assert float(nll) == pytest.approx(sum(score.nll for score in trained.nll(read.test.dialogs)), rel=1e-5)


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
    assert not rank_of(run, 5).kept_from_before
    assert not rank_of(run, checkpoint="last").kept_from_before
    with_head(run, HEADS[0])
    assert not rank_of(run).kept_from_before


@pytest.mark.parametrize("analysis", ["rank", "gradient"])
def test_a_result_does_not_overwrite_a_corpus(
    run: Path, ending: Callable[..., tuple[int, str, str]], analysis: str
) -> None:
    from dialog.cli import main

    before = Path("test.jsonl").read_bytes()
    code, _, error = ending(main, "analyze", analysis, str(run), "--json", "test.jsonl")
    assert (code, error.count("\n")) == (2, 1)
    assert Path("test.jsonl").read_bytes() == before


def test_a_corpus_of_unknown_words_is_refused(run: Path) -> None:
    with_head(run, HEADS[0])
    text = [{"speaker": "AB"[turn % 2], "text": "zq zw zx"} for turn in range(6)]
    Path("foreign.jsonl").write_text(json.dumps({"id": "1", "utterances": text}) + "\n")
    with pytest.raises(DataError, match=r"foreign\.jsonl: 100% of its tokens are unknown"):
        [*analysed_models([run], "foreign.jsonl", None, "best")]


def test_a_missing_test_split_is_told_before_any_run_is_loaded(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainedModel, "load", lambda *_: pytest.fail("a run was loaded"))
    Path("test.jsonl").unlink()
    with pytest.raises(DataError, match=rf"^{run}: .*test\.jsonl: no such file.*name a corpus with --data"):
        next(analysed_models([run], None, None, "best"))


def test_a_diverged_model_is_named(run: Path) -> None:
    trained = with_head(run, HEADS[0])
    state = {name: tensor * float("nan") for name, tensor in trained.model.state_dict().items()}
    CheckpointStore.of(run).commit(3, {"model": state}, {}, {})
    with pytest.raises(DivergenceError, match="run: log-probabilities of token 1 are not finite"):
        rank_of(run)
    with pytest.raises(DivergenceError, match="run: the gradients are not finite"):
        gradients_of_model(one(run), sample=3)


def test_blocks_leave_gradients_on(run: Path) -> None:
    with_head(run, HEADS[0])
    blocks = one(run).predictions().blocks(5)
    assert not next(blocks).requires_grad
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("head", HEADS, ids=lambda head: str(head["kind"]))
@pytest.mark.parametrize(("limit", "transforms"), [(None, False), (5, False), (290, False), (290, True)])
def test_gradients_are_those_of_the_loss_of_every_token(
    run: Path, head: dict[str, object], limit: int | None, transforms: bool
) -> None:
    """Those of every batch by itself, with the batch's own contexts as the source."""
    with_head(run, head, transforms=transforms)
    read = one(run, limit)
    gradients = read.gradients()
    at_logits = torch.cat([*gradients.at_logits()])
    at_states = torch.cat([*gradients.at_states()])
    targets = torch.cat([targets for _, targets in read.opened.trained.readings(read.encoded)])
    predictions = torch.cat([*read.predictions().blocks(7)])
    assert at_states.shape == (len(targets), gradients.size)
    torch.testing.assert_close(at_logits, predictions.exp() - F.one_hot(targets, predictions.shape[1]))
    at = 0
    for hidden, words in read.opened.trained.readings(read.encoded):
        states = hidden.map(lambda layer: layer.double().requires_grad_())._replace(source=hidden.source)
        gain = gradients.head.log_probs(states).gather(1, words[:, None]).sum()
        wanted = torch.autograd.grad(-gain, (states.last, *states.lower))
        torch.testing.assert_close(at_states[at : at + len(words)], torch.cat(wanted, 1))
        at += len(words)
    assert at == len(targets) == len(at_states)


def test_the_command_measures_gradients_of_runs_and_their_checkpoints(
    run: Path, ending: Callable[..., tuple[int, str, str]]
) -> None:
    from dialog.cli import main

    command = ("analyze", "gradient", str(run), "--limit", "9", "--sample", "4", "--json", "found.json")
    code, out, err = ending(main, *command)
    assert (code, err) == (0, "")
    assert "random share" in out
    kept = json.loads(Path("found.json").read_text())["runs"][str(run)]
    assert kept["tokens"] == one(run, 9).gradients().tokens
    assert (kept["sample"], kept["components"], kept["state_size"]) == (4, 1, 9)
    assert kept["data"]["name"] == "test.first-9"
    assert ending(main, *command, "--over-training")[0] == 0
    steps = json.loads(Path("found.json").read_text())["runs"]
    assert list(steps) == [f"{run} step-1"]
    assert steps[f"{run} step-1"]["share"] == kept["share"]
