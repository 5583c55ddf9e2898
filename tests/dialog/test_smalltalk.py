"""The built-in corpus: its true distribution is exact, needs nine utterances, and depends on them."""

import hashlib
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialog.batches import list_examples
from dialog.smalltalk import process
from dialog.smalltalk.grammar import DialogState
from dialog.smalltalk.process import (
    Process,
    default_process,
    generate_dialogs,
    log_prob,
    true_nll,
)
from dialog.utterance import Dialog, Utterance
from lm.errors import DataError
from lm.text.tokenizers import DIALOG, EOS, WordPunct

split = WordPunct().split


def next_token_distribution(
    context: Sequence[Utterance], responder: str, prefix: Sequence[str]
) -> dict[str, float]:
    """True P(next token) of a response after its first tokens, in any context."""
    state = default_process().grammar.state(context, responder)
    frontier = default_process().frontier(state)
    for token in prefix:
        probability, frontier = default_process().advance(state, frontier, token)
        assert probability, "the prefix cannot occur here"
    return default_process().distribution(state, frontier)


TINY = {
    "topics": {
        "food": {"things": ["pasta soup"], "qualities": "spicy", "doing": "eating", "did": "ate"},
        "pets": {"things": ["cats fish", "dogs"], "qualities": "furry", "doing": "feeding", "did": "fed"},
    },
    "labels": {"food": "food", "pets": "pets"},
    "words": {
        "qualities": "great bad",
        "negative": "bad",
        "people_she": "wife aunt",
        "people_he": "son",
        "people_any": "boss",
        "names_she": "ann sue",
        "names_he": "bob",
        "places": "rome oslo",
        "jobs": "cook vet",
        "numbers": "two ten",
    },
    "phrases": {
        "tag": "too | you know",
        "begin": "well | yeah | well yeah | yeah so",
        "when": "last week | last year",
        "sure": "yeah | so | well yeah | yeah so",
    },
    "empty": {"tag": 2, "begin": 2},
    "acts": {
        "ask": {
            "other": "asked",
            "opener": "begin",
            "templates": ["do you like {far}?", "do you like {new}?", "is {it} {quality}?"],
        },
        "yes": {
            "other": "told",
            "own": "telling",
            "opener": "begin",
            "likes": 1,
            "templates": [
                "yeah{tag}",
                "{sure}",
                "so i like {it}{tag}",
                "my {who} {name} {did} {new} {when}",
                "so {new} {new}",
            ],
        },
        "tell": {
            "other": "told",
            "own": "telling",
            "stays": 0.5,
            "opener": "begin",
            "templates": [
                "i like {new}",
                "yeah so i like {it}",
                "{quality} {old} you know",
                "my {who} in {place}",
            ],
        },
        "backchannel": {"templates": ["yeah", "well yeah", "{heard} yeah", "yeah you know"]},
        "repair": {"templates": ["{misheard} or {misheard}?"]},
        "repeat": {"templates": ["{heard}{tag}", "{heard} you know"]},
    },
    "situations": {
        "start": {"ask": 1, "tell": 1, "yes": 1},
        "asked": {"repair": 1, "yes": 3, "tell": 1},
        "asked_repeat": {"repeat": 1},
        "told": {"tell": 1, "backchannel": 2, "ask": 1, "yes": 1},
        "telling": {"tell": 1, "ask": 1},
    },
}


def say(*lines: str) -> list[Utterance]:
    """``"A: hello"`` … → utterances."""
    return [Utterance(speaker, text) for speaker, text in (line.split(": ", 1) for line in lines)]


@cache
def dialogs() -> list[Dialog]:
    return generate_dialogs("test", dialogs=16)


def derivations(process: Process, state: DialogState) -> Iterator[tuple[tuple[str, ...], float]]:
    """Every derivation's tokens and probability, by walking through the choices one after the other."""
    for act, p_act in process.acts(state):
        for template, p_template in process.templates(act, state):
            partial = [((), (), p_act * p_template)]
            for element in template.elements:
                grown = []
                for tokens, said, p in partial:
                    if not element.startswith("{"):
                        grown.append(((*tokens, element), said, p))
                        continue
                    for phrase, share in process.slots.options(element[1:-1], act, state, said).items():
                        words = tuple(word for word in phrase if word in process.lexicon.tag)
                        grown.append((tokens + phrase, said + words, p * share))
                partial = grown
            yield from ((tokens, p) for tokens, _, p in partial)


