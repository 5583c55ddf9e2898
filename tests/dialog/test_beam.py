"""Beam search against brute force, greedy decoding and stepping, on small models with state."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dialog.decoding.beam import beam_search
from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Hypothesis, Marks
from lm.errors import DivergenceError
from lm.heads.sampling import ranked
from tests.support.signals import signal_at
from tests.support.toy_decoder import BOS, EOS, Hidden, Recurrent, assert_same, decode, repeats


def brute_force(model: Recurrent, source: int, vocab: int, config: DecodeConfig) -> list[Hypothesis]:
    """The best of all responses, scored one by one."""
    found = []
    for length in range(config.max_length + 1):
        for tokens in itertools.product(range(EOS + 1, vocab), repeat=length):
            if config.no_repeat_ngram and repeats(tokens, config.no_repeat_ngram):
                continue
            if length >= config.min_length:
                total = model.log_prob(source, tokens)
                score = total / (length + 1) ** config.length_penalty
                found.append(Hypothesis(tokens, total, score, finished=True))
    return sorted(found, key=lambda h: -h.score)[: config.nbest]


@pytest.mark.parametrize("penalty", [0.0, 0.7, 1.5])
@pytest.mark.parametrize(("ngram", "min_length"), [(0, 0), (1, 0), (2, 2)])
@pytest.mark.parametrize("nbest", [1, 4, 12])
def test_a_wide_beam_is_exhaustive(penalty: float, ngram: int, min_length: int, nbest: int) -> None:
    config = decode(
        beam=200,
        nbest=nbest,
        max_length=4,
        length_penalty=penalty,
        no_repeat_ngram=ngram,
        min_length=min_length,
    )
    for seed in range(2):
        model = Recurrent(seed, vocab=5, sources=2)
        for source, found in enumerate(model.search(config, range(2))):
            assert_same(found, brute_force(model, source, 5, config))


def test_everything_is_returned_when_more_is_asked_for_than_exists() -> None:
    model = Recurrent(0, vocab=3, sources=1)
    (found,) = model.search(decode(beam=9, nbest=50, max_length=2), [0])
    assert sorted(h.tokens for h in found) == [(), (2,), (2, 2)]
    (found,) = model.search(decode(beam=9, nbest=50, max_length=2, min_length=2), [0])
    assert [(h.tokens, h.finished) for h in found] == [((2, 2), True)]


def test_beam_one_is_greedy() -> None:
    config = decode(beam=1, nbest=1, max_length=8)
    model = Recurrent(3, vocab=9, sources=20)
    endings = set()
    for source, (found,) in enumerate(model.search(config, range(20))):
        state, tokens, last = model.state([source]), [], BOS
        for _ in range(9):
            log_probs, state = model.step(torch.tensor([last]), state)
            log_probs[0, BOS] = -math.inf
            last = int(log_probs.argmax())
            if last == EOS or len(tokens) == 8:
                break
            tokens.append(last)
        assert found.tokens == tuple(tokens)
        assert found.finished == (last == EOS)
        endings.add(found.finished)
    assert endings == {True, False}


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    sources=st.permutations(range(6)),
    cut=st.integers(1, 5),
    beam=st.integers(1, 7),
    nbest=st.integers(1, 9),
    penalty=st.sampled_from([0.0, 1.0]),
)
def test_batch_mates_and_order_change_nothing(
    seed: int, sources: list[int], cut: int, beam: int, nbest: int, penalty: float
) -> None:
    config = decode(beam=beam, nbest=nbest, length_penalty=penalty, no_repeat_ngram=2)
    model = Recurrent(seed, vocab=12, sources=6)
    together = model.search(config, range(6))
    apart = model.search(config, sources[:cut]) + model.search(config, sources[cut:])
    for source, found in zip(sources, apart, strict=True):
        assert_same(found, together[source])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    beam=st.integers(1, 6),
    nbest=st.integers(1, 8),
    penalty=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    ngram=st.integers(0, 3),
    min_length=st.integers(0, 4),
)
def test_every_answer_obeys_the_rules(
    seed: int, beam: int, nbest: int, penalty: float, ngram: int, min_length: int
) -> None:
    config = decode(
        beam=beam, nbest=nbest, length_penalty=penalty, no_repeat_ngram=ngram, min_length=min_length
    )
    model = Recurrent(seed, vocab=8, sources=3, sharpness=4.0)
    for source, found in enumerate(model.search(config, range(3), forbidden=(BOS, 5))):
        assert 0 < len(found) <= nbest
        assert len({(h.tokens, h.finished) for h in found}) == len(found)
        assert found == sorted(found, key=lambda h: (not h.finished, -h.score))
        for hypothesis in found:
            length = len(hypothesis.tokens)
            assert not {BOS, EOS, 5} & set(hypothesis.tokens)
            assert length <= 6
            assert length >= min_length if hypothesis.finished else length == 6
            assert not (ngram and repeats(hypothesis.tokens, ngram))
            expected = model.log_prob(source, hypothesis.tokens, finished=hypothesis.finished)
            assert hypothesis.log_prob == pytest.approx(expected, abs=1e-9)
            assert hypothesis.score == hypothesis.log_prob / (length + hypothesis.finished) ** penalty


def never_stopping(model: Recurrent, source: int, vocab: int, config: DecodeConfig) -> list[Hypothesis]:
    """The same search in plain Python, run to the full length without any stopping rule."""
    live: list[tuple[float, tuple[int, ...], Hidden, int]] = [(0.0, (), model.state([source]), BOS)]
    finished: list[Hypothesis] = []
    for length in range(config.max_length + 1):
        candidates = []
        for total, tokens, state, last in live:
            log_probs, after = model.step(torch.tensor([last]), state)
            candidates += [
                (total + float(log_probs[0, token]), tokens, after, token) for token in range(EOS, vocab)
            ]
        candidates.sort(key=lambda c: -c[0])
        for total, tokens, _, token in candidates[: config.beam]:
            if token == EOS:
                score = total / (length + 1) ** config.length_penalty
                finished.append(Hypothesis(tokens, total, score, finished=True))
        if length < config.max_length:
            going = [c for c in candidates[: 2 * config.beam] if c[3] != EOS][: config.beam]
            live = [(total, (*tokens, token), state, token) for total, tokens, state, token in going]
    ended = {h.tokens for h in finished}
    left = [
        Hypothesis(t, p, p / len(t) ** config.length_penalty, False) for p, t, _, _ in live if t not in ended
    ]
    return (sorted(finished, key=lambda h: -h.score) + left)[: config.nbest]


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize(("beam", "nbest"), [(1, 1), (3, 2), (4, 9)])
def test_stopping_early_loses_nothing(penalty: float, beam: int, nbest: int) -> None:
    config = decode(beam=beam, nbest=nbest, length_penalty=penalty, max_length=7)
    for seed in range(5):
        model = Recurrent(seed, vocab=7, sources=2, sharpness=1.0)
        for source, found in enumerate(model.search(config, range(2))):
            assert_same(found, never_stopping(model, source, 7, config))


def test_stops_early_and_settled_sources_leave_the_work() -> None:
    model = Recurrent(1, vocab=9, sources=8)
    model.search(decode(beam=4, nbest=2, max_length=40), range(8))
    assert model.calls[:2] == [8, 32]  # one row a source before the beams part
    assert model.calls[1:] == sorted(model.calls[1:], reverse=True)
    assert model.calls[-1] < 32
    sure = torch.tensor([0.0, 0.6, 0.4]).log()
    calls = []

    def step(tokens: Tensor, state: Hidden) -> tuple[Tensor, Hidden]:
        calls.append(len(tokens))
        return sure.expand(len(tokens), -1), state

    (found,) = beam_search(step, Hidden(torch.zeros(1, 1)), 1, decode(beam=2, nbest=2), Marks(BOS, EOS))
    assert [h.tokens for h in found] == [(), (2,)]  # 0.6 and 0.24, then 0.16 is left
    assert len(calls) == 2


def test_equal_scores_are_ordered_by_token() -> None:
    table = torch.full((10,), -math.log(9.0))
    table[BOS] = -math.inf
    constant = lambda tokens, state: (table.expand(len(tokens), -1), state)  # noqa: E731
    (found,) = beam_search(
        constant, Hidden(torch.zeros(1, 1)), 1, decode(max_length=1, beam=3), Marks(BOS, EOS)
    )
    assert [h.tokens for h in found] == [(), (2,), (3,)]
    values = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0, 2.0], [0.0, 1.0, 1.0, 3.0, 1.0, 1.0]])
    assert ranked(values, 3)[1].tolist() == [[1, 2, 3], [3, 1, 2]]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.integers(-2, 2), min_size=7, max_size=7), min_size=1, max_size=4), st.integers(1, 7)
)
def test_ranked_is_the_stable_sort(rows: list[list[int]], count: int) -> None:
    values = torch.tensor(rows, dtype=torch.float32)
    expected = values.sort(dim=1, descending=True, stable=True)
    best, index = ranked(values, count)
    assert torch.equal(best, expected.values[:, :count])
    assert torch.equal(index, expected.indices[:, :count])


def test_nothing_possible_is_an_empty_list() -> None:
    model = Recurrent(0, vocab=4, sources=2)
    config = decode(min_length=3, no_repeat_ngram=1)  # two words cannot make three different ones
    assert model.search(config, [0, 1]) == [[], []]
    assert model.search(config, []) == []


def test_the_model_is_left_alone() -> None:
    table = torch.log_softmax(torch.randn(5, generator=torch.Generator().manual_seed(0)), 0).repeat(4, 1)
    before = table.clone()
    step = lambda tokens, state: (table[: len(tokens)], state)  # noqa: E731
    config = decode(beam=2, min_length=2, no_repeat_ngram=1)
    beam_search(step, Hidden(torch.zeros(2, 1)), 2, config, Marks(BOS, EOS, (BOS,)))
    assert torch.equal(table, before)


def test_a_broken_model_is_named() -> None:
    broken = lambda tokens, state: (torch.full((len(tokens), 5), math.nan), state)  # noqa: E731
    with pytest.raises(DivergenceError, match="checkpoint"):
        beam_search(broken, Hidden(torch.zeros(1, 1)), 1, decode(), Marks(BOS, EOS))


def test_a_signal_ends_it_between_steps() -> None:
    model = Recurrent(0, vocab=9, sources=1)
    with pytest.raises(KeyboardInterrupt), signal_at(2, "extend"):
        beam_search(model.step, model.state(), 1, decode(), Marks(BOS, EOS))
    assert len(model.calls) == 2
