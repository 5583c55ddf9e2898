"""Divergence, components and examples: equal to their slow definitions, and sane at the edges."""

import copy
import gc
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from lm.analysis.components import component_tables, components_of_run
from lm.analysis.divergence import divergence_of_run, divergence_tables
from lm.analysis.examples import Wanted, compare_runs, example_tables, find_examples
from lm.console.measured import figure_files
from lm.disk.jsonfile import canonical_json
from lm.errors import ConfigError, DataError, DivergenceError
from lm.heads import usage
from lm.heads.head import Head, HeadConfig
from lm.heads.states import Layers
from lm.heads.usage import component_sums, prediction_use, prior_sums, prior_use
from lm.language.trained import WINDOWS
from lm.parallel.group import ALONE
from lm.results import as_json
from tests.support.tiny_lm import ids_of, tiny_lm

WORDS = tuple(f"w{index}" for index in range(11))


def log_probs(tokens: int, scale: float = 2.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(tokens, len(WORDS), dtype=torch.float64, generator=generator)).log_softmax(1)


@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0, 30.0])
@pytest.mark.parametrize("tokens", [2, 17, 600])
def test_divergence_is_the_mean_over_all_pairs(scale: float, tokens: int) -> None:
    trained = tiny_lm()
    with torch.no_grad():
        trained.model.head.weight.mul_(scale)
    ids = ids_of(trained, tokens)
    result = divergence_of_run(trained, ids)
    logs = torch.cat([*trained.log_probs(ids)])
    pairs = (logs.exp()[:, None] * (logs[:, None] - logs[None])).sum(-1)  # KL(P_c ‖ P_c')
    expected = float(pairs.sum()) / (tokens * (tokens - 1))
    assert result.expected_divergence == pytest.approx(expected, rel=1e-9, abs=1e-14)
    assert result.mean_entropy == pytest.approx(float(-(logs.exp() * logs).sum(1).mean()))
    assert (result.contexts, result.vocabulary) == (tokens, len(trained.codec.vocabulary))
    canonical_json(as_json(result))
    assert len(divergence_tables({"a": result, "b": result})[0].rows) == 2


def test_divergence_needs_two_contexts_and_possible_words() -> None:
    trained = tiny_lm()
    for tokens in (0, 1):
        with pytest.raises(DataError, match="longer text"):
            divergence_of_run(trained, ids_of(trained, tokens))
    with torch.no_grad():
        trained.model.head.bias[3] = -math.inf
    with pytest.raises(DivergenceError, match="not finite"):
        divergence_of_run(trained, ids_of(trained, 9))


def test_priors_of_known_shape_have_known_statistics() -> None:
    alternating = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]]).repeat(5, 1)
    sharp = prior_use(*prior_sums(iter(alternating.split(3))))
    assert sharp.prior_entropy == 0
    assert sharp.prior_perplexity == 1
    assert sharp.usage == [0.5, 0.5]
    assert sharp.effective_components == pytest.approx(2)
    flat = prior_use(*prior_sums(iter([torch.full((7, 4), -math.log(4))])))
    assert flat.prior_perplexity == pytest.approx(4)
    assert flat.tokens == 7
    one = prior_use(*prior_sums(iter([torch.tensor([[0.0, -math.inf, -math.inf]])])))
    assert one.effective_components == 1
    with pytest.raises(DataError):
        prior_use(*prior_sums(iter([])))


def joints(tokens: int, components: int) -> tuple[Tensor, Tensor]:
    prior = torch.randn(tokens, components, dtype=torch.float64).log_softmax(1)
    inside = (3 * torch.randn(tokens, components, len(WORDS), dtype=torch.float64)).log_softmax(2)
    return prior[..., None] + inside, torch.randint(len(WORDS), (tokens,))


@pytest.mark.parametrize("rows", [1, 4, 50])
def test_component_statistics_are_their_definitions(rows: int) -> None:
    joint, targets = joints(13, 3)
    blocks = zip(joint.split(rows), targets.split(rows), strict=True)
    use, result = prediction_use(WORDS, *component_sums(blocks))
    p = joint.exp()  # (T, K, V)
    prior = p.sum(2)
    assert use.usage == pytest.approx(prior.mean(0).tolist())
    assert use.prior_entropy == pytest.approx(float(-(prior * prior.log()).sum(1).mean()))
    responsible = torch.stack([row[:, y] / row[:, y].sum() for row, y in zip(p, targets, strict=True)])
    assert result.posterior_usage == pytest.approx(responsible.mean(0).tolist())
    assert result.posterior_entropy == pytest.approx(float(-(responsible * responsible.log()).sum(1).mean()))
    assert sum(result.posterior_usage) == pytest.approx(1)
    mean = p.mean(0)  # the joint distribution of component and word
    independent = mean.sum(1, keepdim=True) * mean.sum(0, keepdim=True)
    own = mean / mean.sum(1, keepdim=True)
    assert result.specialisation == pytest.approx((own * (own / mean.sum(0)).log()).sum(1).tolist())
    assert result.mutual_information == pytest.approx(float((mean * (mean / independent).log()).sum()))
    for k, preferred in enumerate(result.preferred):
        assert preferred
        contributions = [word.contribution for word in preferred]
        assert contributions == sorted(contributions, reverse=True)
        for word in preferred:
            v = WORDS.index(word.word)
            assert word.share == pytest.approx(float(mean[k, v] / mean[:, v].sum()))
            assert word.ratio == pytest.approx(word.share / use.usage[k])
            assert word.ratio > 1
    canonical_json(as_json(result))


