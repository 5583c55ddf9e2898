"""/compare: every line is answered by two runs, each in its own conversation."""

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from dialog.batches import Example
from dialog.chat.conversation import Conversation
from dialog.chat.ctrl_c import CTRL_C
from dialog.chat.repl import Repl
from dialog.chat.transcript import Source
from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Hypothesis
from lm.errors import ConfigError, DivergenceError, StorageError
from tests.support.toy_responder import ToyResponder


class Contrary(ToyResponder):
    """Another model: it answers as the toy does with another seed, and fails when told to."""

    def respond(self, examples: Sequence[Example], decode: DecodeConfig) -> list[list[Hypothesis]]:
        if examples[0].context[-1].text == "fail":
            raise DivergenceError("not finite")
        return super().respond(examples, decode.model_copy(update={"seed": decode.seed + 1000}))


def conversation(model: ToyResponder, run: str) -> Conversation:
    return Conversation(model, source=Source(run=run, checkpoint="best", step=1, weights=run))


@pytest.fixture
def chat() -> Repl:
    def opened(run: Path) -> Conversation:
        if run.name == "missing":
            raise StorageError(f"{run}: no such run; check the path")
        return conversation(Contrary(), str(run))

    return Repl(conversation(ToyResponder(), "runs/mos"), opened)


def alone(model: ToyResponder, texts: Sequence[str], decode: DecodeConfig | None = None) -> list[str]:
    """The replies of a conversation without another run."""
    own = Conversation(model, decode)
    return [own.say(text).reply.text or "(says nothing)" for text in texts]


def test_every_line_gets_both_replies_and_each_run_hears_its_own(chat: Repl) -> None:
    texts = ["so", "and then", "well"]
    assert chat.feed("/compare runs/soft max") == ["(every line is answered by mos and soft max)"]
    found = [chat.feed(text) for text in texts]
    assert [lines[0] for lines in found] == [f"mos       {reply}" for reply in alone(ToyResponder(), texts)]
    assert [lines[1] for lines in found] == [f"soft max  {reply}" for reply in alone(Contrary(), texts)]
    assert alone(ToyResponder(), texts) != alone(Contrary(), texts)


def test_another_reply_of_the_second_run_hears_as_much_as_that_run_reads(chat: Repl) -> None:
    texts = ["so", "and then", "well"]
    for text in texts:
        chat.feed(text)
    chat.feed("/compare softmax")
    assert chat.beside is not None
    second = chat.beside._second
    data = second.model.config.data.model_copy(update={"context": 2})
    second.model.config = second.model.config.model_copy(update={"data": data})
    assert [one.text for one in second.last_example.context] == [second.exchanges[1].reply.text, "well"]
    assert len(chat.conversation.last_example.context) > 2


def test_settings_hold_for_both_and_undo_takes_from_both(chat: Repl) -> None:
    chat.feed("/compare softmax")
    chat.feed("so")
    chat.feed("gone")
    chat.feed("/undo")
    chat.feed("/seed 5")
    _, other = chat.feed("well")
    hearer = Conversation(Contrary())
    hearer.say("so")
    hearer.decode = chat.conversation.decode
    assert other == f"softmax  {hearer.say('well').reply.text or '(says nothing)'}"


def test_both_answer_again_as_each_would_alone(chat: Repl) -> None:
    chat.feed("/compare softmax")
    chat.feed("so")
    expected = []
    for model in (ToyResponder(), Contrary()):
        own = Conversation(model)
        own.say("so")
        own.retry()
        expected.append(own.exchanges[-1].reply.text or "(says nothing)")
    assert chat.feed("/retry") == [f"mos      {expected[0]}", f"softmax  {expected[1]}"]
    following = chat.feed("well")
    assert len(following) == 2


def test_a_failure_of_the_other_run_leaves_both_as_they_were(chat: Repl) -> None:
    chat.feed("/compare softmax")
    assert chat.feed("fail") == ["not finite"]
    assert not chat.conversation.exchanges
    assert chat.feed("so")[1] == f"softmax  {alone(Contrary(), ['so'])[0]}"


def test_settings_that_the_other_run_cannot_follow_are_refused_with_its_name(
    chat: Repl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def require(self: ToyResponder, decode: DecodeConfig) -> None:
        if decode.require:
            raise ConfigError("decode.require 'w': not in the run's vocabulary")

    monkeypatch.setattr(Contrary, "require", require)
    message = "softmax: decode.require 'w': not in the run's vocabulary"
    chat.feed("/compare softmax")
    assert chat.feed('/set require=["w"]') == [message]
    assert not chat.conversation.decode.require
    chat.feed("/compare")
    chat.feed('/set require=["w"]')
    assert chat.feed("/compare softmax") == [message]
    assert chat.beside is None


def test_ctrl_c_ends_the_loading_of_the_other_run() -> None:
    def pressed(run: Path) -> Conversation:
        signal.raise_signal(signal.SIGINT)
        return conversation(Contrary(), str(run))

    chat = Repl(conversation(ToyResponder(), "runs/mos"), pressed)
    with CTRL_C.held():
        assert chat.feed("/compare softmax") == ["(stopped)"]
    assert chat.beside is None


def test_one_reply_of_each_run_is_shown_and_repetition_is_noted(
    chat: Repl, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat.feed("/compare softmax")
    assert chat.feed("/nbest 3") == ["(the 3 best, after /compare; now the best of each run)"]
    assert len(chat.feed("so")) == 2
    word = chat.conversation.model.codec.encode("so")
    looping = [[Hypothesis((*word * 12,), -1.0, -1.0, finished=True)]]
    monkeypatch.setattr(chat.conversation.model, "respond", lambda examples, decode: looping)
    chat.feed("well")
    assert "goes round in a loop" in chat.notes[-1]


def test_an_ensemble_has_the_names_of_its_runs() -> None:
    first = conversation(ToyResponder(), "runs/mos + runs/softmax/")
    chat = Repl(first, lambda run: conversation(Contrary(), str(run)))
    assert chat.feed("/compare other/mos") == ["(every line is answered by mos + softmax and mos)"]


def test_it_ends_and_a_bad_run_changes_nothing(chat: Repl) -> None:
    assert chat.feed("/compare missing") == ["missing: no such run; check the path"]
    assert len(chat.feed("so")) == 1
    chat.feed("/compare a/mos")
    assert [line.split("  ")[0] for line in chat.feed("so")] == ["runs/mos", "a/mos   ".strip()]
    assert chat.feed("/compare") == ["(one run again)"]
    assert len(chat.feed("so")) == 1
    chat.feed("/compare softmax")
    chat.feed("/reset")
    assert len(chat.feed("so")) == 1, "a new conversation is one with one run"
    assert Repl(Conversation(ToyResponder())).feed("/compare x") == ["(no other run can be opened here)"]
