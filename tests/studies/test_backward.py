"""Rank forward and backward apart, and the language of one repeated symbol."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lm.cli import main
from lm.errors import ConfigError, DivergenceError
from lm.heads.head import Head
from lm.studies.backward import UNTRAINED, BackwardOptions, backward, relay
from lm.studies.backward_figure import backward_means, backward_tables, draw_backward, draw_spam, spam_tables
from lm.studies.known_language import Language
from lm.studies.options import FULL, heads_of
from lm.studies.row_rms import RowRms
from lm.studies.spam import Repeater, SpamOptions, repeat, spam
from lm.studies.sweep import descend
from lm.studies.sweep_point import SweepPoint

TINY = BackwardOptions(
    contexts=12,
    vocab=20,
    rank=7,
    heads=("softmax", "mos"),
    components=(2,),
    context_scale=(1.0, 4.0),
    sweep_size=2,
    hidden_size=6,
    steps=(3,),
)
SPAM = SpamOptions(vocab=1001, heads=("softmax",), components=(2,), sweep_size=2, hidden_size=6, steps=(1,))


def test_a_trainer_passes_gradients_of_its_rank() -> None:
    """E for a softmax, K·E contexts and K − 1 priors for a mixture, H at most."""
    language = TINY.languages[0]
    heads = heads_of(TINY)
    ranks = {}
    for trainer in heads:
        only = {trainer: heads[trainer], FULL: heads[FULL]}
        ranks[trainer] = relay(language, only, trainer, 1, 0.05)["gradient_rank"]
    assert ranks == {"softmax": 2, "MoS ×1": 5, "MoS ×4": 5, FULL: 6}


def test_an_update_has_the_rank_of_its_gradient() -> None:
    """Also where the rows of gradients change. The first has rows of the size of the rate."""
    torch.manual_seed(1)
    matrix = nn.Parameter(torch.randn(9, 6, dtype=torch.float64))
    optimizer = RowRms([matrix], 0.99, 1e-12)
    optimizer.param_groups[0]["lr"] = 0.05
    for step in range(5):
        before = matrix.detach().clone()
        optimizer.zero_grad()
        (matrix @ torch.randn(6, 2, dtype=torch.float64)).square().sum().backward()
        optimizer.step()
        change = matrix.detach() - before
        assert torch.linalg.matrix_rank(change) == 2
        if step == 0:
            sizes = change.square().mean(1).sqrt()
            torch.testing.assert_close(sizes, torch.full_like(sizes, 0.05))


def test_only_the_trainer_trains_the_states() -> None:
    """A reader is the same head on the same states, whatever it is trained beside."""
    language, heads = TINY.languages[0], heads_of(TINY)
    whole = relay(language, heads, "softmax", 4, 0.05)
    alone = relay(language, {name: heads[name] for name in ("softmax", FULL)}, "softmax", 4, 0.05)
    assert whole["readers"][FULL] == alone["readers"][FULL]
    assert whole["kl"] == alone["kl"]
    untrained = relay(language, heads, UNTRAINED, 4, 0.05)
    assert untrained["readers"][FULL] != whole["readers"][FULL]
    assert untrained["kl"] == pytest.approx(math.log(20) - language.entropy)


def test_readers_begin_with_other_weights_than_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of the trainer's kind, which the factor on the contexts does not change."""
    begun: list[list[Tensor]] = []

    def begin(model: Head, *arguments: object) -> None:
        begun.append([parameter.detach().clone() for parameter in model.parameters()])
        descend(model, *arguments)

    monkeypatch.setattr("lm.studies.backward.descend", begin)
    relay(TINY.languages[0], heads_of(TINY), "MoS ×4", 1, 0.05)
    trainer, *readers = begun
    for reader in readers:
        pairs = [(one, own) for one in reader for own in trainer if one.shape == own.shape and one.any()]
        assert not any(torch.equal(one, own) for one, own in pairs)


def test_full_rank_forward_after_a_full_trainer_reaches_the_truth() -> None:
    """And neither rank alone does, if E is far below the rank of the language."""
    language = Language(seed=3, contexts=24, vocab=40, rank=16)
    heads = {"softmax": SweepPoint("softmax", 1, 2, 16), FULL: SweepPoint("softmax", 1, 16, 16)}
    by_full = relay(language, heads, FULL, 200, 0.05)
    by_few = relay(language, heads, "softmax", 200, 0.05)
    best = by_full["readers"][FULL]["kl"]
    assert best < 0.05
    assert by_full["readers"]["softmax"]["kl"] > 10 * best
    assert by_few["readers"][FULL]["kl"] > 3 * best
    assert by_full["readers"]["softmax"]["rank"] == 4