def test_a_component_prefers_the_words_that_only_it_says() -> None:
    """And neither the rarest of them first, nor one that all components say often."""
    inside = torch.tensor([[0.7, 0.29, 0.01, 0.0, 0.0], [0.7, 0.0, 0.0, 0.29, 0.01]])
    joint = (0.5 * inside).log().expand(6, 2, 5)
    _, result = prediction_use("abcde", *component_sums(iter([(joint, torch.zeros(6, dtype=torch.long))])))
    assert [[word.word for word in preferred] for preferred in result.preferred] == [
        ["b", "c"],
        ["d", "e"],
    ]
    assert result.preferred[0][0].share == 1
    assert result.mutual_information == pytest.approx(0.3 * math.log(2))


def test_a_component_without_use_does_no_harm() -> None:
    joint = torch.tensor([[[-0.7, -0.7], [-math.inf, -math.inf]]]).expand(3, 2, 2)
    _, result = prediction_use("ab", *component_sums(iter([(joint, torch.tensor([0, 1, 1]))])))
    assert result.posterior_usage == [1, 0]
    assert result.specialisation == pytest.approx([0, 0])
    canonical_json(as_json(result))


def test_figures_of_one_run_lie_in_it_and_replace_only_figures(tmp_path: Path) -> None:
    one, two = tmp_path, Path("runs/b")
    for out, runs, folder in (
        (None, [one], one / "analysis"),
        (None, [one, two], Path("analysis")),
        (two, [one], two),
    ):
        assert figure_files("rank", out, runs) == [folder / "rank.png", folder / "rank.svg"]
    for written, kept in (("", False), ("\x89PNG\r", False), ("precious", True)):
        (tmp_path / "rank.png").write_text(written, "latin-1")
        if kept:
            with pytest.raises(ConfigError, match=r"rank\.png: exists and is no result of this command"):
                figure_files("rank", tmp_path, [two])
        else:
            figure_files("rank", tmp_path, [two])


class StandIn:
    """As much of a trained model as the analyses ask for: a head on fixed hidden states."""

    group = ALONE

    def __init__(self, kind: str, components: int = 4) -> None:
        config = HeadConfig(kind=kind, components=components, embedding_size=5, tied=False)
        head = Head(config, 6, len(WORDS)).eval()
        self.model = SimpleNamespace(head=head)
        self.codec = SimpleNamespace(vocabulary=Vocabulary(WORDS))
        self.states = torch.randn(100, 6)

    def readings(
        self, ids: np.ndarray, *, window: int = 256, only: range = WINDOWS
    ) -> Iterator[tuple[Layers, Tensor]]:
        for start in range(0, len(ids), window)[only.start : only.stop]:
            part = slice(start, min(start + window, len(ids)))
            yield Layers(self.states[part, None]), torch.from_numpy(ids[part])

    def log_probs(self, ids: np.ndarray, rows: int = 256) -> Iterator[Tensor]:
        head = copy.deepcopy(self.model.head).double()
        for hidden, _ in self.readings(ids, window=rows):
            yield head.log_probs(hidden.last[:, 0].double()).detach()


class Vocabulary(SimpleNamespace):
    def __init__(self, tokens: tuple[str, ...]) -> None:
        super().__init__(tokens=tokens)

    def __len__(self) -> int:
        return len(self.tokens)


IDS = np.arange(90) % len(WORDS)


@pytest.mark.parametrize("kind", ["moc", "mos", "moss"])
def test_components_of_a_run(kind: str) -> None:
    run = StandIn(kind)
    result = components_of_run(run, IDS[:80])
    prior = run.model.head.mixer.prior_link.log_normalised(run.model.head.prior(run.states[:80])).exp()
    use = result.prior
    assert use.usage == pytest.approx(prior.mean(0).tolist(), rel=1e-5)
    assert (use.tokens, use.components, result.head) == (80, 4, kind)
    assert ("preferred" in as_json(result)) == (kind != "moc")
    canonical_json(as_json(result))
    assert len(component_tables("run", result)[0].rows) == 4


