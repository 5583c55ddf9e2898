"""Sampling: the distribution drawn from, its filters, and independence of batch mates."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dialog.decoding.beam import beam_search
from dialog.decoding.config import DecodeConfig
from dialog.decoding.sampling import sample, uniforms
from dialog.decoding.steps import Marks
from lm.engine.device import flushed_denormals
from lm.heads import sampling
from lm.heads.sampling import Filters, draw_tokens
from lm.language.generate import GenerateOptions
from tests.support.signals import signal_at
from tests.support.toy_decoder import BOS, EOS, Hidden, Recurrent, decode, repeats


def run(model: Recurrent, config: DecodeConfig, sources: list[int], base: int = 0) -> list:
    seeds = [base + source for source in sources]
    state = model.state(sources)
    return sample(model.step, state, len(sources), config, Marks(BOS, EOS, (BOS, 5)), seeds=seeds)


def grid(count: int) -> Tensor:
    """Evenly spaced numbers of (0, 1): drawn with them, shares are probabilities up to 1 / count."""
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


def shares(log_probs: Tensor, config: Filters, count: int = 4000) -> Tensor:
    tokens = draw_tokens(log_probs.expand(count, -1), grid(count), config)
    return torch.bincount(tokens, minlength=len(log_probs)) / count


def reference(log_probs: Tensor, config: DecodeConfig) -> Tensor:
    """Temperature, then top-k, then top-p, one token at a time."""
    temperature = config.temperature if config.temperature_on == "mixture" else 1.0
    probs = [math.exp(value / temperature) for value in log_probs.tolist()]
    order = sorted(range(len(probs)), key=lambda token: (-probs[token], token))[: config.top_k or len(probs)]
    total, kept, reached = sum(probs[token] for token in order), [0.0] * len(probs), 0.0
    for token in order:
        if reached < config.top_p or config.top_p == 1:
            kept[token] = probs[token]
        reached += probs[token] / total
    return torch.tensor(kept) / sum(kept)


@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.floats(-6, 6), min_size=2, max_size=12),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    on=st.sampled_from(["mixture", "components"]),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([0.17, 0.53, 0.91, 1.0]),
)
def test_draws_from_the_tempered_and_filtered_distribution(
    logits: list[float], temperature: float, on: str, top_k: int, top_p: float
) -> None:
    config = decode(temperature=temperature, temperature_on=on, top_k=top_k, top_p=top_p)
    log_probs = torch.log_softmax(torch.tensor(logits, dtype=torch.float64), 0)
    assert (shares(log_probs, config) - reference(log_probs, config)).abs().max() < 1e-3


def test_the_nucleus_ends_where_its_share_is_reached_exactly() -> None:
    log_probs = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log()
    assert shares(log_probs, decode(top_p=0.5)).tolist() == [1, 0, 0]


@pytest.mark.parametrize("filters", [{"top_p": 1e-320}, {"temperature": 1e-320}])
def test_a_setting_that_counts_as_zero_is_greedy(filters: dict[str, float]) -> None:
    log_probs, options = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log(), GenerateOptions(**filters)
    with flushed_denormals():
        assert shares(log_probs, options).tolist() == [0, 1, 0]


@pytest.mark.parametrize("spread", [0.2, 4.0])
@pytest.mark.parametrize("more", [{}, {"temperature": 0.3}, {"top_p": 0.9}, {"top_k": 40, "top_p": 0.5}])
def test_blocks_of_rows_and_a_search_among_few_words_change_no_token(
    spread: float, more: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    log_probs = (torch.randn(64, 700) * spread).log_softmax(1)
    log_probs[::2] = (log_probs[::2] * 4).round() / 4  # ties
    uniform = torch.rand(64, dtype=torch.float64)
    found = draw_tokens(log_probs, uniform, decode(**more))
    monkeypatch.setattr(sampling, "DRAWN_ENTRIES", 10**6)
    monkeypatch.setattr(sampling, "CANDIDATES", 700)
    assert torch.equal(found, draw_tokens(log_probs, uniform, decode(**more)))
    expected = torch.stack([reference(row, decode(**more)) for row in log_probs[:2].double()])
    assert (shares(log_probs[0], decode(**more)) - expected[0]).abs().max() < 1e-3
    assert (shares(log_probs[1], decode(**more)) - expected[1]).abs().max() < 1e-3


def test_impossible_tokens_are_never_drawn() -> None:
    log_probs = torch.tensor([-math.inf, 0.5, -math.inf, 0.5, -math.inf]).log_softmax(0)
    extremes = torch.tensor([0.0, 0.5 - 1e-16, 0.5, 1 - 2**-53], dtype=torch.float64)
    for config in (decode(), decode(top_k=4), decode(top_p=0.99), decode(temperature=0.01)):
        assert draw_tokens(log_probs.expand(4, -1), extremes, config).tolist() == [1, 1, 3, 3]


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    sources=st.permutations(range(6)),
    cut=st.integers(1, 5),
    top_p=st.sampled_from([0.8, 1.0]),
)
def test_batch_mates_and_order_change_nothing(seed: int, sources: list[int], cut: int, top_p: float) -> None:
    config = decode(top_p=top_p, no_repeat_ngram=2)
    model = Recurrent(seed, vocab=12, sources=6, sharpness=1.0)
    together = run(model, config, list(range(6)), base=seed)
    apart = run(model, config, sources[:cut], seed) + run(model, config, sources[cut:], seed)
    for source, found in zip(sources, apart, strict=True):
        assert [h.tokens for h in found] == [h.tokens for h in together[source]]
        for one, other in zip(found, together[source], strict=True):
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    ngram=st.integers(0, 2),
    min_length=st.integers(0, 4),
    temperature=st.sampled_from([0.5, 1.5]),
    penalty=st.sampled_from([0.0, 1.0]),
)
def test_every_sample_obeys_the_rules(
    seed: int, ngram: int, min_length: int, temperature: float, penalty: float
) -> None:
    config = decode(
        nbest=6, no_repeat_ngram=ngram, min_length=min_length, temperature=temperature, length_penalty=penalty
    )
    model = Recurrent(seed, vocab=9, sources=3, sharpness=1.0)
    for source, found in enumerate(run(model, config, [0, 1, 2], base=seed)):
        assert len(found) == 6
        assert found == sorted(found, key=lambda h: (not h.finished, -h.score))
        for hypothesis in found:
            length = len(hypothesis.tokens)
            assert not {BOS, EOS, 5} & set(hypothesis.tokens)
            assert min_length <= length <= 6 if hypothesis.finished else length == 6
            assert not (ngram and repeats(hypothesis.tokens, ngram))
            expected = model.log_prob(source, hypothesis.tokens, finished=hypothesis.finished)
            assert hypothesis.log_prob == pytest.approx(expected, abs=1e-9)
            assert hypothesis.score == hypothesis.log_prob / (length + hypothesis.finished) ** penalty


def test_one_candidate_or_no_warmth_is_greedy() -> None:
    model = Recurrent(4, vocab=9, sources=5)
    greedy = beam_search(model.step, model.state(), 5, decode(beam=1, nbest=1), Marks(BOS, EOS, (BOS, 5)))
    for config in (decode(top_k=1), decode(temperature=1e-4), decode(temperature=1e-30), decode(top_p=1e-9)):
        for found, (best,) in zip(run(model, config, list(range(5))), greedy, strict=True):
            assert {h.tokens for h in found} == {best.tokens}


def test_shares_follow_the_probabilities() -> None:
    """Over many seeds, single-token responses are as frequent as the model says."""
    table = torch.tensor([0.0, 0.4, 0.5, 0.1]).log()
    step = lambda tokens, state: (table.expand(len(tokens), -1), state)  # noqa: E731
    config = decode(nbest=500, max_length=1)
    (found,) = sample(step, Hidden(torch.zeros(1, 1)), 1, config, Marks(BOS, EOS), seeds=[3])
    empty = sum(h.tokens == () for h in found) / 500
    ended = sum(h.finished for h in found) / 500
    assert abs(empty - 0.4) < 0.07  # more than three standard deviations
    assert abs(ended - (0.4 + 0.6 * 0.4)) < 0.07
    assert not any(h.tokens == (0,) for h in found)


def test_seeds_differ_and_repeat() -> None:
    assert torch.equal(uniforms([7], 3, 5), uniforms([8, 7], 3, 5)[1:])
    assert not torch.equal(uniforms([7], 3, 5), uniforms([8], 3, 5))
    assert uniforms([2**63 - 1, 0], 1, 1).shape == (2, 1, 1)


def test_a_dead_end_below_the_least_length_is_no_response() -> None:
    model = Recurrent(0, vocab=6, sources=1)
    (found,) = run(model, decode(min_length=5, no_repeat_ngram=1), [0])  # three words, then none is left
    assert found == []
    assert run(model, decode(), []) == []


def test_a_signal_ends_it_between_steps() -> None:
    model = Recurrent(0, vocab=4, sources=1)
    with pytest.raises(KeyboardInterrupt), signal_at(2, "apply"):
        sample(model.step, model.state(), 1, decode(), Marks(BOS, EOS), seeds=[0])
    assert len(model.calls) == 2
