"""Selection among candidates: minimum Bayes risk and mutual information, against plain formulas."""

import math
import re
import shutil
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu import sentence_bleu, sentence_chrf

from dialog.batches import START, list_examples
from dialog.chat.terminal import open_conversation
from dialog.config import DialogConfig
from dialog.corpora.corpus import load_dialogs
from dialog.decoding.config import DecodeConfig
from dialog.decoding.selection import best_by, expected_similarities, similarity_of
from dialog.decoding.steps import Hypothesis
from dialog.evaluate import evaluate
from dialog.trained import TrainedModel, backward_run
from dialog.utterance import Dialog, Utterance
from lm.config.load import load_config
from lm.errors import ConfigError, DataError, StorageError
from lm.runs.checkpoint import CheckpointStore
from lm.runs.evaluations import Member, load_evaluation
from tests.support.tiny_dialog import train_dialog, write_corpus

TEXT = st.lists(st.sampled_from(["a", "b", "c", "i", "know"]), max_size=5).map(" ".join)


@settings(max_examples=20, deadline=None)
@given(texts=st.lists(TEXT, min_size=1, max_size=6), metric=st.sampled_from(["bleu", "chrf"]))
def test_expected_similarity_is_the_double_loop(texts: list[str], metric: str) -> None:
    judge = {"bleu": lambda a, b: sentence_bleu(a, [b], use_effective_order=True), "chrf": sentence_chrf}[
        metric
    ]

    def alike(one: str, other: str) -> float:
        return 100.0 if one == other else judge(one, other if metric == "bleu" else [other]).score

    naive = [math.fsum(alike(a, b) for b in texts) / len(texts) for a in texts]
    assert expected_similarities(texts, similarity_of(metric)) == pytest.approx(naive)


