"""Scores of given responses: sacreBLEU, diversity, warnings, yardsticks."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dialog.decoding.config import DecodeConfig
from dialog.evaluate import (
    score_responses,
)
from dialog.metrics.bleu import bleu_by_context, count_overlaps
from dialog.metrics.distinct import FEW, diversity, loops, warnings
from dialog.metrics.scores import (
    CONSTANT_ANSWERS,
    BleuVersion,
    Responses,
    Scorer,
    Spread,
    responses_report,
)
from dialog.tables import shown_systems
from lm.errors import DataError
from lm.results import as_json
from tests.support.words import WORDS

Groups = list[list[list[str]]]


def groups(seed: int, contexts: int, sizes: tuple[int, ...]) -> Groups:
    rng = random.Random(seed)
    return [
        [rng.choices(WORDS, k=rng.randint(1, 9)) for _ in range(rng.choice(sizes))] for _ in range(contexts)
    ]


@pytest.mark.parametrize("sizes", [(1,), (3,)])
def test_sacrebleu_equals_its_command_line(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    hypotheses, references = groups(1, 40, (2,)), groups(2, 40, sizes)
    files = []
    for number in range(sizes[0]):
        path = tmp_path / f"references-{number}"
        path.write_text("".join(" ".join(group[number]) + "\n" for group in references), encoding="utf-8")
        files.append(str(path))
    answers = tmp_path / "answers"
    answers.write_text("".join(" ".join(group[0]) + "\n" for group in hypotheses), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", *files, "-i", str(answers), "--tokenize", "none", "--force"]
    done = subprocess.run([*command, "-w", "12"], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    ours = score_responses(hypotheses, references).sacrebleu
    assert round(ours.score, 12) == told["score"]
    assert ours.signature == told["signature"]


def test_sacrebleu_takes_different_numbers_of_references() -> None:
    from sacrebleu.metrics.bleu import BLEU

    hypotheses, references = groups(1, 20, (2,)), groups(2, 20, (1, 2, 4))
    streams: Any = [
        [" ".join(group[i]) if i < len(group) else None for group in references] for i in range(4)
    ]
    metric = BLEU(tokenize="none", force=True)
    expected = metric.corpus_score([" ".join(group[0]) for group in hypotheses], streams).score
    ours = score_responses(hypotheses, references).sacrebleu
    assert ours.score == expected
    assert ours.signature.startswith("nrefs:var|")


def test_a_blank_inside_a_token_does_not_split_it() -> None:
    four = ["a b", "c", " ", "d\u2028e"]
    assert score_responses([[four]], [[four]]).sacrebleu.score == pytest.approx(100)
    assert score_responses([[["a b", "c", "d", "e"]]], [[["a", "b c", "d", "e"]]]).sacrebleu.score < 100


def test_diversity_by_hand() -> None:
    found = diversity([[["a", "a", "b"], ["a", "b"]], [["a", "a", "b"], ["c"]], [["yes"], ["yes"]]])
    assert found.intra_distinct_1 == pytest.approx(((2 / 3 + 1) / 2 + (2 / 3 + 1) / 2 + 1) / 3)
    assert found.inter_distinct_1 == pytest.approx((2 / 5 + 3 / 4 + 1 / 2) / 3)
    assert found.intra_distinct_2 == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert found.inter_distinct_2 == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert found.mean_length == pytest.approx(7 / 3)
    assert found.most_common_share == pytest.approx(2 / 3)
    assert found.most_common_answer == ["a", "a", "b"]


def test_loops_and_one_answer_for_most_are_warned_of() -> None:
    rng = random.Random(3)
    references = [[rng.sample(WORDS, k=8)] for _ in range(30)]
    loop = ["i", "'", "m", "afraid"] * 3

    usual = DecodeConfig()

    def warned(hypotheses: Groups, decode: DecodeConfig = usual, by_words: bool = True) -> list[str]:
        human = diversity(references)
        return warnings(diversity(hypotheses), human, len(hypotheses), decode, by_words=by_words)

    assert warned(references) == []
    (told,) = warned([*([loop] for _ in range(4)), *references[4:]])
    assert told.startswith("13% of the responses repeat themselves in a loop (true responses: 0%;")
    assert "no_repeat_ngram=3" in told
    (told,) = warned([*([["yeah"]] for _ in range(16)), *references[16:]])
    assert told.startswith("53% of the contexts have the same answer, 'yeah'")
    assert "decode.method=sample" in told
    assert len(warned([[loop]] * 30)) == 2
    (told,) = warned([*([loop] for _ in range(4)), *references[4:]], by_words=False)
    assert told.endswith("try --set decode.method=sample"), "no trigrams of characters"
    sampled = DecodeConfig(method="sample", no_repeat_ngram=3)
    told_of_samples = warned([[loop]] * 30, sampled)
    assert told_of_samples
    assert all(line.endswith("try a higher --set decode.temperature") for line in told_of_samples)
    looping = [[group[0] * 3] for group in references]
    found = diversity(looping)
    assert found.looping_share == 1
    none = warnings(found, found, 30, usual, by_words=True)
    assert none == [], "people who repeat themselves are no fault of the model"


def test_loops_count_as_those_of_a_model_above_twice_the_share_of_people() -> None:
    loop = [["a", "b", "c"] * 3]
    for found, human, warned in ((3, 2, 0), (4, 2, 0), (5, 2, 1), (2, 0, 0), (3, 0, 1)):
        answers, people = (
            [*[loop] * loops, *[[[str(n)]] for n in range(30 - loops)]] for loops in (found, human)
        )
        told = warnings(diversity(answers), diversity(people), 30, DecodeConfig(), by_words=True)
        assert len(told) == warned, (found, human)


def test_a_few_responses_get_no_warnings() -> None:
    looping, people = diversity([[["a", "b", "c"] * 3]] * 30), diversity([[[str(n)]] for n in range(30)])
    told = [warnings(looping, people, count, DecodeConfig(), by_words=True) for count in (FEW - 1, FEW)]
    assert (told[0], bool(told[1])) == ([], True)


@pytest.mark.parametrize("seed", range(5))
def test_a_loop_is_a_trigram_at_three_places(seed: int) -> None:
    rng = random.Random(seed)
    found = []
    for _ in range(100):
        tokens = rng.choices("ab", k=rng.randint(0, 12))
        places = [tokens[at : at + 3] for at in range(len(tokens) - 2)]
        found.append(any(places.count(place) >= 3 for place in places))
        assert loops(tokens) == found[-1]
    assert {True, False} == set(found)


def test_the_length_ratio_by_hand() -> None:
    result = score_responses([[["a"]], [["b", "c"]]], [[["x"] * 2, ["x"] * 4], [["x"]]])
    assert result.length_ratio == 3 / 4
    assert score_responses([[["a"]]], [[[]]]).length_ratio is None


def test_every_output_names_its_versions_and_edge_cases() -> None:
    result = score_responses([[[], ["yeah"]], [["so"], ["so", "then"]]], [[["yeah"]], [["so"], ["now"]]])
    smoothing = "method7 of NLTK 3.4 or earlier, 0 where it is undefined"
    assert result.bleu_versions["bleu_legacy"] == BleuVersion(smoothing, "padded")
    assert result.references == Spread(contexts=2, min=1, mean=1.5, max=2)
    assert result.edge_cases == {
        "empty_hypotheses": 1,
        "single_token_hypotheses": 2,
        "empty_references": 0,
        "legacy_undefined_pairs": 2,
        "hypotheses_without_bigram": 3,
    }
    assert result.legacy_undefined_share == pytest.approx(2 / 3)  # "so then" against "so" is defined
    assert {"1", "2", "3", "4"} == set(result.bleu["bleu"]) == set(result.bleu["bleu_legacy"])


def test_yardsticks_are_what_scoring_them_gives() -> None:
    references = [*groups(5, 12, (3,)), [["yeah"]]]
    hypotheses = groups(6, 13, (5,))
    report, _ = responses_report(Responses(hypotheses, references), str.split)
    others = Scorer([group[1:] for group in references[:-1]])
    human, apart = report.yardsticks.true_response, report.without_true_response
    assert human.scores == others.score([[group[0]] for group in references[:-1]])[0]
    assert apart is not None
    assert human.skipped == apart.skipped == 1
    assert apart.bleu == others.score(hypotheses[:-1])[0].bleu
    constants = report.yardsticks.constant_answers
    assert list(constants) == [*CONSTANT_ANSWERS, "all five"]
    assert constants["yeah"].scores == score_responses([[["yeah"]]] * 13, references)
    assert constants["all five"].scores.hypotheses.max == 5
    assert constants["yeah"].said_share == constants["all five"].said_share == pytest.approx(1 / 13)
    assert constants["oh"].said_share == 0
    assert list(shown_systems(report)) == ["model", "true response", "'yeah'", "'all five'"], (
        "what this corpus says"
    )


def test_with_one_reference_the_true_response_is_the_ceiling() -> None:
    references = groups(5, 12, (1,))
    report, _ = responses_report(Responses(groups(6, 12, (5,)), references), str.split)
    human = report.yardsticks.true_response
    assert "itself" in human.treatment
    assert "without_true_response" not in as_json(report)
    own, best = report.scores.bleu["bleu"], human.scores.bleu["bleu"]
    assert all(best[n].precision > own[n].recall for n in "1234")


def test_constant_answers_can_beat_people_on_precision() -> None:
    """The reason for the warning in every output: people say something, constant answers hit often."""
    rng = random.Random(7)
    references = [[rng.choices(WORDS, k=8), ["yeah"], rng.choices(WORDS, k=8)] for _ in range(30)]
    yardsticks = responses_report(Responses(references, references), str.split)[0].yardsticks
    person, constant = yardsticks.true_response, yardsticks.constant_answers["yeah"]
    assert constant.scores.bleu["bleu"]["1"].precision > person.scores.bleu["bleu"]["1"].precision
    assert "constant answers can have a higher precision" in yardsticks.note


def test_mismatches_that_sacrebleu_accepts_are_refused() -> None:
    with pytest.raises(DataError, match="3 contexts with hypotheses, but 2 with references"):
        score_responses([[["a"]]] * 3, [[["a"]]] * 2)
    with pytest.raises(DataError, match="not a list of tokens"):
        score_responses([["a b"]], [[["a"]]])


@pytest.mark.parametrize(("same", "told"), [(100, 0), (101, 1)])
def test_one_answer_for_more_than_half_is_warned_of(same: int, told: int) -> None:
    found = diversity([*[[["yeah"]]] * same, *[[[str(n)]] for n in range(200 - same)]])
    assert len(warnings(found, found, 200, DecodeConfig(), by_words=True)) == told


def test_every_version_of_bleu_has_its_own_weights_and_smoothing() -> None:
    hypotheses, references = groups(1, 20, (2,)), groups(2, 20, (3,))
    found, overlaps = score_responses(hypotheses, references).bleu, count_overlaps(hypotheses, references)
    assert found["bleu"] == bleu_by_context(overlaps, "nltk", "padded").summary()
    assert found["bleu_legacy"] == bleu_by_context(overlaps, "legacy", "padded").summary()
    assert found["bleu_short"] == bleu_by_context(overlaps, "nltk", "short").summary()
    assert found["bleu_legacy_short"] == bleu_by_context(overlaps, "legacy", "short").summary()