TINY_CONTEXTS = [
    [],
    say("A: do you like cats?"),
    say("A: i like cats"),
    say("A: yeah i like soup", "B: well do you like dogs?", "A: dogs or dogs?"),
    say("A: i like soup", "B: is soup bad?", "B: i like pasta", "A: my aunt in rome"),
    say("B: great cats you know", "A: yeah", "A: do you like pasta?", "B: pasta or soup?", "A: pasta"),
]


@pytest.mark.parametrize("context", TINY_CONTEXTS)
def test_forward_algorithm_equals_enumeration(context: list[Utterance]) -> None:
    process = Process(TINY)
    state = process.grammar.state(context, "B")
    strings: dict[tuple[str, ...], float] = defaultdict(float)
    for tokens, probability in derivations(process, state):
        strings[tokens] += probability
    possible = {tokens: p for tokens, p in strings.items() if p > 0.0}
    assert math.fsum(possible.values()) == pytest.approx(1.0, abs=1e-12)
    after: dict[tuple[str, ...], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for tokens, probability in possible.items():
        said = process.log_prob(context, Utterance("B", " ".join(tokens)))
        assert said == pytest.approx(math.log(probability), abs=1e-11)
        for at, token in enumerate((*tokens, EOS)):
            after[tokens[:at]][token] += probability
    for prefix, following in after.items():
        frontier = process.frontier(state)
        for token in prefix:
            _, frontier = process.advance(state, frontier, token)
        total = math.fsum(following.values())
        expected = {token: p / total for token, p in following.items()}
        assert process.distribution(state, frontier) == pytest.approx(expected, abs=1e-12)


def test_enumerated_grammar_is_ambiguous() -> None:
    process = Process(TINY)
    for context in TINY_CONTEXTS[1:5]:
        found = [tokens for tokens, p in derivations(process, process.grammar.state(context, "B")) if p > 0.0]
        assert len(set(found)) < len(found)


def test_generator_follows_the_distribution() -> None:
    process, draws = Process(TINY), 4000
    state = process.grammar.state(TINY_CONTEXTS[4], "B")
    source = random.Random(1)
    drawn = Counter(tuple(process.speak(state, source)[1]) for _ in range(draws))
    expected: dict[tuple[str, ...], float] = defaultdict(float)
    for tokens, probability in derivations(process, state):
        expected[tokens] += probability
    assert set(drawn) <= set(expected)
    likely = {tokens: p for tokens, p in expected.items() if p * draws >= 5}
    chi2 = sum((drawn[t] - draws * p) ** 2 / (draws * p) for t, p in likely.items())
    assert len(likely) > 50
    assert chi2 < len(likely) + 4 * math.sqrt(2 * len(likely))


def test_first_tokens_of_the_corpus_follow_the_distribution() -> None:
    context, draws = dialogs()[0].utterances[:6], 2000
    process, responder = default_process(), dialogs()[0].utterances[6].speaker
    state = process.grammar.state(context, responder)
    source = random.Random(2)
    drawn = Counter(process.speak(state, source)[1][0] for _ in range(draws))
    expected = next_token_distribution(context, responder, [])
    assert set(drawn) <= set(expected)
    for token, p in expected.items():
        assert abs(drawn[token] - draws * p) < 5 * math.sqrt(draws * p * (1 - p)) + 5, token


def test_distributions_sum_to_one_and_multiply_to_the_utterance() -> None:
    dialog = dialogs()[1]
    scores = log_prob(dialog)
    for turn in range(0, len(dialog.utterances), 4):
        context, utterance = dialog.utterances[:turn], dialog.utterances[turn]
        product, tokens = 1.0, (*split(utterance.text), EOS)
        for at, token in enumerate(tokens):
            distribution = next_token_distribution(context, utterance.speaker, tokens[:at])
            assert math.fsum(distribution.values()) == pytest.approx(1.0, abs=1e-12)
            assert min(distribution.values()) > 0.0
            product *= distribution[token]
        assert product == pytest.approx(math.exp(scores[turn]), rel=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("AB"), st.integers(0, 300) | st.text(max_size=20)), max_size=12))
