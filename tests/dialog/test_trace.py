"""The record of a beam search: what it shows is what the search did, under every rule."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialog.decoding.beam import beam_search
from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Marks, Texts
from dialog.decoding.trace import BeamTrace, Candidate
from tests.support.decoding_rules import CASES, obeys, search
from tests.support.toy_decoder import BOS, EOS, Recurrent, decode

EXTRA = [(decode(min_length=3), Texts()), (decode(no_repeat_ngram=1), Texts()), (decode(beam=1), Texts())]


def traced(
    model: Recurrent, config: DecodeConfig, texts: Texts
) -> tuple[list[list[Candidate]], list[tuple[tuple[int, ...], bool]]]:
    trace = BeamTrace()
    own = texts._replace(contexts=texts.contexts[:1])
    (found,) = beam_search(model.step, model.state([0]), 1, config, Marks(BOS, EOS, (BOS,)), own, trace)
    assert [found] == search(model, config, texts, [0]), "the record changes nothing"
    return trace.steps, [(one.tokens, one.finished) for one in found]


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    groups=st.sampled_from([1, 2]),
    case=st.sampled_from([*CASES, *EXTRA]),
)
def test_every_step_shows_what_the_search_kept_ended_and_dropped(
    seed: int, groups: int, case: tuple[DecodeConfig, Texts]
) -> None:
    config, texts = case
    config = config.model_copy(update={"groups": groups if config.beam > 1 else 1})
    model = Recurrent(seed, vocab=6, sources=2, sharpness=1.0)
    steps, found = traced(model, config, texts)
    free = texts._replace(require=())
    for place, step in enumerate(steps):
        assert sum(one.fate == "kept" for one in step) <= config.beam
        assert [one.log_prob for one in step] == sorted((one.log_prob for one in step), reverse=True)
        for one in step:
            ends = len(one.tokens) == place
            assert one.log_prob == pytest.approx(model.log_prob(0, one.tokens, finished=ends), abs=1e-9)
            begun = free._replace(begin=texts.begin[: len(one.tokens)])
            assert obeys(one.tokens, 0, config, begun), "what a rule excludes is not shown"
            assert not ends or len(one.tokens) >= config.min_length
            before = {other.tokens for other in steps[place - 1] if other.fate == "kept"} if place else {()}
            assert one.tokens[: place if ends else -1] in before
    for tokens, finished in found:
        for size in range(1, len(tokens) + 1):
            assert tokens[:size] in {one.tokens for one in steps[size - 1] if one.fate == "kept"}
        if finished:
            assert tokens in {one.tokens for one in steps[len(tokens)] if one.fate == "ended"}
