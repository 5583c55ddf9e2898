"""Chat: utterances that the model hears, its replies with their probabilities, and remarks."""

import io
import signal

import pytest

from dialog.batches import START, Example, list_examples
from dialog.chat.conversation import Conversation
from dialog.chat.ctrl_c import CTRL_C
from dialog.chat.repl import Repl
from dialog.chat.terminal import converse
from dialog.decoding.config import DecodeConfig
from dialog.trained import TrainedModel
from dialog.utterance import Dialog, Utterance
from lm.errors import DivergenceError
from tests.support.toy_chat import conversation, heard
from tests.support.toy_responder import ToyResponder


@pytest.mark.parametrize("method", ["beam", "sample"])
def test_replies_are_those_of_evaluation(tiny: TrainedModel, method: str) -> None:
    """The same context as an example of a corpus, among others in a batch, gets the same response."""
    decode = DecodeConfig.model_validate(tiny.config.decode.model_dump() | {"method": method, "seed": 7})
    chat = Repl(Conversation(tiny, decode))
    said = ["well i saw that film", "Oh, was it LONG?", "yeah", "right", "i think so", "uh-huh", "oh yeah"]
    replies = [chat.feed(line) for line in said]
    utterances = [u for exchange in chat.conversation.exchanges for u in (exchange.said, exchange.reply)]
    corpus = [Dialog("x", "", tuple(utterances)), Dialog("y", "", tuple(utterances[4:] + utterances[:3]))]
    corpus[0] = Dialog("x", "", (*utterances, Utterance("A", "bye")))
    examples = list_examples(corpus, tiny.config.data.context)
    found = tiny.respond(examples, decode, batch_size=5)
    for index, reply in enumerate(replies):
        best = found[2 * index + 1][0]
        assert chat.conversation.exchanges[index].hypotheses[0].tokens == best.tokens
        assert chat.conversation.exchanges[index].hypotheses[0].log_prob == pytest.approx(
            best.log_prob, abs=1e-4
        )
        assert reply == [tiny.codec.decode(best.tokens) or "(says nothing)"]
    assert len({tuple(reply) for reply in replies}) > 1


def test_shares_of_the_components_sum_to_the_probability(tiny: TrainedModel) -> None:
    chat = Repl(Conversation(tiny))
    chat.feed("well was it long")
    lines = chat.feed("/probs 4")
    best = chat.conversation.exchanges[-1].hypotheses[0]
    heads = [line for line in lines if not line.startswith(" ")]
    assert len(heads) == len(best.tokens) + best.finished
    assert len(lines) == 5 * len(heads)
    for line in lines:
        if line.startswith(" "):
            prob, shares = line.split()[0], line.partition(" = ")[2].split(" + ")
            assert len(shares) == 3
            assert sum(map(float, shares)) == pytest.approx(float(prob), abs=3e-4)
        else:
            assert sum(map(float, line.partition("prior ")[2].split())) == pytest.approx(1, abs=3e-4)


def test_the_model_hears_the_last_utterances() -> None:
    chat = conversation()
    chat.feed("hello there")
    (example,) = heard(chat)
    assert example.context == (START, Utterance("A", "hello there"))
    assert example.responder == "B"
    for number in range(20):
        chat.feed(f"line {number}")
    spoken = [u for exchange in chat.conversation.exchanges for u in (exchange.said, exchange.reply)]
    assert heard(chat)[-1].context == tuple(spoken[-10:-1])
    assert len(heard(chat)[-1].context) == 9


def test_undo_and_reset_restore_what_the_model_heard() -> None:
    chat = conversation()
    first = chat.feed("one")
    second = chat.feed("two")
    assert chat.feed("/undo") == ["(took back: two)"]
    assert chat.feed("two") == second
    assert chat.feed("/reset") == ["(a new conversation)"]
    assert chat.feed("one") == first
    chat.feed("/undo")
    assert chat.feed("/undo") == ["(nothing to take back)"]
    assert chat.feed("/probs") == ["(no reply to look into yet)"]


def test_a_loop_is_hinted_at_once_in_a_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    def says(chat: Repl, text: str) -> None:
        monkeypatch.setattr(chat.conversation.model.codec, "decode", lambda tokens: text)

    chat = conversation()
    says(chat, "i'm afraid i'm afraid i'm afraid")
    chat.feed("hello there")
    assert [note for note in chat.notes if "no_repeat_ngram=3" in note and "/sample" in note] == [
        chat.notes[-1]
    ]
    chat.feed("hello again")
    assert not any("loop" in note for note in chat.notes)
    chat.feed("/reset")
    says(chat, "yeah , yeah , so so .")
    for line, hints in (("one", 0), ("two", 0), ("Two", 0), ("three", 1), ("four", 0)):
        chat.feed(line)
        assert sum("same reply to different lines" in note for note in chat.notes) == hints, line


def test_unknown_words_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    chat = conversation()
    chat.feed("yeah Z\u00fcrich is zrh <unk> z\u00fcrich yeah ?! -")
    assert chat.notes == ["unknown: z\u00fcrich, is, zrh"]
    chat.feed("yeah well i think so")
    assert chat.notes == []
    chat.feed(" ".join(f"w{number}" for number in range(5000)))
    assert chat.notes[0].endswith("w7 and 4,992 more")
    converse(conversation(), io.StringIO("yeah\n\x1b[31mqqq\n"), output := io.StringIO())
    assert len(output.getvalue().splitlines()) == 2, "standard output has replies alone"
    assert capsys.readouterr().err == "line 2: unknown: qqq\n"


def test_empty_lines_are_passed_over() -> None:
    chat = conversation()
    assert [chat.feed(line) for line in ("", "   ", "\n", "\x1b[31m", "\udcff")] == [[]] * 5
    assert chat.conversation.exchanges == []


def test_a_stopped_or_failed_reply_leaves_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = conversation()
    chat.feed("hello")
    before = list(chat.conversation.exchanges)

    def press(responder: ToyResponder, example: Example) -> None:
        signal.raise_signal(signal.SIGINT)

    def fail(responder: ToyResponder, example: Example) -> None:
        raise DivergenceError("the model's probabilities are not numbers")

    with CTRL_C.held():
        for meddle, told in ((press, "(stopped)"), (fail, "the model's probabilities are not numbers")):
            monkeypatch.setattr(ToyResponder, "_wait", meddle)
            CTRL_C.forget()
            assert chat.feed("wait") == [told]
            chat.conversation.decode = chat.conversation.decode.model_copy(update={"seed": 5})
            assert chat.feed("/retry") == [told]
            assert chat.conversation.exchanges == before
