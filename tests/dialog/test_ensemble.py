"""Ensembles of runs: the mean of probabilities, in scoring, decoding, evaluation and chat."""

import math
from pathlib import Path
from shutil import copytree, ignore_patterns, rmtree

import pytest
import torch

from dialog.batches import Example, list_examples
from dialog.chat.terminal import open_conversation
from dialog.cli import main
from dialog.compare import compare
from dialog.corpora.corpus import load_dialogs
from dialog.decoding.config import DecodeConfig
from dialog.evaluate import evaluate
from dialog.trained import TrainedModel
from lm.errors import ConfigError, DataError
from tests.support.tiny_dialog import train_dialog, write_corpus

MOS = ("head.kind=mos", "head.components=2", "decoder.cell=gru")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def runs(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [train_dialog(corpus, folder / "one"), train_dialog(corpus, folder / "two", "train.seed=2", *MOS)]


def by_hand(models: list[TrainedModel], example: Example, tokens: list[int]) -> float:
    """log P of a response by the mean of probabilities, token by token."""
    steps = [model.token_probabilities(example, tokens) for model in models]
    return sum(
        math.log(math.fsum(one.prob for one in probs) / len(models)) for probs in zip(*steps, strict=True)
    )


def test_probabilities_are_averaged_everywhere(runs: list[Path], corpus: Path) -> None:
    models = [TrainedModel.load(run) for run in runs]
    joined = TrainedModel.ensemble_of(models, runs)
    dialogs = load_dialogs(str(corpus))
    examples = list_examples(dialogs)
    for example, score in zip(examples, joined.nll(dialogs), strict=True):
        tokens = joined.codec.encode(example.response.text)
        assert -score.nll == pytest.approx(by_hand(models, example, tokens), abs=1e-4)
    for decode in (DecodeConfig(beam=3, nbest=2, max_length=5), DecodeConfig(method="sample", max_length=5)):
        for example, found in zip(examples, joined.respond(examples, decode), strict=True):
            for hypothesis in found:
                expected = by_hand(models, example, list(hypothesis.tokens))
                if hypothesis.finished:
                    assert hypothesis.log_prob == pytest.approx(expected, abs=1e-4)
    (step, *_) = joined.token_probabilities(examples[1], [], top=3)
    assert len(step.prior) == 3, "one component of the first, two of the second"
    assert sum(step.prior) == pytest.approx(1)
    assert step.prob == pytest.approx(math.exp(by_hand(models, examples[1], [])), abs=1e-6)


def test_an_ensemble_of_one_run_twice_is_the_run(runs: list[Path], corpus: Path) -> None:
    model = TrainedModel.load(runs[1])
    twice = TrainedModel.ensemble_of([model, TrainedModel.load(runs[1])], [runs[1]] * 2)
    examples = list_examples(load_dialogs(str(corpus)))
    decode = DecodeConfig(beam=3, nbest=3, max_length=5)
    for one, other in zip(model.respond(examples, decode), twice.respond(examples, decode), strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]
        assert [h.log_prob for h in one] == pytest.approx([h.log_prob for h in other], abs=1e-5)
    assert TrainedModel.ensemble_of([model], [runs[1]]) is model


def test_an_evaluation_is_kept_under_a_name_of_its_own(runs: list[Path]) -> None:
    alone = evaluate(runs[0])
    result = evaluate(runs[0], others=runs[1:])
    assert result.name == f"{alone.name}.with-two"
    assert [member.run for member in result.ensemble_with or ()] == [str(runs[1])]
    assert result.subject.parameters > alone.subject.parameters
    assert result.likelihood.perplexity != alone.likelihood.perplexity
    reply = open_conversation(runs[0], "best", None, runs[1:]).say("is it raining")
    assert reply.source
    assert reply.source.run == f"{runs[0]} + {runs[1]}"


def test_ensembles_whose_members_have_one_name_are_told_apart_and_checked(
    runs: list[Path], corpus: Path, tmp_path: Path
) -> None:
    first = copytree(runs[0], tmp_path / "one", ignore=ignore_patterns("evaluation"))
    others = [copytree(runs[1], tmp_path / name / "two") for name in ("a", "b")]
    names = [evaluate(first, others=[other]).name for other in (*others, others[0])]
    assert names[0] == names[2]
    assert names[1].startswith(f"{names[0]}.")
    compare([first / "evaluation" / f"{name}.json" for name in names[:2]])
    train_dialog(corpus, tmp_path / "c", "train.seed=3", *MOS)
    rmtree(others[1])
    (tmp_path / "c").rename(others[1])
    with pytest.raises(DataError, match=f"checkpoint best of {others[1]} has changed since"):
        compare([first / "evaluation" / f"{names[1]}.json"])


def test_the_evaluation_of_an_ensemble_is_compared_with_that_of_a_run(
    runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    alone, joined = evaluate(runs[1]), evaluate(runs[0], others=runs[1:])
    file = runs[0] / "evaluation" / f"{joined.name}.json"
    rows = compare([runs[1], file], name=alone.name).runs
    assert [row.run for row in rows] == [str(runs[1]), str(file)]
    assert [row.perplexity for row in rows] == [one.likelihood.perplexity for one in (alone, joined)]
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(file), str(file)])
    assert ended.value.code == 0
    assert "with-two" in capsys.readouterr().out
    with pytest.raises(DataError, match="has no evaluation none"):
        compare([file.with_name("none.json")])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.vocab_size=5", "has another vocabulary than"),
        ("data.context=2", r"has data\.context = 2, but .* has 9"),
        ("data.max_tokens=7", r"has data\.max_tokens = 7, but"),
        ("data.max_response=7", r"has data\.max_response = 7, but"),
        ("data.last_response=true", r"has data\.last_response = True, but .* has False"),
    ],
)
def test_runs_that_do_not_fit_are_refused(
    runs: list[Path], corpus: Path, tmp_path: Path, setting: str, message: str
) -> None:
    other = train_dialog(corpus, tmp_path / "other", setting, "train.max_steps=1")
    with pytest.raises(ConfigError, match=message):
        evaluate(runs[0], others=[other])
    assert torch.is_grad_enabled()