def test_every_context_has_a_distribution(turns: list[tuple[str, int | str]]) -> None:
    texts = [utterance.text for dialog in dialogs() for utterance in dialog.utterances]
    context = [Utterance(speaker, text if isinstance(text, str) else texts[text]) for speaker, text in turns]
    distribution = next_token_distribution(context, "A", [])
    assert math.fsum(distribution.values()) == pytest.approx(1.0, abs=1e-12)


def test_nine_utterances_suffice() -> None:
    dialog = max(dialogs(), key=lambda dialog: len(dialog.utterances))
    said = dialog.utterances
    assert len(said) > 12
    for turn in range(10, len(said)):
        whole = next_token_distribution(said[:turn], said[turn].speaker, [])
        assert next_token_distribution(said[turn - 9 : turn], said[turn].speaker, []) == whole


def test_examples_of_a_model_hold_all_that_the_floor_needs() -> None:
    examples = list_examples(dialogs())
    assert any(example.context[0].text == DIALOG for example in examples)
    nll = -math.fsum(default_process().log_prob(e.context, e.response) for e in examples)
    tokens = sum(len(split(e.response.text)) + 1 for e in examples)
    assert true_nll(dialogs()) == (pytest.approx(nll, rel=1e-12), tokens)


def test_only_who_is_the_responder_counts() -> None:
    said = dialogs()[2].utterances
    swapped = [Utterance("B" if u.speaker == "A" else "A", u.text) for u in said]
    assert log_prob(Dialog("", "", tuple(swapped))) == log_prob(dialogs()[2])


def test_thing_mentioned_three_turns_ago_is_taken_up() -> None:
    def callback(thing: str) -> dict[str, float]:
        context = say(f"A: i really love {thing}", "B: oh wow", "A: my wife made great tacos yesterday")
        return next_token_distribution(context, "B", ["you", "said"])

    assert callback("salmon") == {"salmon": pytest.approx(1.0)}
    assert callback("noodles") == {"noodles": pytest.approx(1.0)}


def test_question_waits_for_its_answer_through_a_repair() -> None:
    def answer(question: str, thing: str) -> dict[str, float]:
        context = say(f"A: {question}", "B: sorry what was that?", f"A: i said {thing}")
        return next_token_distribution(context, "B", [])

    liked, when = answer("do kids like jazz?", "jazz"), answer("how long were you hearing loud jazz?", "jazz")
    assert liked["yes"] > 5 * when.get("yes", 1e-9)
    assert when["after"] > 5 * liked.get("after", 1e-9)
    yes = ["yes", "kids", "played"]
    context = say("A: do kids like jazz?", "B: sorry what was that?", "A: i said jazz")
    assert next_token_distribution(context, "B", yes) == {"jazz": pytest.approx(1.0)}


def test_earlier_mentions_shift_many_probabilities() -> None:
    def adjectives(thing: str, opinion: str) -> dict[str, float]:
        context = say(f"A: i {opinion} love {thing}", "B: uh huh")
        return next_token_distribution(context, "A", ["i", "think", thing, "can", "be", "really"])

    fond = adjectives("pasta", "really")
    other = adjectives("shrimp", "really")
    assert set(fond) == set(other)
    assert sum(fond[w] * math.log(fond[w] / other[w]) for w in fond) > 0.02


def test_associations_have_a_high_rank() -> None:
    lexicon = default_process().lexicon
    things = [thing for (thing,) in lexicon.lists["thing food"].phrases]
    log_probs = np.log([lexicon.associate(thing, "thing food", 0.7) for thing in things])
    assert np.linalg.matrix_rank(log_probs, tol=1e-3) > 30  # a softmax of 4 features reaches 6


def test_what_was_computed_before_changes_nothing() -> None:
    fresh = Process(process.load_word_tables())
    said = dialogs()[3].utterances
    scores = [fresh.log_prob(said[:turn], utterance) for turn, utterance in reversed([*enumerate(said)])]
    assert scores[::-1] == log_prob(dialogs()[3])
    used = Process(TINY)
    for context in (*TINY_CONTEXTS, *reversed(TINY_CONTEXTS)):
        state, new = used.grammar.state(context, "B"), Process(TINY)
        assert [*derivations(used, state)] == [*derivations(new, state)]


def test_corpus_is_the_same_everywhere() -> None:
    lines = [
        f"{u.speaker} {u.act} {u.text}" for d in generate_dialogs("train", dialogs=12) for u in d.utterances
    ]
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] == "3480192b57b2668c"


