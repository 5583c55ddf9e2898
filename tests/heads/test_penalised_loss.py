"""Label smoothing and unlikelihood of repeated words, against the plain formulas in float64."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dialog.batches import collate
from dialog.corpora.corpus import load_dialogs
from dialog.task import DialogTask, build_model
from dialog.trained import TrainedModel
from lm.heads.config import HeadConfig
from lm.heads.head import Head
from lm.heads.loss_options import LossOptions
from lm.heads.output_layer import log_of_rest, words_before
from tests.support.plain_heads import KINDS, V, example, make_head, naive_probabilities
from tests.support.tiny_dialog import tiny_dialog, write_corpus

SMOOTHING, WEIGHT, PAST = 0.2, 0.7, 0.3


def candidates(targets: Tensor) -> list[list[int]]:
    """The words before each token of one sequence, in plain Python."""
    said = targets.tolist()
    return [sorted(set(said[:place]) - {token}) for place, token in enumerate(said)]


def by_hand(
    head: Head, hidden: Tensor, targets: Tensor, negative: list[list[int]], present: Tensor
) -> Tensor:
    probabilities = naive_probabilities(head, hidden)
    total = torch.zeros((), dtype=torch.float64)
    past = head.past
    assert past is not None
    for row, target, words, word in zip(
        probabilities, targets.tolist(), negative, present.tolist(), strict=True
    ):
        expected = sum((p * vector for p, vector in zip(row, head.weight, strict=True)), torch.tensor(0.0))
        state = torch.tanh(past.layer.weight @ expected + past.layer.bias)
        total = total - PAST * (head.weight @ state + past.bias).log_softmax(0)[word]
        total = total - (1 - SMOOTHING) * row[target].log() - SMOOTHING * row.log().sum() / V
        for word in words:
            total = total - WEIGHT * (1 - row[word]).log()
    return total


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [0, 7])
def test_the_objective_and_its_gradients_are_the_formula(kind: str, rows: int) -> None:
    head = make_head(kind, label_smoothing=SMOOTHING, unlikelihood=WEIGHT, past_decode=PAST)
    head.options = LossOptions(head.link, rows=rows)
    hidden, targets, _ = example()
    targets[4] = targets[1]
    present = targets.roll(1)
    objective, nll = head.objective(hidden, targets, repeated=words_before(targets[None])[0], present=present)
    expected = by_hand(head, hidden, targets, candidates(targets), present)
    torch.testing.assert_close(objective, expected)
    torch.testing.assert_close(nll, head.nll(hidden, targets).sum())
    wanted = [hidden, *head.parameters()]
    found, plain = (torch.autograd.grad(value, wanted, allow_unused=True) for value in (objective, expected))
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other)


def test_without_penalties_the_objective_is_the_loss_to_the_bit() -> None:
    head = make_head("mos")
    hidden, targets, _ = example()
    objective, nll = head.objective(hidden, targets, repeated=words_before(targets[None])[0])
    assert torch.equal(objective, nll)
    assert torch.equal(objective, head.loss(hidden, targets))
    smooth = make_head("softmax", label_smoothing=SMOOTHING)
    reference = torch.nn.functional.cross_entropy(
        smooth.log_probs(hidden), targets, label_smoothing=SMOOTHING, reduction="sum"
    )
    torch.testing.assert_close(smooth.objective(hidden, targets)[0], reference)


def test_the_words_before_a_token_are_different_ones() -> None:
    torch.manual_seed(0)
    targets = torch.randint(0, 4, (5, 7))
    for row, words in zip(targets, words_before(targets), strict=True):
        found = [sorted(word for word in some if word >= 0) for some in words.tolist()]
        assert found == candidates(row)


@pytest.mark.parametrize("gap", [-30.0, -3.0, 0.0, 1.0, 6.0, 14.0, 18.0, 30.0, 300.0])
def test_the_rest_of_a_probability_and_its_gradient_keep_their_precision(gap: float) -> None:
    """Also where float32 rounds the probability to 1: then the gradient at its logit is −1."""
    logits = torch.tensor([[0.3, gap, -1.0, 0.0], [1.0, 0.0, 0.5, gap]])
    words = torch.tensor([[1, 0, 3], [3, 1, 1]])
    found, gradients = [], []
    for dtype in (torch.float32, torch.float64):
        z = logits.to(dtype).requires_grad_()
        if dtype == torch.float32:
            rest = log_of_rest(z.log_softmax(1), words)
        else:  # by the definition
            others = torch.ones(2, 3, 4, dtype=torch.bool).scatter(2, words[..., None], value=False)
            rest = z.log_softmax(1)[:, None].masked_fill(~others, -math.inf).logsumexp(2)
        found.append(rest.double())
        gradients.append(torch.autograd.grad(rest.sum(), z)[0].double())
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_dialog_models_repeat_words_of_the_response_alone(tmp_path: Path) -> None:
    trained = tiny_dialog()
    task = penalised_task(trained, write_corpus(tmp_path))
    items = task.train.items[:4]
    batch = collate(items, trained.codec.vocabulary.pad)
    model = task.model.double()
    objective, _ = model.objective(batch)
    hidden, targets, rows = model.hidden(batch)
    log_probs = model.head.log_probs(hidden)
    expected = -log_probs.gather(1, targets[:, None]).sum()
    for row in range(len(items)):
        mine = (rows == row).nonzero()[:, 0]
        for place, words in zip(mine.tolist(), candidates(targets[mine]), strict=True):
            expected = expected - WEIGHT * (1 - log_probs[place, words].exp()).log().sum()
    torch.testing.assert_close(objective, expected)


def test_dialog_models_decode_the_word_before(tmp_path: Path) -> None:
    trained = tiny_dialog()
    task = penalised_task(trained, write_corpus(tmp_path), past_decode=PAST)
    batch = collate(task.train.items[:4], trained.codec.vocabulary.pad)
    model = task.model.double()
    objective, nll = model.objective(batch)
    hidden, _, rows = model.hidden(batch)
    log_probs = model.head.log_probs(hidden)
    assert model.head.past is not None
    place, expected = [0] * len(batch.inputs), nll
    for row, line in zip(rows.tolist(), log_probs, strict=True):
        word = batch.inputs[row, place[row]]
        place[row] += 1
        expected = expected + PAST * model.head.past(line[None], model.head.weight, word[None])[0]
    torch.testing.assert_close(objective, expected)


def penalised_task(trained: TrainedModel, corpus: Path, **options: float) -> DialogTask:
    head = trained.config.head.model_copy(update=options or {"unlikelihood": WEIGHT})
    config = trained.config.model_copy(update={"head": head})
    dialogs = load_dialogs(str(corpus))
    torch.manual_seed(1)
    return DialogTask(
        config, trained.codec, build_model(config, trained.codec).eval(), dialogs, dialogs, trained.device
    )


def test_skipping_of_gradients_is_refused() -> None:
    with pytest.raises(ValueError, match=r"skip_below = 0\.1: skips no gradient with label_smoothing"):
        HeadConfig(kind="mos", components=2, skip_below=0.1, label_smoothing=0.1)