def test_a_short_analysis_reads_the_first_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    run = StandIn("mos")
    monkeypatch.setattr(usage, "SAMPLED", 4 * len(WORDS) * 37)
    readings = run.readings(IDS, window=16)
    states = ((hidden.map(lambda layer: layer[:, 0]), targets) for hidden, targets in readings)
    short, whole = usage.use_in_sample(run.model.head, states, WORDS), components_of_run(run, IDS[:37])
    assert short is not None
    assert short.prior.tokens == 37
    few, every = as_json(short), as_json(whole)
    for key in ("usage", "posterior_usage", "specialisation"):
        assert few[key] == pytest.approx(every[key], rel=1e-3)
    assert usage.use_in_sample(StandIn("softmax", components=1).model.head, iter(()), WORDS) is None


@pytest.mark.parametrize(("kind", "components"), [("softmax", 1), ("mos", 1)])
def test_a_head_without_components_is_refused(kind: str, components: int) -> None:
    with pytest.raises(ConfigError, match="no prior"):
        components_of_run(StandIn(kind, components=components), IDS)


@pytest.mark.parametrize("rows", [1, 7, 100])
def test_examples_are_the_largest_gains(rows: int) -> None:
    first, second = log_probs(60), log_probs(60, seed=1)
    ids = np.arange(60) % 11
    gains = (second - first)[torch.arange(60), torch.from_numpy(ids)].numpy()
    wanted = Wanted(count=5, margin=0.5, context=3)
    result = find_examples(iter(first.split(rows)), iter(second.split(rows)), ids, WORDS, wanted)
    order = sorted((place for place in range(60) if gains[place] >= 0.5), key=lambda place: -gains[place])
    assert [example.position for example in result.examples] == order[:5]
    assert len(order) > 5
    assert result.mean_gain == pytest.approx(float(gains.mean()))
    assert result.share_better == pytest.approx(float((gains > 0).mean()))
    for example in result.examples:
        place = example.position
        assert example.gain == pytest.approx(gains[place])
        assert example.gain == pytest.approx(example.log_prob["b"] - example.log_prob["a"])
        assert example.target == WORDS[ids[place]]
        assert example.context == [WORDS[index] for index in ids[max(0, place - 3) : place]]
        for name, logs in (("a", first), ("b", second)):
            top = logs[place].topk(5)
            assert [guess.word for guess in example.guesses[name]] == [WORDS[i] for i in top.indices]
            shown = [guess.probability for guess in example.guesses[name]]
            assert shown == pytest.approx(top.values.exp().tolist())
    canonical_json(as_json(result))
    assert len(example_tables("A", "B", result)) == 6


def test_of_equal_gains_the_earlier_stay() -> None:
    first = torch.full((9, 4), -math.log(4), dtype=torch.float64)
    second = torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=torch.float64).log().expand(9, 4)
    ids = np.zeros(9, np.int64)
    for rows in (1, 2, 9):
        blocks = iter(first.split(rows)), iter(second.split(rows))
        result = find_examples(*blocks, ids, "abcd", Wanted(count=3, margin=0.0))
        assert [example.position for example in result.examples] == [0, 1, 2]
        guesses = result.examples[0].guesses
        assert [guess.word for guess in guesses["a"]] == ["a", "b", "c", "d"]
    assert result.examples[0].context == []


def test_no_example_is_worse_than_the_margin() -> None:
    logs = log_probs(9)
    ids = np.zeros(9, np.int64)
    result = find_examples(iter([logs]), iter([logs]), ids, WORDS, Wanted(margin=0.1))
    assert result.examples == []
    assert result.share_better == 0
    assert "no token" in str(example_tables("A", "B", result)[1])
    none = find_examples(iter([logs]), iter([logs]), ids, WORDS, Wanted(count=0, margin=0.0))
    assert none.examples == []
    for blocks in ([logs[:, :3]], [logs[:4]], [logs, logs], []):
        with pytest.raises(ValueError, match=r"match|rows|zip|cover"):
            find_examples(iter([logs]), iter(blocks), ids, WORDS, Wanted())


def test_runs_are_compared_on_the_tokens_of_a_text() -> None:
    first, second, wanted = StandIn("softmax", components=1), StandIn("mos"), Wanted(count=4, margin=0.0)
    result = compare_runs(first, second, IDS, wanted)
    assert len(result.examples) == 4
    assert result.tokens == len(IDS)
    with pytest.raises(DataError, match="longer"):
        compare_runs(first, second, IDS[:0], wanted)


def test_sums_over_components_keep_nothing_of_a_block() -> None:
    joint, targets = log_probs(4 * 3).view(4, 3, 11) - math.log(3), torch.tensor([0, 1, 4, 2])
    gc.collect()
    alive = []

    def blocks() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(9):
            yield joint, targets
            alive.append(sum(type(one) is Tensor for one in gc.get_objects()))

    scalars, usage, *_ = component_sums(blocks())
    assert scalars[0] == 36
    assert float(usage.sum()) == pytest.approx(36)
    assert alive[1] == alive[-1]
