"""Rules on responses, and diverse groups, against brute force on small models with state."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dialog.decoding.beam import beam_search, groups_in_turn
from dialog.decoding.config import DecodeConfig
from dialog.decoding.sampling import sample
from dialog.decoding.steps import Hypothesis, Marks, Texts
from dialog.decoding.words import texts_of
from lm.config.load import load_config
from lm.errors import ConfigError
from lm.text.tokenizers import DIALOG
from lm.text.vocabulary import build_codec
from tests.support.decoding_rules import CASES, VOCAB, has, obeys, search
from tests.support.toy_decoder import BOS, EOS, Hidden, Recurrent, decode


@pytest.mark.parametrize(("config", "texts"), CASES)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_wide_beam_finds_the_best_that_obey(config: DecodeConfig, texts: Texts, groups: int) -> None:
    length = {"max_length": 4, "nbest": 7, "beam": 280 * groups, "groups": groups, "diversity": 1e-3}
    config = config.model_copy(update=length)
    for seed in range(2):
        model = Recurrent(seed, vocab=VOCAB, sources=2)
        for source, found in enumerate(search(model, config, texts)):
            every = [
                tokens
                for size in range(5)
                for tokens in itertools.product(range(2, VOCAB), repeat=size)
                if obeys(tokens, source, config, texts)
            ]
            best = sorted(every, key=lambda tokens: -model.log_prob(source, tokens))[:7]
            assert [h.tokens for h in found if h.finished] == best[: len(found)]
            assert len(found) == min(7, len(every))
            for hypothesis in found:
                assert hypothesis.log_prob == pytest.approx(
                    model.log_prob(source, hypothesis.tokens), abs=1e-9
                )


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    beam=st.sampled_from([2, 4, 6]),
    groups=st.sampled_from([1, 2]),
    case=st.integers(0, len(CASES) - 1),
    method=st.sampled_from(["beam", "sample"]),
)
def test_every_answer_obeys_in_any_batch(seed: int, beam: int, groups: int, case: int, method: str) -> None:
    config, texts = CASES[case]
    config = config.model_copy(update={"beam": beam, "groups": groups})
    model = Recurrent(seed, vocab=VOCAB, sources=2, sharpness=1.0)
    marks = Marks(BOS, EOS, (BOS,))

    def run(sources: Sequence[int]) -> list:
        if method == "beam":
            return search(model, config, texts, sources)
        own = [texts.contexts[source] for source in sources] if texts.contexts else ()
        state = model.state(sources)
        return sample(
            model.step, state, len(sources), config, marks, list(sources), texts._replace(contexts=own)
        )

    together = run([0, 1])
    assert together == run([0]) + run([1])
    for source, found in enumerate(together):
        assert found or method == "sample", "rules may leave no sample"
        for hypothesis in found:
            assert obeys(hypothesis.tokens, source, config, texts)


def test_samples_that_the_rules_leave_without_a_next_token_are_dropped() -> None:
    model, marks = Recurrent(1, vocab=VOCAB, sources=1, sharpness=1.0), Marks(BOS, EOS, (BOS,))
    settings = {"method": "sample", "nbest": 20, "max_length": 8, "no_repeat_ngram": 1}
    forbidden = Texts(require=[[4, 5]], contexts=[[[4]]])
    for config, texts in (
        (decode(**settings, block_context_ngram=1), forbidden),
        (decode(**settings, min_length=8), Texts()),
    ):
        assert sample(model.step, model.state([0]), 1, config, marks, [1], texts) == [[]]


def test_a_beginning_that_the_model_rules_out_leaves_no_response() -> None:
    model, marks, texts = Recurrent(1, vocab=VOCAB, sources=1), Marks(BOS, EOS, (BOS,)), Texts([3, 4])

    def step(last: torch.Tensor, state: Hidden) -> tuple[torch.Tensor, Hidden]:
        log_probs, state = model.step(last, state)
        return log_probs.index_fill(1, torch.tensor([4]), -torch.inf), state

    config = decode(method="sample", nbest=3, max_length=5)
    assert sample(step, model.state([0]), 1, config, marks, [1], texts) == [[]]
    assert beam_search(step, model.state([0]), 1, config, marks, texts) == [[]]


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("phrases", [[[5, 5], [3, 2, 4]], [[4, 2], [4, 3]]])
def test_samples_have_what_is_required_and_the_best_score_comes_first(
    phrases: list[list[int]], penalty: float
) -> None:
    texts, marks = Texts(require=phrases), Marks(BOS, EOS, (BOS,))
    settings = {"nbest": 40, "max_length": 5, "length_penalty": penalty, "method": "sample"}
    ends = set()
    for seed in range(3):
        model = Recurrent(seed, vocab=VOCAB, sources=2, sharpness=1.0)
        for found in sample(model.step, model.state([0, 1]), 2, decode(**settings), marks, [1, 2], texts):
            assert len(found) == 40, "no sample without room for the rest"
            assert all(has(h.tokens, phrase) for h in found for phrase in phrases)
            ends |= {h.finished for h in found}
            for one in found:
                length = len(one.tokens) + one.finished
                assert one.score == pytest.approx(one.log_prob / length**penalty)
            order = [(not one.finished, -one.score) for one in found]
            assert order == sorted(order)
    assert ends == {True, False}


@pytest.mark.parametrize("phrases", [[[5, 5], [3, 2, 4]], [[4, 2], [4, 3]], [[4, 4], [4, 5], [4]]])
def test_a_narrow_beam_places_what_is_required(phrases: list[list[int]]) -> None:
    """Also improbable phrases, phrases that begin alike, and those whose last token is at full length."""
    for seed in range(5):
        model = Recurrent(seed, vocab=VOCAB, sources=2, sharpness=6.0)
        for beam in (1, 2, 3):
            config = decode(beam=beam, nbest=2, max_length=5)
            for found in search(model, config, Texts(require=phrases)):
                assert found
                assert all(has(h.tokens, phrase) for h in found for phrase in phrases)


def diverse(model: Recurrent, source: int, config: DecodeConfig) -> list[list[Hypothesis]]:
    """The live hypotheses of every group after each step, in plain Python, with the hypotheses that end."""
    each, groups = config.beam // config.groups, config.groups
    start = (0.0, 0.0, (), model.state([source]), BOS)
    live: list[list[tuple]] = [[start] for _ in range(groups)]
    finished: list[list[Hypothesis]] = [[] for _ in range(groups)]
    for length in range(config.max_length + 1):
        taken: dict[int, int] = {}
        for group in range(groups):
            candidates = []
            for merit, total, tokens, state, last in live[group]:
                log_probs, after = model.step(torch.tensor([last]), state)
                for token in range(EOS, VOCAB):
                    gained = float(log_probs[0, token])
                    worth = merit + gained - config.diversity * taken.get(token, 0)
                    candidates.append((worth, total + gained, (*tokens, token), after, token))
            candidates.sort(key=lambda c: -c[0])
            for _, total, tokens, _, token in candidates[:each]:
                if token == EOS:
                    finished[group].append(Hypothesis(tokens[:-1], total, total, finished=True))
            live[group] = [c for c in candidates[: 2 * each] if c[4] != EOS][:each]
            if length < config.max_length:
                for one in live[group]:
                    taken[one[4]] = taken.get(one[4], 0) + 1
    return [sorted(found, key=lambda h: -h.score) for found in finished]


@pytest.mark.parametrize("strength", [0.0, 0.4, 3.0])
def test_diverse_groups_are_the_plain_formula(strength: float) -> None:
    config = decode(beam=6, groups=3, diversity=strength, nbest=40, max_length=4)
    for seed in range(3):
        model = Recurrent(seed, vocab=VOCAB, sources=2, sharpness=1.0)
        for source, found in enumerate(search(model, config, Texts())):
            groups = diverse(model, source, config)
            expected = {h.tokens: h.log_prob for group in groups for h in group}
            mine = {h.tokens: h.log_prob for h in found if h.finished}
            assert mine.keys() == expected.keys()
            assert all(mine[tokens] == pytest.approx(expected[tokens], abs=1e-9) for tokens in mine)
            assert [h.score for h in found if h.finished] == sorted(h.score for h in found if h.finished)[
                ::-1
            ]


def test_the_list_takes_the_groups_in_turn() -> None:
    """A response of several groups counts where it comes first."""

    def one(*tokens: int, score: float) -> Hypothesis:
        return Hypothesis(tokens, score, score, finished=True)

    a, b, c = one(5, score=-1.0), one(6, score=-2.0), one(7, score=-3.0)
    groups = [[[a, c]], [[b, a]]]
    for nbest, expected in enumerate([[a], [a, b], [a, b, c], [a, b, c]], start=1):
        assert groups_in_turn(groups, nbest) == [expected]


def test_groups_make_the_list_diverse() -> None:
    def firsts(**more: object) -> float:
        config = decode(beam=8, nbest=4, max_length=6, min_length=2, **more)
        lists = model.search(config, range(20))
        return sum(len({h.tokens[0] for h in found}) for found in lists) / 20

    model = Recurrent(0, vocab=12, sources=20, sharpness=1.0)
    assert firsts(groups=4, diversity=2.0) > firsts() + 0.5


def test_rules_that_are_off_leave_the_bits() -> None:
    model = Recurrent(0, vocab=9, sources=4)
    plain = model.search(decode(), range(4))
    assert search(model, decode(diversity=0.5), Texts(contexts=[[]] * 4), range(4)) == plain
    table = torch.log_softmax(torch.randn(5, generator=torch.Generator().manual_seed(0)), 0).repeat(4, 1)
    before = table.clone()
    step = lambda tokens, state: (table if len(tokens) == 4 else table[:2], state)  # noqa: E731
    texts = Texts([2], [[3]], [[4], [2, 2]], [[[2, 3]]] * 2)
    beam_search(
        step, Hidden(torch.zeros(2, 1)), 2, decode(beam=2, block_context_ngram=2), Marks(BOS, EOS), texts
    )
    assert torch.equal(table, before)


def test_words_become_tokens_or_are_refused() -> None:
    codec = build_codec(
        "wordpunct",
        ["i like rain . you like snow ."],
        vocab_size=50,
        extra_counts={"<s>": 9, "</s>": 9, DIALOG: 9},
    )
    vocabulary = codec.vocabulary
    marks = Marks(vocabulary.bos, vocabulary.eos, vocabulary.ids(["<pad>", "<s>", DIALOG]))

    def texts(**keys: object) -> Texts:
        heard = (marks.bos, *codec.encode("you like rain"), marks.eos, *codec.encode("snow"), marks.eos)
        return texts_of(decode(max_length=5, **keys), codec, marks, [[heard]])

    found = texts(begin="I like", require=["snow"], forbid=["rain .", "zebra", "you"], block_context_ngram=2)
    assert [codec.decode(ids) for ids in found.forbid] == ["rain.", "you"], "an unknown word cannot occur"
    assert codec.decode(found.begin) == "i like"
    parts = [codec.encode("you like rain"), codec.encode("snow")]
    assert found.contexts == [parts], "as the prompt of a chat template, which is one utterance"
    assert texts().contexts == []
    unknown = vocabulary.unk
    found = texts(forbid=["<unk>", "i <unk>", "zebra <unk>"])
    assert found.forbid == [[unknown], [*codec.encode("i"), unknown]], "responses can contain <unk> itself"
    assert texts(begin="i like rain .", require=["like rain"]).require, "the beginning has it"
    for phrases in (["i like you like", "you like"], ["rain", "i like you", "rain", "like"]):
        assert len(texts(require=phrases).require) == len(phrases), "what another contains takes no room"
    for keys, message in [
        ({"require": ["rain you like", "like i like"]}, r"have 6 tokens, more than .* = 5"),
        ({"require": ["a zebra"]}, r"decode\.require 'a zebra': not in the run's vocabulary"),
        ({"require": ["é" * 999]}, r"decode\.require 'é{60}': not in the run's vocabulary"),
        ({"require": ["a <unk>"]}, r"decode\.require 'a <unk>': not in the run's vocabulary"),
        ({"begin": "<s> you"}, r"decode\.begin '<s> you': not in"),
        ({"begin": "i like", "require": ["you like", "rain ."]}, r"have 6 tokens, more than .* = 5"),
        ({"begin": "i like rain", "forbid": ["like rain"]}, r"decode\.begin contains 'like rain', which"),
        ({"require": ["rain"], "forbid": ["Rain"]}, r"decode\.require contains 'rain', which decode\.forbid"),
    ]:
        with pytest.raises(ConfigError, match=message):
            texts(**keys)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("decode.groups=3", r"groups: must divide beam = 5, got 3"),
        ("decode.diversity=2.0", r"diversity: does nothing with groups = 1"),
        ('decode.forbid=["a", " "]', "forbid: has an empty phrase"),
        ("decode.require=rain", r"decode\.require: must be a list"),
    ],
)
def test_what_conflicts_is_refused(setting: str, message: str) -> None:
    from dialog.config import DialogConfig

    with pytest.raises(ConfigError, match=message):
        load_config("smalltalk_softmax", DialogConfig, family="dialog", overrides=[setting])
    more = ["decode.method=sample", "decode.groups=5"]
    with pytest.raises(ConfigError, match=r"groups belongs to decode\.method = beam; decode\.method is samp"):
        load_config("smalltalk_softmax", DialogConfig, family="dialog", overrides=more)