def test_the_best_are_different_and_finished_first() -> None:
    found = [Hypothesis((tokens,), -1.0, -1.0, finished) for tokens, finished in [(3, True), (4, False)]]
    found += [Hypothesis((5,), -2.0, -2.0, True), found[0]]
    best = best_by(found, [1.0, 9.0, 2.0, 1.0], 3)
    assert [(h.tokens, h.score, h.log_prob) for h in best] == [
        ((5,), 2.0, -2.0),
        ((3,), 1.0, -1.0),
        ((4,), 9.0, -1.0),
    ]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def runs(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    back = ("data.direction=backward", "train.seed=3")
    return {
        "forward": train_dialog(corpus, folder / "forward"),
        "one": train_dialog(corpus, folder / "one", *back, "data.context=1"),
    }


def test_the_last_utterance_is_scored_given_the_response(runs: dict[str, Path], corpus: Path) -> None:
    """As the second turn of a conversation that is said backward."""
    model = TrainedModel.load(runs["one"])
    examples = list_examples(load_dialogs(str(corpus)))
    texts = ["yes it is", "bye", ""]
    for example, nll in zip(examples, model.context_nll(examples, [texts] * len(examples)), strict=True):
        for text, nats in zip(texts, nll, strict=True):
            said = [u for u in example.context if u != START] + [Utterance(example.responder, text)]
            whole = model.nll([Dialog("d", "", (Utterance("x", "not read"), *said))])
            expected = [score.nll for score in whole if score.turn == 1][: len(said) - 1]
            assert nats == pytest.approx(sum(expected), abs=1e-4)
    assert not any(model.context_nll(examples[:1], [texts])[0]), "nothing was said before"


@pytest.mark.parametrize("context", [2, 9])
def test_a_backward_model_reads_one_utterance(corpus: Path, tmp_path: Path, context: int) -> None:
    with pytest.raises(ConfigError, match=f"context = {context}: a backward model .* set data.context = 1"):
        train_dialog(corpus, tmp_path / "run", "data.direction=backward", f"data.context={context}")
    assert not (tmp_path / "run").exists()


def test_an_older_backward_run_opens_but_chooses_no_responses(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dialog.train.require", lambda holds, message: None)
    run = train_dialog(corpus, tmp_path / "run", "data.direction=backward", "data.context=2")
    assert TrainedModel.load(run).config.data.context == 2
    with pytest.raises(ConfigError, match=r"trained with data\.context = 2.*train it anew"):
        backward_run(run)


def test_mutual_information_reorders_the_candidates(runs: dict[str, Path], corpus: Path) -> None:
    model, back = TrainedModel.load(runs["forward"]), TrainedModel.load(runs["one"])
    examples = list_examples(load_dialogs(str(corpus)))[:4]
    search = DecodeConfig(beam=6, nbest=6, max_length=4)
    chosen = DecodeConfig(
        beam=6, nbest=2, max_length=4, select="mmi", candidates=6, mmi_run=str(runs["one"]), mmi_weight=2.0
    )
    for example, all_, best in zip(
        examples, model.respond(examples, search), model.respond(examples, chosen), strict=True
    ):
        (nll,) = back.context_nll([example], [[model.codec.decode(h.tokens) for h in all_]])
        scores = {h.tokens: h.log_prob - 2.0 * nats for h, nats in zip(all_, nll, strict=True) if h.finished}
        expected = sorted(scores, key=lambda tokens: -scores[tokens])[:2]
        assert [h.tokens for h in best] == expected
        assert [h.score for h in best] == pytest.approx([scores[tokens] for tokens in expected], abs=1e-4)
    alone = [model.respond([example], chosen)[0] for example in examples]
    assert [[h.tokens for h in found] for found in alone] == [
        [h.tokens for h in found] for found in model.respond(examples, chosen)
    ]


@pytest.mark.parametrize("select", ["mbr", "mmi"])
def test_the_comparison_of_candidates_can_be_ended(
    runs: dict[str, Path], corpus: Path, select: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dialog.trained.CONTEXTS_TOGETHER", 1)
    model = TrainedModel.load(runs["forward"])
    examples = list_examples(load_dialogs(str(corpus)))[1:3]

    def checks(**more: Any) -> int:
        seen: list[bool] = []
        decode = DecodeConfig(beam=6, nbest=6, max_length=4, **more)
        model.respond(examples, decode, check=lambda: seen.append(True))
        return len(seen)

    other = {"mmi_run": str(runs["one"])} if select == "mmi" else {}
    assert checks(select=select, candidates=6, **other) > checks() + 6, "one a text, not one a context"


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_bayes_risk_reorders_the_samples(
    runs: dict[str, Path], corpus: Path, metric: Literal["bleu", "chrf"]
) -> None:
    model = TrainedModel.load(runs["forward"])
    examples = list_examples(load_dialogs(str(corpus)))[:4]
    drawn = DecodeConfig(method="sample", nbest=9, max_length=4)
    chosen = drawn.model_copy(update={"select": "mbr", "candidates": 9, "nbest": 2, "mbr_metric": metric})
    moved = False
    for all_, best in zip(model.respond(examples, drawn), model.respond(examples, chosen), strict=True):
        means = expected_similarities([model.codec.decode(h.tokens) for h in all_], similarity_of(metric))
        expected = best_by(all_, means, 2)
        assert best == expected
        moved |= [h.tokens for h in expected] != [h.tokens for h in all_[:2]]
    assert moved, "the best are not those drawn first"


def test_bayes_risk_chooses_among_samples_and_is_evaluated(runs: dict[str, Path]) -> None:
    keys = ["method=sample", "select=mbr", "candidates=9", "nbest=2", "mbr_metric=chrf"]
    result = evaluate(runs["forward"], overrides=[f"decode.{key}" for key in keys])
    assert result.decode.select == "mbr"
    assert ".select-mbr" in result.name
    assert evaluate(runs["one"]).likelihood.perplexity > 1
    some = runs["one"].parent / "some.json"
    some.write_text('[{"context": [], "responses": ["yes"]}]', encoding="utf-8")
    with pytest.raises(ConfigError, match="has no references for a backward run"):
        evaluate(runs["one"], references=some)


def test_an_evaluation_names_the_weights_of_its_backward_run(
    runs: dict[str, Path], corpus: Path, tmp_path: Path
) -> None:
    backward = ("data.direction=backward", "data.context=1")
    back = train_dialog(corpus, tmp_path / "back", *backward)
    keys = ["select=mmi", f"mmi_run={back}", "candidates=3", "nbest=1", "beam=3"]
    result = evaluate(runs["forward"], overrides=[f"decode.{key}" for key in keys])
    assert result.mmi_with == Member(str(back), CheckpointStore.of(back).fingerprint("best"))
    assert evaluate(runs["forward"]).mmi_with is None
    load_evaluation(runs["forward"], result.name, (), (), "dialog")
    shutil.rmtree(back)
    train_dialog(corpus, back, *backward, "train.seed=4")
    with pytest.raises(DataError, match=f"checkpoint best of {re.escape(str(back))} has changed since"):
        load_evaluation(runs["forward"], result.name, (), (), "dialog")


def test_a_backward_run_whose_training_goes_on_is_refused(
    runs: dict[str, Path], corpus: Path, tmp_path: Path
) -> None:
    later = train_dialog(corpus, tmp_path / "later", "data.direction=backward", "data.context=1")
    back = shutil.copytree(runs["one"], tmp_path / "back")

    def replaced(done: int, total: int) -> None:
        if done < total:
            shutil.rmtree(back)
            shutil.copytree(later, back)

    keys = ["select=mmi", f"mmi_run={back}", "nbest=2", "beam=2"]
    before = [*(runs["forward"] / "evaluation").glob("*")]
    with pytest.raises(DataError, match=f"{re.escape(str(back))}: checkpoint best has changed during"):
        evaluate(
            runs["forward"], overrides=[f"decode.{key}" for key in keys], batch_size=2, progress=replaced
        )
    assert [*(runs["forward"] / "evaluation").glob("*")] == before


def test_runs_of_the_other_direction_are_refused(runs: dict[str, Path]) -> None:
    model = TrainedModel.load(runs["forward"])
    decode = DecodeConfig(select="mmi", mmi_run=str(runs["forward"]))
    with pytest.raises(ConfigError, match=r"trained forward; train one with data\.direction"):
        model.respond(list_examples(load_dialogs(model.config.data.test))[:1], decode)
    for keys in (["decode.select=mmi", "decode.mmi_run=nowhere"], ["decode.require=['zebra']"]):
        with pytest.raises((ConfigError, StorageError), match=r"no such run|not in the run's vocabulary"):
            evaluate(runs["forward"], overrides=keys, progress=lambda done, of: pytest.fail("works first"))
    one = (["decode.nbest=1"], ["decode.nbest=1", "decode.candidates=1"])
    for more in one:
        with pytest.raises(
            ConfigError, match=r"^decode\.select = mbr: .* single candidate; raise decode\.cand"
        ):
            evaluate(runs["forward"], overrides=["decode.select=mbr", *more])
    with pytest.raises(ConfigError, match=r"a backward run, for decode\.mmi_run"):
        open_conversation(runs["one"], "best", None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["select=mmi"], r"decode\.select: needs a backward run, got mmi; set decode\.mmi_run"),
        (["mmi_weight=1.0"], r"mmi_weight: belongs to decode\.select = mmi; decode\.select is score"),
        (["candidates=20"], r"candidates: belongs to decode\.select = mbr or mmi; decode\.select is sc"),
        (["select=mbr", "candidates=3"], r"candidates: must be at least nbest = 5, got 3"),
    ],
)
def test_keys_of_another_selection_are_refused(settings: list[str], message: str) -> None:
    keys = [f"decode.{key}" for key in settings]
    with pytest.raises(ConfigError, match=message):
        load_config("smalltalk_softmax", DialogConfig, family="dialog", overrides=keys)
