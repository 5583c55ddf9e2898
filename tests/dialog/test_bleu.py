"""Sentence BLEU: equal to NLTK where NLTK is the definition, to published values where it no longer is."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialog.metrics.bleu import ContextScores, bleu_by_context, count_overlaps, pair_scores, sentence_bleu
from lm.errors import DataError
from tests.support.plain_bleu import legacy_bleu, nltk_bleu

words = st.lists(st.sampled_from(["the", "cat", "sat", "on", "mat"]), max_size=12)
some = st.lists(words, min_size=1, max_size=4)
VERSIONS = [(variant, weights) for variant in ("nltk", "legacy") for weights in ("padded", "short")]


@pytest.mark.parametrize("weights", ["padded", "short"])
@settings(max_examples=150, deadline=None)
@given(reference=words, hypothesis=words, order=st.integers(1, 4))
def test_equals_nltk(weights: str, reference: list[str], hypothesis: list[str], order: int) -> None:
    expected = nltk_bleu(reference, hypothesis, order, weights) if reference or hypothesis else 0.0
    assert sentence_bleu(reference, hypothesis, order, "nltk", weights) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("weights", ["padded", "short"])
@settings(max_examples=150, deadline=None)
@given(reference=words, hypothesis=words, order=st.integers(1, 4))
def test_legacy_equals_the_plain_formula(
    weights: str, reference: list[str], hypothesis: list[str], order: int
) -> None:
    overlaps = count_overlaps([[hypothesis]], [[reference]])
    actual = sentence_bleu(reference, hypothesis, order, "legacy", weights)
    try:
        expected = legacy_bleu(reference, hypothesis, order, weights)
    except ZeroDivisionError:
        assert overlaps.edge_cases["legacy_undefined_pairs"] == 1
        assert overlaps.legacy_undefined_share == 1
        assert actual == 0  # as Zhao et al.'s `except: 0`
    else:
        assert actual == pytest.approx(expected, abs=1e-12)


EIGHT = ["a", "b", "c", "d", "e", "f", "g", "h"]
ONE_MATCH = (["u", "v", "w", "x", "y", "z"], ["u", "1", "2", "3", "4", "5"])


@pytest.mark.parametrize(
    ("variant", "reference", "hypothesis", "expected"),
    [
        ("nltk", EIGHT, EIGHT, (1.3333, 1.2172, 1.1539, 1.1167)),
        ("legacy", EIGHT, EIGHT, (1.3333, 1.2172, 1.1539, 1.1167)),
        ("legacy", *ONE_MATCH, (0.5324, 0.4223, 0.3492, 0.2765)),
        ("nltk", *ONE_MATCH, (0.4564, 0.2798, 0.1760, 0.1113)),
    ],
)
def test_reference_values(
    variant: str, reference: list[str], hypothesis: list[str], expected: tuple[float, ...]
) -> None:
    scores = [sentence_bleu(reference, hypothesis, order, variant, "padded") for order in (1, 2, 3, 4)]
    assert scores == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("reference", [["yeah"], ["yeah", "right"]])
def test_a_single_token_scores_today_and_not_in_the_published_numbers(reference: list[str]) -> None:
    brevity = math.exp(1 - len(reference))
    for order, expected in ((1, 1.0), (2, math.sqrt(1 / 3)), (4, (1 / 3 / 9 / 27) ** 0.25)):
        today = sentence_bleu(reference, ["yeah"], order, "nltk", "padded")
        assert today == pytest.approx(brevity * expected)
        assert sentence_bleu(reference, ["yeah"], order, "legacy", "padded") == 0
        short = sentence_bleu(reference, ["yeah"], order, "legacy", "short")
        assert short == (pytest.approx(brevity) if order == 1 else 0)  # BLEU-1 lacks no order


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=40, deadline=None)
@given(hypotheses=some, references=some, seed=st.integers(0, 99))
def test_order_and_duplicates(
    version: tuple[str, str], hypotheses: list[list[str]], references: list[list[str]], seed: int
) -> None:
    """Order changes nothing; a repeated reference leaves precision, a repeated hypothesis leaves recall."""

    def score(h: list[list[str]], r: list[list[str]]) -> ContextScores:
        return bleu_by_context(count_overlaps([h], [r]), *version)

    rng = random.Random(seed)
    plain = score(hypotheses, references)
    mixed = score(rng.sample(hypotheses, len(hypotheses)), rng.sample(references, len(references)))
    np.testing.assert_allclose(mixed.precision, plain.precision, atol=1e-12)
    np.testing.assert_allclose(mixed.recall, plain.recall, atol=1e-12)
    more_references = score(hypotheses, [*references, rng.choice(references)])
    np.testing.assert_allclose(more_references.precision, plain.precision, atol=1e-12)
    more_hypotheses = score([*hypotheses, rng.choice(hypotheses)], references)
    np.testing.assert_allclose(more_hypotheses.recall, plain.recall, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(groups=st.lists(st.tuples(some, some), min_size=1, max_size=5))
def test_precision_and_recall_are_means_of_maxima(
    groups: list[tuple[list[list[str]], list[list[str]]]],
) -> None:
    hypotheses, references = [h for h, _ in groups], [r for _, r in groups]
    scores = bleu_by_context(count_overlaps(hypotheses, references), "legacy", "padded")
    for context, (answers, targets) in enumerate(groups):
        table = np.array([[sentence_bleu(r, h, 2, "legacy", "padded") for r in targets] for h in answers])
        assert scores.precision[context, 1] == pytest.approx(table.max(1).mean(), abs=1e-12)
        assert scores.recall[context, 1] == pytest.approx(table.max(0).mean(), abs=1e-12)
    summary = scores.summary()["2"]
    precision, recall = scores.precision[:, 1].mean(), scores.recall[:, 1].mean()
    assert (summary.precision, summary.recall) == pytest.approx((precision, recall))
    assert summary.f1 * (precision + recall) == pytest.approx(2 * precision * recall)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=40, deadline=None)
@given(hypotheses=some, reference=words)
def test_with_one_reference_recall_is_never_below_precision(
    version: tuple[str, str], hypotheses: list[list[str]], reference: list[str]
) -> None:
    scores = bleu_by_context(count_overlaps([hypotheses], [[reference]]), *version)
    assert (scores.recall >= scores.precision - 1e-12).all()


def test_with_several_references_precision_can_be_higher() -> None:
    overlaps = count_overlaps([[["yeah"]]], [[["yeah"], ["no", "way"], ["who", "knows"]]])
    scores = bleu_by_context(overlaps).summary()["1"]
    assert scores.precision == pytest.approx(1.0)
    assert scores.recall == pytest.approx(1 / 3)


def test_edge_cases_are_counted() -> None:
    overlaps = count_overlaps(
        [[[], ["yeah"], ["no", "way"]], [["right"]]], [[["yeah"], []], [["well", "right"]]]
    )
    assert overlaps.edge_cases == {
        "empty_hypotheses": 1,
        "single_token_hypotheses": 2,
        "empty_references": 1,
        "legacy_undefined_pairs": 2,
    }
    assert overlaps.legacy_undefined_share == 1
    scores = pair_scores(overlaps)
    assert scores.shape == (7, 4)
    assert (scores[[0, 1, 3]] == 0).all(), "an empty hypothesis or reference scores 0"
    assert np.isfinite(scores).all()


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        ([["yeah right"]], [[["yeah"]]], "hypothesis 'yeah right' is not a list of tokens"),
        ([[["yeah"]]], [["yeah"]], "reference 'yeah' is not a list of tokens"),
        (["yeah"], [[["yeah"]]], "'yeah' is not a list; give a list of tokens"),
        ("yeah", [[["yeah"]]], "no context with a hypothesis"),
        ([[["yeah"]]], [[]], "context 0 has no reference"),
        ([[]], [[["yeah"]]], "context 0 has no hypothesis"),
        ([], [], "no context"),
        ([[["yeah"]]] * 3, [[["yeah"]]] * 2, "3 contexts with hypotheses, but 2 with references"),
        ([[["yeah", 3]]], [[["yeah"]]], "is not a list of tokens"),
        ([[[b"yeah"]]], [[["yeah"]]], "is not a list of tokens"),
    ],
)
def test_bad_input_is_refused(hypotheses: object, references: object, message: str) -> None:
    with pytest.raises(DataError) as caught:
        count_overlaps(hypotheses, references)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_switchboard_sized_test_set_takes_less_than_a_minute() -> None:
    import time

    rng = random.Random(1)
    vocabulary = [f"w{rank}" for rank in range(5000)]
    shares = [1 / (rank + 1) for rank in range(5000)]

    def group(size: int) -> list[list[str]]:
        return [rng.choices(vocabulary, shares, k=1 + int(rng.expovariate(1 / 11))) for _ in range(size)]

    hypotheses, references = [group(5) for _ in range(5481)], [group(11) for _ in range(5481)]
    start = time.monotonic()
    bleu_by_context(count_overlaps(hypotheses, references))
    assert time.monotonic() - start < 60
