"""Evaluation: perplexities by hand, and a whole run from folder to files."""

import json
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dialog.batches import list_examples
from dialog.config import DialogConfig
from dialog.evaluate import (
    _unknown_share,
    bleu_tokens,
    evaluate,
    perplexities,
    rescore,
    score_responses,
)
from dialog.evaluation_names import evaluation_name, setting_name
from dialog.metrics.references import build_references, write_references
from dialog.metrics.scores import (
    Spread,
)
from dialog.results import DialogEvaluation
from dialog.tables import evaluation_tables
from dialog.task import build_model, encode_dialogs
from dialog.trained import TargetScore, TrainedModel
from dialog.utterance import Dialog, Utterance
from lm.config.load import Resolved, save_config
from lm.errors import DivergenceError
from lm.heads.config import HeadConfig
from lm.results import as_json
from lm.runs.checkpoint import CheckpointStore
from lm.text.vocabulary import Codec, build_codec
from tests.support.evaluable_run import conversations, evaluable_run, write_dialogs
from tests.support.words import WORDS

# Perplexity


def test_perplexities_by_hand() -> None:
    rng = random.Random(1)
    scores = [TargetScore(i // 9, i % 9, rng.uniform(1, 30), rng.randint(1, 12)) for i in range(70)]
    result = perplexities(scores, "run", 40)
    tokens = sum(s.tokens for s in scores)
    assert result.perplexity == pytest.approx(math.exp(sum(s.nll for s in scores) / tokens))
    assert (result.tokens, result.contexts) == (tokens, 70)
    batches = [scores[:30], scores[30:60], scores[60:]]
    means = [math.exp(sum(s.nll for s in b) / sum(s.tokens for s in b)) for b in batches]
    assert result.perplexity_batch_mean == pytest.approx(sum(means) / 3)
    assert result.perplexity_batch_size == 30


@pytest.mark.parametrize("nll", [math.nan, math.inf, -math.inf, 1e6])
def test_numbers_that_are_not_finite_are_an_error(nll: float) -> None:
    with pytest.raises(DivergenceError, match="run: the model's probabilities are not finite"):
        perplexities([TargetScore(0, 0, 1.0, 2), TargetScore(0, 1, nll, 2)], "run", 40)


@pytest.mark.parametrize(
    ("source", "references", "name"),
    [
        ("smalltalk:test", None, "smalltalk-test"),
        ("a/b/test.jsonl", None, "test"),
        ("test.jsonl", Path("x/multi ref.json"), "test+multi-ref"),
        ("../..", None, "data"),
    ],
)
def test_names_of_evaluations(source: str, references: Path | None, name: str) -> None:
    assert evaluation_name(source, references) == name


def test_other_settings_have_other_names() -> None:
    usual = DialogConfig().decode
    texts = ["a b", "a-b", "a/b", "a?", "a", "a.", "a" * 60 + "?", "a" * 60 + "!"]
    changes = [{"begin": text} for text in texts]
    changes += [{"forbid": phrases} for phrases in (("a b",), ("a", "b"))]
    changes += [{"temperature": value} for value in (1e20, 1e-20)]
    names = [
        *(setting_name("test", "best", usual.model_copy(update=change), usual, []) for change in changes),
        *(setting_name("test", "best", usual, usual, [Path(other)]) for other in ("a+b", "a-b", "a b")),
    ]
    assert len({*names}) == len(names)
    assert {"test.begin-a-b", "test.temperature-1e-20", "test.with-a-b"} < {*names}
    assert all(Path(name).name == name for name in names)


# A whole run


@pytest.mark.parametrize("kind", ["wordpunct", "whitespace", "char", "unigram", "bpe"])
def test_bleu_compares_words_whatever_the_tokens_of_the_run(kind: str) -> None:
    texts = [u.text for d in conversations(1, 20) for u in d.utterances]
    codec = build_codec(kind, texts, vocab_size=80)  # type: ignore[arg-type]
    for text in texts[:20]:
        assert bleu_tokens(codec, codec.encode(text)) == text.split()
    unknown = codec.vocabulary.unk
    assert bleu_tokens(codec, [*codec.encode(texts[0]), unknown]) == [*texts[0].split(), "<unk>"]


@pytest.fixture
def run(in_tmp: Path) -> Path:
    return evaluable_run(in_tmp)


def test_a_run_is_evaluated_on_its_own_test_split(run: Path) -> None:
    evaluation = evaluate(run)
    result = as_json(evaluation)
    assert (result["contexts"], result["data"]["name"], result["head"]) == (15, "test", "softmax")
    scores = TrainedModel.load(run).nll(conversations(2))
    assert result["nll"] == pytest.approx(
        sum(s.nll for s in scores) / sum(s.tokens for s in scores), rel=1e-6
    )
    assert result["perplexity"] == pytest.approx(math.exp(result["nll"]))
    wanted = (
        "perplexity nll tokens contexts perplexity_batch_mean bleu bleu_legacy sacrebleu intra_distinct_1"
    )
    wanted += " intra_distinct_2 inter_distinct_1 inter_distinct_2 mean_length most_common_share yardsticks"
    wanted += " length_ratio looping_share warnings"
    assert set(wanted.split()) <= set(result)
    assert (result["responses_cut"], result["tokens_cut"]) == (0, 0)
    assert result["near_guessing"] == (result["nll"] > 0.925 * math.log(result["vocabulary"]))
    assert result["near_guessing"]  # random weights
    assert any("near guessing among" in str(line) for line in evaluation_tables(evaluation)[1:])
    record = json.loads((run / "evaluation" / "test.json").read_text(encoding="utf-8"))
    assert record["result"] == result
    yardsticks = evaluation.report.yardsticks
    for share in (0.0, 0.5):  # the row of the five constant answers is explained where it is shown
        five = replace(yardsticks.constant_answers["all five"], said_share=share)
        shown = replace(yardsticks, constant_answers={"all five": five})
        parts = evaluation_tables(replace(evaluation, report=replace(evaluation.report, yardsticks=shown)))
        assert any("'all five' has the five" in str(part) for part in parts) == bool(share)
    contexts = record["contexts"]
    assert sum(contexts["nll"]) / sum(contexts["tokens"]) == pytest.approx(result["nll"])
    precision = [row[1] for row in contexts["bleu"]["precision"]]
    assert sum(precision) / 15 == pytest.approx(result["bleu"]["2"]["precision"])


def test_the_details_of_an_evaluation_are_those_of_its_contexts(run: Path) -> None:
    """Equal to the written hypotheses, and to the use of the components token by token."""
    config = json.loads((run / "config.json").read_text())["config"]
    mixture = DialogConfig.model_validate(config, strict=False).model_copy(
        update={"head": HeadConfig(kind="mos", components=3, embedding_size=8, tied=False)}
    )
    save_config(Resolved(mixture, {}), run / "config.json")
    store, codec = CheckpointStore(run / "checkpoints"), Codec.load(run)
    store.commit(2, {"model": build_model(mixture, codec).state_dict()}, {}, {})
    evaluate(run, output=Path("hyps.jsonl"), limit=13, overrides=["decode.beam=2", "decode.nbest=1"])
    (path,) = (run / "evaluation").iterdir()
    details = json.loads(path.read_text())["details"]
    rows = [json.loads(line) for line in Path("hyps.jsonl").read_text().splitlines()]
    assert len(details["samples"]) == 12
    for sample in details["samples"]:
        row = rows[sample["index"]]
        assert codec.tokenizer.split(sample["reply"]) == row["hypotheses"][0]
        assert codec.tokenizer.split(sample["true"]) == row["references"][0]
        assert sample["context"] == [line for line in row["context"] if line != "<d>"][-4:]
    model = TrainedModel.load(run)
    data = encode_dialogs(conversations(2), model.codec, model.config)
    joints = [model.model.head.component_log_probs(hidden) for hidden, _ in model.readings(data)]
    priors = torch.cat([joint.logsumexp(-1).exp() for joint in joints])
    assert details["components"]["usage"] == pytest.approx(priors.mean(0).tolist(), rel=1e-4)


def test_an_unk_that_the_text_itself_has_is_an_unknown_word() -> None:
    codec = build_codec("wordpunct", ["one two three"], vocab_size=20)
    said = [Utterance("AB"[n % 2], text) for n, text in enumerate(["one <unk>", "two dodo", "three"])]
    model: Any = SimpleNamespace(codec=codec)
    data: Any = SimpleNamespace(examples=list_examples([Dialog("d", "", tuple(said))]))
    assert _unknown_share(model, data) == 0.5


def test_many_unknown_words_are_warned_of(run: Path) -> None:
    own = evaluate(run)
    assert (own.subject.data.unknown_share, own.subject.data.own_unknown_share) == (0, None)
    said = [*WORDS[:2], f"dodo {WORDS[2]} {WORDS[3]}", WORDS[4]]  # the last one is no response
    utterances = tuple(Utterance("AB"[turn % 2], text) for turn, text in enumerate(said))
    write_dialogs(Path("foreign.jsonl"), [Dialog("x", "", utterances)])
    result = evaluate(run, data="foreign.jsonl")
    assert (result.subject.data.unknown_share, result.subject.data.own_unknown_share) == (0.2, 0)
    assert "unknown_share" in _measures(result)
    *_, note = [str(part) for part in evaluation_tables(result) if "unknown" in str(part)]
    assert "20.0% of the tokens are unknown to the run, and 0.0% of its own test split" in note


def test_what_is_cut_from_responses_is_told(run: Path) -> None:
    whole = evaluate(run)
    assert not any("cut" in row for row in _measures(whole))
    saved = json.loads((run / "config.json").read_text())
    saved["config"]["data"]["max_response"] = 4
    (run / "config.json").write_text(json.dumps(saved))
    result = evaluate(run)
    found = result.likelihood
    lengths = [len(e.response.text.split()) for e in list_examples(conversations(2), 9)]
    assert found.responses_cut == sum(length > 2 for length in lengths) > 0
    assert found.tokens_cut == sum(max(0, length - 2) for length in lengths)
    assert found.tokens + found.tokens_cut == whole.likelihood.tokens
    assert {"responses_cut", "tokens_cut"} <= set(_measures(result))


def _measures(result: DialogEvaluation) -> list[str]:
    """The names in the first table that is shown."""
    shown: Any = evaluation_tables(result)[0]
    return [row["measure"] for row in shown.cells()]


def test_hypotheses_are_written_and_score_the_same_again(run: Path) -> None:
    result = evaluate(run, output=Path("hyps.jsonl"))
    rows = [json.loads(line) for line in Path("hyps.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["dialog"], row["turn"]) for row in rows] == [(d, t) for d in range(3) for t in range(5)]
    assert rows[0]["context"] == ["<d>"]
    assert rows[1]["context"] == ["<d>", f"A: {conversations(2)[0].utterances[0].text}"]
    assert all(len(row["hypotheses"]) == len(row["scores"]) == 2 for row in rows)
    assert all(row["scores"] == sorted(row["scores"], reverse=True) for row in rows)
    again = rescore(Path("hyps.jsonl"))
    assert result.report.scores == again


def test_responses_are_scored_against_the_true_response_alone(tmp_path: Path) -> None:
    hypotheses = [[["yes", "i", "do"], ["no"]], [["well", "maybe", "so"]]]
    references = [[["yes", "we", "do"], ["no", "no"]], [["maybe", "not"], ["well", "maybe", "so"], ["oh"]]]
    path = tmp_path / "hyps.jsonl"
    rows = zip(hypotheses, references, strict=True)
    path.write_text("".join(json.dumps({"hypotheses": h, "references": r}) + "\n" for h, r in rows))
    single, several = rescore(path, true_only=True), rescore(path)
    assert single == score_responses(hypotheses, [listed[:1] for listed in references])
    assert single.references.mean == 1
    assert several.references.mean == 2.5
    assert single.bleu != several.bleu


def test_batch_size_changes_nothing(run: Path) -> None:
    evaluate(run, output=Path("one.jsonl"), batch_size=1)
    evaluate(run, output=Path("all.jsonl"), batch_size=64)
    one, every = (
        [json.loads(line)["hypotheses"] for line in Path(name).read_text(encoding="utf-8").splitlines()]
        for name in ("one.jsonl", "all.jsonl")
    )
    assert one == every


def test_references_and_limit_and_overrides(run: Path) -> None:
    write_references(
        Path("refs.json"), build_references(conversations(1, 20), conversations(2), neighbours=3)
    )
    result = evaluate(run, references=Path("refs.json"), limit=7, overrides=["decode.nbest=1"])
    data = as_json(result)["data"]
    assert result.likelihood.contexts == 7
    assert result.report.scores.hypotheses.max == 1
    assert result.report.scores.references == Spread(contexts=7, min=4, mean=4, max=4)
    assert result.decode.nbest == 1
    assert data["references_file"] == "refs.json"
    assert "true response first" in data["references_layout"]
    assert [path.name for path in (run / "evaluation").iterdir()] == ["test+refs.first-7.nbest-1.json"]
    assert evaluate(run, references=Path("refs.json")).subject.data.sha256 != data["sha256"]


def test_evaluations_do_not_replace_each_other(run: Path) -> None:
    for folder, seed in (("a", 2), ("b", 3)):
        Path(folder).mkdir()
        write_dialogs(Path(folder) / "test.jsonl", conversations(seed))
    assert evaluate(run).name == evaluate(run, data="a/test.jsonl").name == "test"
    changed = evaluate(run, checkpoint="last", overrides=["decode.beam=2", "decode.nbest=2"], limit=4)
    assert changed.name == "test.first-4.last.beam-2"
    other = evaluate(run, data="b/test.jsonl")
    assert other.name == evaluate(run, data="b/test.jsonl").name
    assert other.name == f"test.{other.subject.data.sha256[:6]}"
    names = {path.stem for path in (run / "evaluation").iterdir()}
    assert names == {"test", changed.name, other.name}
    for name in names:
        record = json.loads((run / "evaluation" / f"{name}.json").read_text(encoding="utf-8"))
        assert record["result"]["name"] == name
    (run / "evaluation" / "test.json").write_text("damaged", encoding="utf-8")
    assert evaluate(run).name == "test"


def test_an_ensemble_of_many_runs_has_a_name_that_fits(run: Path) -> None:
    names = [Path(f"{'another-run-of-a-long-name'}-{number}") for number in range(9)]
    for name in names:
        shutil.copytree(run, name)
    result = evaluate(run, others=names, limit=2)
    assert len(f"{result.name}.json".encode()) < 255
    assert [path.stem for path in (run / "evaluation").iterdir()] == [result.name]
    assert result.name != evaluate(run, others=names[:-1], limit=2).name


def test_a_context_without_a_response_counts_as_an_empty_one(run: Path) -> None:
    few = ["decode.no_repeat_ngram=1", "decode.min_length=29", "decode.max_length=30", "decode.nbest=1"]
    result = evaluate(run, overrides=[*few, "decode.beam=1"], output=Path("none.jsonl"))
    rows = [json.loads(line) for line in Path("none.jsonl").read_text(encoding="utf-8").splitlines()]
    missing = sum(not row["scores"] for row in rows)
    assert missing > 0
    assert all(row["hypotheses"] == [[]] for row in rows if not row["scores"])
    assert result.warnings[0].startswith(f"{missing} of {len(rows)} contexts count as answered by nothing")
    assert rescore(Path("none.jsonl")) == result.report.scores
