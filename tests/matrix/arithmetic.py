"""Rows of numbers: C1 what is not finite, C2 extreme logits, K2 equal results by other ways, L scores."""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from dialog.metrics.bleu import bleu_by_context, count_overlaps, sentence_bleu
from lm.engine.state import all_finite
from lm.errors import DivergenceError
from lm.heads.head import Head, HeadConfig
from tests.matrix.row import Case
from tests.support.plain_bleu import legacy_bleu, nltk_bleu
from tests.support.plain_heads import KINDS, H, head_on, settings_of
from tests.support.tiny_task import Faults, TinyTask, open_run, run_folder, steps, train
from tests.support.toy_decoder import Recurrent, assert_same, decode

NOT_FINITE = (math.nan, math.inf, -math.inf)


@contextmanager
def non_finite(folder: Path) -> Iterator[Case]:
    """C1: NaN or ±inf in a loss, a gradient, a weight, an embedding, the carried state, at random updates."""
    yield poison


def poison(rng: random.Random, index: int) -> int:
    """Training ends, or says that it diverged; no commit and no best validation is ever not finite."""
    where = ("loss", "gradient", "weight", "embedding", "hidden", "validation")[index % 6]
    value, first = rng.choice(NOT_FINITE), rng.randint(1, 12)
    last = first + rng.choice((0, 0, 1, 3, 12))
    optim = {"average": rng.choice(("none", "ema", "uniform")), "name": rng.choice(("adam", "sgd"))}
    task = TinyTask()

    def strike(call: int) -> None:
        if not first <= call <= last:
            return
        with torch.no_grad():
            if where == "weight":
                task.model.cell.weight_hh[rng.randrange(6), rng.randrange(6)] = value
            elif where == "embedding":
                task.model.embedding.weight[rng.randrange(11)] = value
            elif where == "hidden":
                task.hidden = task.hidden.clone()
                task.hidden[rng.randrange(3), rng.randrange(6)] = value

    struck = Faults(on_loss=strike)
    if where == "loss":
        struck.nan_loss = lambda call: first <= call <= last
    elif where == "gradient":
        struck.nan_gradient = lambda call: first <= call <= last
    elif where == "validation":
        struck.nll = lambda call: value if call % 2 else 2.0 + call
    task.faults = struck
    with run_folder() as folder:
        with suppress(DivergenceError):
            train(folder, {"max_steps": 14, "checkpoint_every": 2, "validate_every": 3}, optim, task)
        with open_run(folder) as run:
            for step in steps(folder):
                commit = run.checkpoints.open(f"step-{step}")
                for group in commit.groups:
                    if group != "rng":
                        assert all_finite(commit.tensors(group).values()), f"step {step}: {group}"
                assert all(math.isfinite(nll) for nll, _ in commit.state["progress"]["best"])
    return 1


@contextmanager
def extreme_logits(folder: Path) -> Iterator[Case]:
    """C2: logits of ±1e4, all equal, one-hot, in float32 and bfloat16, up to 50,000 words."""
    yield saturate


