"""Chat: another reply to the last line, of the same search or of a new draw."""

from dataclasses import replace

import pytest

from dialog.batches import Example
from dialog.chat.conversation import Conversation
from dialog.chat.repl import Repl
from dialog.trained import TrainedModel
from dialog.utterance import Utterance
from lm.errors import DivergenceError
from tests.support.toy_chat import conversation, heard
from tests.support.toy_responder import ToyResponder


def test_retry_takes_the_next_of_a_beam() -> None:
    chat = conversation()
    first = chat.feed("hello")
    texts = chat.conversation.exchanges[0].texts
    others = [[text or "(says nothing)"] for text in dict.fromkeys(texts) if [text] != first]
    assert [chat.feed("/retry") for _ in others] == others
    assert chat.conversation.exchanges[0].reply.text == texts[-1]
    assert len(heard(chat)) == 1, "the same search serves all"
    (answer,) = chat.feed("/retry")
    assert "no other reply was found" in answer
    chat.feed("/set nbest=9")
    (answer,) = chat.feed("/retry")
    assert answer == chat.conversation.exchanges[0].texts[5]
    assert len(chat.conversation.exchanges) == 1
    chat.feed("and then")
    assert heard(chat)[-1].context[-2] == Utterance("B", answer), "the model hears what was said at last"


def test_retry_draws_a_sample_again_with_the_next_seed(tiny: TrainedModel) -> None:
    chat = Repl(Conversation(tiny))
    chat.feed("/sample T=2")
    chat.feed("/seed 7")
    chat.feed("well i saw that film")
    drawn = [chat.feed("/retry") for _ in range(4)]
    assert chat.conversation.exchanges[0].decode == chat.conversation.decode.model_copy(update={"seed": 11})
    assert len({tuple(answer) for answer in drawn}) > 1
    again = Repl(Conversation(tiny, chat.conversation.exchanges[0].decode))
    assert again.feed("well i saw that film") == drawn[-1], "the seed that is saved gives the reply"


def test_retry_is_another_sample_after_a_setting_without_effect(tiny: TrainedModel) -> None:
    chat = Repl(Conversation(tiny))
    chat.feed("/sample T=2")
    first = chat.feed("well i saw that film")
    chat.feed("/set beam=3")
    assert chat.feed("/retry") != first
    exchange = chat.conversation.exchanges[0]
    assert exchange.decode
    assert exchange.asked
    assert (exchange.decode.seed, exchange.decode.beam) == (exchange.asked.seed + 1, 3)


def test_retry_of_samples_takes_another_of_the_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = conversation()
    chat.feed("hello")
    chat.feed("/sample")
    first = chat.conversation.exchanges[0]
    monkeypatch.setattr(Conversation, "_respond", lambda *_: first)  # every draw is the same
    said = {first.reply.text}
    for _ in range(len(set(first.texts)) - 1):
        chat.feed("/retry")
        said.add(chat.conversation.exchanges[0].reply.text)
    assert said == set(first.texts)
    chat.feed("/retry")
    assert chat.conversation.exchanges[0].reply == first.reply, "no other was drawn"


def test_a_stopped_retry_leaves_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = conversation()
    chat.feed("hello")
    before = list(chat.conversation.exchanges)
    chat.feed("/sample")

    def fail(responder: ToyResponder, example: Example) -> None:
        raise DivergenceError("the model's probabilities are not numbers")

    monkeypatch.setattr(ToyResponder, "_wait", fail)
    chat.conversation.exchanges[0] = replace(before[0], said=Utterance("A", "wait"))
    assert chat.feed("/retry") == ["the model's probabilities are not numbers"]
    assert chat.conversation.exchanges[0].reply == before[0].reply


def test_retry_keeps_the_reply_where_rules_leave_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = conversation()
    chat.feed("hello")
    chat.feed("/sample")
    before = chat.conversation.exchanges[0]
    monkeypatch.setattr(Conversation, "_respond", lambda *_: replace(before, hypotheses=(), texts=()))
    (answer,) = chat.feed("/retry")
    assert "no other reply was found" in answer
    assert chat.conversation.exchanges == [before]
