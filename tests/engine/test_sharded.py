"""Gradients of shards: their sum is that of the batch, and each shard draws random numbers of its own."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from lm.engine.agreement import Agreement, Clock
from lm.engine.optim import build_optimizer
from lm.engine.sharded import ShardedUpdater
from lm.engine.update import Sums, Updater
from lm.language.task import LmTask
from lm.parallel.group import ALONE, Group
from lm.stop import StopFlag
from tests.support.ranks import together
from tests.support.shared_training import LM
from tests.support.tiny_training import resolved, task, write_corpus

SEVERAL = ("optim.name=sgd", "train.accumulate=2", "window.random=true")  # windows of unequal length


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_corpus(tmp_path, LM, train=60, valid=10, longest=9)
    monkeypatch.chdir(tmp_path)


def gradient(
    shards: int, *overrides: str, group: Group = ALONE, update: int = 1, built: LmTask | None = None
) -> tuple[Tensor, Sums]:
    """Gradient of objective / tokens of the first batches, and the sums of the update."""
    trained = built or task(*SEVERAL, *overrides, dtype=torch.float64)
    config = resolved(*SEVERAL, *overrides, f"train.shards={shards}").config
    optimizer = build_optimizer(config.optim, trained.model, config.train.precision)
    updater = Updater(trained.model, trained.loss, optimizer, config.optim, config.train)
    trained.model.train()
    batches = [batch for batch, _ in zip(trained.epoch(0, 0), range(config.train.accumulate), strict=False)]
    if shards == 1:
        sums = updater.gradients(batches)
    else:
        agreement = Agreement(group, StopFlag(), Clock(0.0))
        sums = ShardedUpdater(updater, trained.shard, config.train, group, agreement).gradients(
            batches, update
        )
    return updater.flat() * sums.divisor / sums.tokens, sums


RATES = ("embedding", "input", "hidden", "output", "state", "weight")
DRY = (
    "head.latent_dropout=0",
    *(f"model.{rate}_dropout=0" for rate in RATES),
    *("model.activation_penalty=0", "model.slowness_penalty=0"),  # computed in float32
)


@pytest.mark.parametrize("shards", [2, 3, 4, 9, 12])
def test_the_gradient_of_shards_is_that_of_the_batch(shards: int) -> None:
    """Without dropout: shards of unequal sizes, and of none, count by their tokens."""
    whole, of_all = gradient(1, *DRY)
    parts, of_shards = gradient(shards, *DRY)
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-12)
    assert (of_shards.tokens, of_shards.nll) == (of_all.tokens, pytest.approx(of_all.nll))
    assert of_shards.grad_norm == pytest.approx(of_all.grad_norm)


def test_shards_and_updates_draw_numbers_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two equal shards have unequal gradients under dropout."""
    seeds: list[int] = []
    plant = torch.manual_seed

    def planted(seed: int) -> torch.Generator:
        seeds.append(seed)
        return plant(seed)

    gradient(4)
    monkeypatch.setattr("torch.manual_seed", planted)
    for update in (1, 2):
        gradient(4, update=update)
    drawn = [seed for seed in seeds if seed > 1 << 32]
    assert len(drawn) == len(set(drawn)) == 2 * (4 + 1)


def test_fast_sums_agree_to_a_millionth_of_the_largest_gradient() -> None:
    """In float32, for every number of ranks, and the same on all."""
    dry = (*SEVERAL, *DRY)
    exact, sums = gradient(4, *DRY, built=task(*dry))
    for size in (2, 4):
        tasks = [task(*dry) for _ in range(size)]
        settings = (*DRY, "train.reduction=fast")
        first, *others = together(
            size, lambda group, of=tasks, also=settings: gradient(4, *also, group=group, built=of[group.rank])
        )
        assert isinstance(first, tuple), first
        assert (first[0] - exact).abs().max() <= 1e-6 * exact.abs().max()
        assert first[1].tokens == sums.tokens
        for other in others:
            assert isinstance(other, tuple), other
            assert torch.equal(other[0], first[0])


def test_all_ranks_have_the_gradient_of_one_process() -> None:
    """Without dropout, because the threads that stand for ranks share the random numbers."""
    alone, sums = gradient(4, *DRY)
    for size in (2, 4):
        tasks = [task(*SEVERAL, *DRY, dtype=torch.float64) for _ in range(size)]
        results = together(size, lambda group, of=tasks: gradient(4, *DRY, group=group, built=of[group.rank]))
        for found in results:
            assert isinstance(found, tuple), found
            assert torch.equal(found[0], alone)
            assert found[1] == sums