def saturate(rng: random.Random, index: int) -> int:
    """Probabilities of every head are finite and sum to 1, and its gradients are finite."""
    kind = KINDS[index % len(KINDS)]
    vocab = 50_000 if index % 500 == 7 else rng.choice((9, 13, 64, 300))
    products = rng.choice(("float32", "bfloat16"))
    torch.manual_seed(rng.getrandbits(32))
    config = HeadConfig.model_validate(settings_of(kind) | {"embedding_size": 4, "products": products})
    head: Head = head_on(config, vocab).float()
    pattern = rng.choice(("normal", "equal", "one-hot", "spread", "one-hot-low"))
    scale = rng.choice((0.0, 1e-4, 1.0, 30.0, 1e3))
    with torch.no_grad():
        for parameter in head.parameters():
            torch.nn.init.normal_(parameter, std=rng.choice((0.1, 1.0, 3.0)))
        head.weight.mul_(scale)
        bias = {
            "normal": lambda: torch.randn(vocab),
            "equal": lambda: torch.full((vocab,), rng.choice((-1e4, 0.0, 1e4))),
            "one-hot": lambda: torch.zeros(vocab).index_fill(0, torch.tensor([rng.randrange(vocab)]), 1e4),
            "one-hot-low": lambda: torch.zeros(vocab).index_fill(
                0, torch.tensor([rng.randrange(vocab)]), -1e4
            ),
            "spread": lambda: torch.linspace(-1e4, 1e4, vocab),
        }[pattern]()
        head.bias.copy_(bias)
    hidden = (torch.randn(5, H) * rng.choice((0.1, 1.0, 50.0))).requires_grad_()
    targets = torch.randint(vocab, (5,))
    loss = head.loss(hidden, targets)
    loss.backward()
    assert torch.isfinite(loss), f"loss of {kind} is {loss}"
    assert torch.isfinite(hidden.grad).all(), f"gradient of {kind}"
    gradients = [parameter.grad for parameter in head.parameters() if parameter.grad is not None]
    assert all_finite(gradients), f"gradients of the parameters of {kind}"
    with torch.no_grad():
        log_probs = head.log_probs(hidden).double()
    assert not torch.isnan(log_probs).any(), f"log-probabilities of {kind}"
    total = log_probs.exp().sum(-1)
    # log g reaches −2e4, which float32 holds to a thousandth
    assert ((total - 1).abs() < 4e-3).all(), f"{kind}: probabilities sum to {total.tolist()}"
    return 1


@contextmanager
def other_ways(folder: Path) -> Iterator[Case]:
    """K2: responses of a batch, of parts of it and in another order are the same."""
    yield regroup


def regroup(rng: random.Random, index: int) -> int:
    sources, cut = rng.sample(range(8), 8), rng.randint(1, 7)
    config = decode(
        beam=rng.randint(1, 7), nbest=rng.randint(1, 9), length_penalty=rng.choice((0.0, 0.7, 1.0)),
        no_repeat_ngram=rng.choice((0, 2)), min_length=rng.choice((0, 0, 2)),
    )  # fmt: skip
    model = Recurrent(rng.randrange(10**6), vocab=12, sources=8)
    together = model.search(config, range(8))
    apart = model.search(config, sources[:cut]) + model.search(config, sources[cut:])
    for source, found in zip(sources, apart, strict=True):
        assert_same(found, together[source])
    for hypothesis in together[0]:
        own = model.log_prob(0, hypothesis.tokens, finished=hypothesis.finished)
        assert hypothesis.log_prob == pytest.approx(own, abs=1e-9)
    return 1


@contextmanager
def scores(folder: Path) -> Iterator[Case]:
    """L: sentence BLEU against NLTK and the plain formula of its older versions; precision and recall."""
    yield score


def score(rng: random.Random, index: int) -> int:
    words = ["the", "cat", "sat", "on", "a", "mat"]

    def text(least: int = 0) -> list[str]:
        return rng.choices(words, k=rng.choice((least, 1, 2, 5, 9, 14)))

    reference, hypothesis, order = text(), text(), rng.randint(1, 4)
    for weights in ("padded", "short"):
        found = sentence_bleu(reference, hypothesis, order, "nltk", weights)
        wanted = nltk_bleu(reference, hypothesis, order, weights) if reference or hypothesis else 0.0
        assert found == pytest.approx(wanted, abs=1e-12)
        with suppress(ZeroDivisionError):
            wanted = legacy_bleu(reference, hypothesis, order, weights)
            found = sentence_bleu(reference, hypothesis, order, "legacy", weights)
            assert found == pytest.approx(wanted, abs=1e-12)
    answers, targets = [[text() for _ in range(3)]], [[text(1) for _ in range(2)]]
    overlaps = count_overlaps(answers, targets)
    table = [[sentence_bleu(r, h, order) for r in targets[0]] for h in answers[0]]
    means = bleu_by_context(overlaps)
    assert means.precision[0, order - 1] == pytest.approx(sum(map(max, table)) / 3, abs=1e-12)
    columns = list(zip(*table, strict=True))
    assert means.recall[0, order - 1] == pytest.approx(sum(map(max, columns)) / 2, abs=1e-12)
    return 1