def test_a_study_is_stored_shown_and_goes_on(tmp_path: Path) -> None:
    result = backward(TINY, tmp_path)
    stored = (tmp_path / "backward.jsonl").read_bytes()
    assert backward(TINY, tmp_path) == result
    assert (tmp_path / "backward.jsonl").read_bytes() == stored
    assert [row["trainer"] for row in result["rows"]] == [UNTRAINED, "softmax", "MoS ×1", "MoS ×4", FULL]
    two = backward(replace(TINY, seeds=(1, 2)), tmp_path)
    means = backward_means(two)["softmax"]["readers"][FULL]["kl"]
    each = [row["readers"][FULL]["kl"] for row in two["rows"] if row["trainer"] == "softmax"]
    assert means == pytest.approx(sum(each) / 2)
    assert len(backward_tables(two)[0].rows) == 5
    draw_backward(two, [tmp_path / "b.svg"])
    assert "untrained" in (tmp_path / "b.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sweep_size": 6}, "below --hidden-size"),
        ({"heads": ("doc",), "components": (2,)}, "doc reads two"),
        ({"heads": ("mixtape",), "components": (3,)}, "not possible for mixtape"),
        ({"components": (2, 4)}, "--components: 2 numbers; give one for --task backward or spam"),
        ({"steps": (3, 4)}, "--steps: 2 numbers; give one for"),
    ],
)
def test_options_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(TINY, **change)
    with pytest.raises(ConfigError, match=message):
        replace(SPAM, **change)


@pytest.mark.parametrize(
    ("vocab", "message"),
    [(999, "--vocab 999: must be at least 1000"), (10**6, "symbols × words × components need about")],
)
def test_a_number_of_symbols_that_is_not_possible_is_refused(vocab: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(SPAM, vocab=vocab)


def test_repeating_is_learned_and_the_embedding_is_the_output_matrix() -> None:
    point = SweepPoint("softmax", 1, 8, 16)
    model = Repeater(point, 50)
    assert model.head.weight is model.embedding.weight
    assert len({id(parameter) for parameter in model.parameters()}) == len(list(model.parameters()))
    before, after = (repeat(point, 1, 50, steps, 0.01) for steps in (1, 150))
    assert before["accuracy"] < 0.5 < 0.9 < after["accuracy"]
    assert after["nll"] < before["nll"]


def test_spam_that_diverges_says_so(tmp_path: Path) -> None:
    with pytest.raises(DivergenceError, match="softmax with 1,000 symbols diverged; lower --lr"):
        spam(replace(SPAM, lr=1e30), tmp_path)


def test_spam_is_measured_by_decades_of_symbols(tmp_path: Path) -> None:
    result = spam(SPAM, tmp_path)
    assert {row["vocab"] for row in result["rows"]} == {1000, 1001}
    assert [row["symbols"] for row in spam_tables(result)[0].rows] == [1000, 1001]
    assert spam(SPAM, tmp_path) == result
    draw_spam(result, [tmp_path / "s.svg"])


def test_the_command_has_a_task(
    ending: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = ("--contexts", "12", "--vocab", "24", "--rank", "6", "--sweep-size", "2", "--hidden-size", "5")
    command = ("bottleneck", "--heads", "softmax", "--steps", "3", *sizes)
    code, out, err = ending(main, *command, "--task", "backward", "--out", "b", "--json", "b.json")
    assert (code, err) == (0, "")
    assert "drawn in b/backward.png and b/backward.svg" in out
    assert json.loads(Path("b.json").read_text())["heads"] == ["softmax", FULL]
    assert ending(main, *command, "--task", "other")[0] == 2


@pytest.mark.parametrize(
    ("task", "unread"),
    [
        *(("backward", option) for option in ("--embedding-sizes", "--component-sweep")),
        *(("spam", option) for option in ("--contexts", "--rank", "--spread", "--component-sweep")),
    ],
)
def test_an_option_that_a_task_does_not_read_is_refused(
    task: str, unread: str, ending: Callable[..., tuple[int, str, str]]
) -> None:
    code, _, err = ending(main, "bottleneck", "--task", task, unread, "2")
    assert code == 2
    assert err == f"{unread}: --task {task} does not read this option; leave it out\n"


def test_languages_are_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(TINY, seeds=(1, 2), heads=("softmax",), steps=(1,))
    monkeypatch.setattr("lm.studies.options.Language", None)
    assert [row["seed"] for row in backward(options, tmp_path)["rows"]] == [1, 1, 1, 2, 2, 2]