def test_splits_and_seeds_differ_and_smaller_is_a_prefix() -> None:
    few = generate_dialogs("valid", dialogs=4)
    assert few == generate_dialogs("valid", dialogs=6)[:4]
    others = [
        generate_dialogs("train", dialogs=4),
        generate_dialogs("test", dialogs=4),
        generate_dialogs("valid", dialogs=4, seed=1),
    ]
    texts = [[[u.text for u in d.utterances] for d in corpus] for corpus in (few, *others)]
    assert all(a[i] != b[i] for a, b in pairwise(texts) for i in range(4))
    assert len({d.id for corpus in (few, *others) for d in corpus}) == 16


def test_utterances_are_well_formed() -> None:
    process, misread, total = default_process(), 0, 0
    for dialog in dialogs():
        assert dialog.topic in process.lexicon.topics
        assert len(dialog.utterances) >= 10
        for utterance in dialog.utterances:
            tokens = split(utterance.text)
            assert 1 <= len(tokens) <= 30
            assert utterance.speaker in ("A", "B")
            assert utterance.act in process.grammar.acts
            read = process.grammar.read(utterance.text).act
            assert read
            misread += read != utterance.act
            total += 1
    assert misread < 0.04 * total  # the same words may serve two acts


def test_tables_are_consistent() -> None:
    process = default_process()
    lexicon, grammar = process.lexicon, process.grammar
    verbs = {"did", "doing"}  # whether a template or a slot says them makes no difference to the state
    homes: dict[str, set[str]] = defaultdict(set)
    for name, support in lexicon.lists.items():
        for phrase in support.phrases:
            for word in phrase:
                tag = name.split()[0]
                homes[word].add(tag if name.split()[0] != "thing" else name)
                assert tag == lexicon.tag.get(word, tag) or lexicon.tag[word] in verbs, (name, phrase)
    for word, tag in lexicon.tag.items():
        assert len(homes[word]) == 1 or tag in verbs, word
    for act in grammar.acts.values():
        assert any(act.name in table for table in grammar.situations.values())
        assert {act.other, act.own} - {""} <= set(grammar.situations)
        for template in act.templates:
            literals = [element for element in template.elements if not element.startswith("{")]
            assert all(lexicon.tag.get(word, "did") in verbs for word in literals), template.text
    for situation, table in grammar.situations.items():
        free = [name for name in table if any(not t.needs for t in grammar.acts[name].templates)]
        assert free or situation == "asked_repeat"


def test_size_and_floor() -> None:
    corpus = generate_dialogs("train", dialogs=120)
    counts = Counter(token for d in corpus for u in d.utterances for token in [*split(u.text), EOS])
    assert 2000 < len(counts) < 3000
    total = counts.total()
    unigram = math.exp(-sum(n * math.log(n / total) for n in counts.values()) / total)
    nll, tokens = true_nll(dialogs())
    floor = math.exp(nll / tokens)
    assert 7.5 < floor < 10.0
    assert unigram > 20 * floor


@pytest.mark.slow
def test_default_sizes() -> None:
    sizes = {name: generate_dialogs(name) for name in ("train", "valid", "test")}
    assert {name: len(corpus) for name, corpus in sizes.items()} == {"train": 800, "valid": 100, "test": 100}
    tokens = sum(len(split(u.text)) + 1 for d in sizes["train"] for u in d.utterances)
    assert 150_000 < tokens < 220_000
    contexts = {tuple(u.text for u in d.utterances[:6]) for d in sizes["train"]}
    assert not contexts & {tuple(u.text for u in d.utterances[:6]) for d in sizes["test"] + sizes["valid"]}


def test_bad_input_is_named() -> None:
    with pytest.raises(DataError, match=r"smalltalk:tset: no such split"):
        generate_dialogs("tset")
    begun = "B: hi this is rose", "A: hello rose i am jerry a journalist"
    for place, possible in ("annapolis", True), ("massachusetts", False), ("a quark", False):
        said = say(*begun, f"B: are you north of massachusetts or near {place}?", "A: bye")
        strange = Dialog("x\x1b[2J", "", tuple(said))
        assert (log_prob(strange)[2] > -math.inf) == possible
    with pytest.raises(DataError, match=r"^x\\x1b\[2J: not a dialog of the built-in corpus"):
        true_nll([strange])
