"""State of a conversation with a trained model, or with two side by side, independent of the terminal."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.cells import cell_len, set_cell_size

from dialog.batches import Example, next_example
from dialog.chat.ctrl_c import CTRL_C
from dialog.chat.transcript import (
    ENSEMBLE,
    HUMAN,
    MODEL,
    Alternative,
    Source,
    Turn,
    one_line,
    write_transcript,
)
from dialog.decoding.config import DecodeConfig
from dialog.decoding.steps import Hypothesis
from dialog.trained import StepProbabilities, TrainedModel
from dialog.utterance import Utterance
from lm.config.section import MAX_SEED
from lm.errors import ConfigError
from lm.text.vocabulary import Codec

SAYS_NOTHING = "(says nothing)"


def spoken(codec: Codec, tokens: Sequence[int]) -> str:
    """A hypothesis as one line of text."""
    return one_line(codec.decode(tokens))


def _with_next_seed(decode: DecodeConfig) -> DecodeConfig:
    return decode.model_copy(update={"seed": (decode.seed + 1) % (MAX_SEED + 1)})


@dataclass(frozen=True, slots=True)
class Exchange:
    """A line of the human, the model's hypotheses, best first, and their texts; one of these is the reply.

    ``asked`` has the settings of the conversation. ``decode`` has those of the hypotheses, since a further
    sample has another seed. Both are None if a file lacks them. Loaded hypotheses have no tokens. ``refused``
    has the replies that :meth:`Conversation.retry` has replaced.
    """

    said: Utterance
    hypotheses: tuple[Hypothesis, ...]
    texts: tuple[str, ...]
    asked: DecodeConfig | None
    decode: DecodeConfig | None
    source: Source | None
    chosen: int = 0
    refused: frozenset[str] = frozenset()

    @property
    def reply(self) -> Utterance:
        return Utterance(MODEL, self.texts[self.chosen] if self.texts else "")

    def turn(self) -> Turn:
        """The saved form of the exchange."""
        alternatives = tuple(
            Alternative(text=text, log_prob=found.log_prob, score=found.score, finished=found.finished)
            for found, text in zip(self.hypotheses, self.texts, strict=True)
        )
        return Turn(self.said.text, self.reply.text, alternatives, self.decode, self.source)


class Conversation:
    """The state of one chat: the exchanges so far and the decoding settings of the next one.

    The human is speaker A and the model B. The model's context equals that of ``list_examples`` for a corpus,
    so a conversation gets the same reply as in ``dialog evaluate``. ``source`` names the weights in saved
    files.
    """

    def __init__(
        self, model: TrainedModel, decode: DecodeConfig | None = None, source: Source | None = None
    ) -> None:
        self.model = model
        self.decode = decode or model.config.decode
        self.source = source
        self.exchanges: list[Exchange] = []

    def say(self, text: str) -> Exchange:
        """Say a line to the model. An exception leaves the conversation unchanged."""
        said = Utterance(HUMAN, text)
        exchange = self._respond(said, self.next_example(said), self.decode)
        self.exchanges.append(exchange)
        return exchange

    def retry(self) -> Exchange | None:
        """Replace the reply to the last line by another one.

        Sampling draws again with the next seed, and repeats a reply only if it drew no other. Beam search
        takes its next hypothesis. After a change of settings, the reply is their best hypothesis that was not
        yet a reply. None if beam search has none, or rules leave no sample.
        """
        last, heard = self.exchanges[-1], self.last_example
        refused = last.refused | {last.reply.text}
        known = (last.asked, last.source) == (self.decode, self.source)
        sampling, drawn = self.decode.method == "sample", last.decode if known else None
        if sampling and drawn:
            found = self._respond(last.said, heard, _with_next_seed(drawn))
        else:
            found = last if known and not sampling else self._respond(last.said, heard, self.decode)
        if sampling and not drawn and refused.issuperset(found.texts):  # the change of settings had no effect
            found = self._respond(last.said, heard, _with_next_seed(self.decode))
        left = [place for place, text in enumerate(found.texts) if text not in refused]
        if not left and (self.decode.method == "beam" or not found.texts):
            return None
        self.exchanges[-1] = replace(found, chosen=left[0] if left else 0, refused=refused)
        return self.exchanges[-1]

    def _respond(self, said: Utterance, example: Example, decode: DecodeConfig) -> Exchange:
        with CTRL_C.ends_reply():
            (found,) = self.model.respond([example], decode)
        texts = tuple(spoken(self.model.codec, hypothesis.tokens) for hypothesis in found)
        return Exchange(said, tuple(found), texts, self.decode, decode, self.source)

    def next_example(self, said: Utterance) -> Example:
        """The example whose response comes after ``said``."""
        return self._example(self.exchanges, said)

    @property
    def last_example(self) -> Example:
        """The example of the last reply, with as much context as this model reads."""
        *before, last = self.exchanges
        return self._example(before, last.said)

    def _example(self, exchanges: Sequence[Exchange], said: Utterance) -> Example:
        context = self.model.config.data.context
        before = [u for exchange in exchanges[-context:] for u in (exchange.said, exchange.reply)]
        return next_example((*before, said), MODEL, context)

    def save(self, path: Path) -> int:
        """Write the conversation as a transcript. Return the number of utterances."""
        return write_transcript(path, [exchange.turn() for exchange in self.exchanges])

    def go_on_from(self, turns: Iterable[Turn]) -> None:
        """Begin a new conversation with the exchanges of a saved one."""
        self.exchanges.clear()
        for turn in turns:
            said = Utterance(HUMAN, turn.said)
            found = tuple(Hypothesis((), a.log_prob, a.score, a.finished) for a in turn.alternatives)
            texts = tuple(alternative.text for alternative in turn.alternatives)
            chosen = texts.index(turn.reply) if texts else 0
            asked = turn.decode and turn.decode.model_copy(update={"seed": self.decode.seed})
            how = (asked, turn.decode, turn.model, chosen, frozenset(texts[:chosen]))
            self.exchanges.append(Exchange(said, found, texts, *how))

    def probabilities(self, top: int) -> list[StepProbabilities] | None:
        """The ``top`` most probable tokens at every step of the last reply. None if there is no reply."""
        if not self.exchanges or not self.exchanges[-1].hypotheses:
            return None
        last = self.exchanges[-1]
        best = last.hypotheses[last.chosen]
        tokens = best.tokens or self.model.codec.encode(last.reply.text)
        steps = self.model.token_probabilities(self.last_example, tokens, top)
        return steps if best.finished else steps[:-1]


class SideBySide:
    """A second conversation that hears the lines of a first one.

    Both have the same exchanges so far. From then on each hears its own replies. The settings are those of
    the first one.
    """

    def __init__(self, first: Conversation, second: Conversation) -> None:
        self._first, self._second = first, second
        second.exchanges[:] = first.exchanges
        self.names = _names(first, second)

    def require(self, decode: DecodeConfig) -> None:
        """Raise ConfigError, with the name of the second run, if it cannot decode by these settings."""
        try:
            self._second.model.require(decode)
        except ConfigError as error:
            raise ConfigError(f"{self.names[1]}: {error}") from None

    def answers(self, said: Exchange) -> list[str]:
        """The reply of the first run, which it has given, and that of the second, each after its name.

        If the second run fails, neither has heard the line.
        """
        self._second.decode = self._first.decode
        try:
            other = self._second.say(said.said.text)
        except BaseException:
            self._first.exchanges.pop()
            raise
        return self._named(said, other)

    def retry(self) -> list[str]:
        """Another reply of each run to the last line, after its name; a run without one keeps its reply.

        If the second run fails, neither has another reply.
        """
        before = self._first.exchanges[-1]
        self._second.decode = self._first.decode
        found = [self._first.retry()]
        try:
            found.append(self._second.retry())
        except BaseException:
            self._first.exchanges[-1] = before
            raise
        rows = self._named(self._first.exchanges[-1], self._second.exchanges[-1])
        return [row if new else f"{row}  (no other)" for row, new in zip(rows, found, strict=True)]

    def _named(self, *exchanges: Exchange) -> list[str]:
        width = max(map(cell_len, self.names))
        return [
            f"{set_cell_size(name, width)}  {exchange.reply.text or SAYS_NOTHING}"
            for name, exchange in zip(self.names, exchanges, strict=True)
        ]

    def undo(self) -> None:
        """Take back the last line of the second conversation."""
        self._second.exchanges.pop()


def _names(*conversations: Conversation) -> list[str]:
    """Names of the runs: those of their folders, or whole paths if these are equal."""
    runs = [one.source.run.rstrip("/") if one.source else "this" for one in conversations]
    folders = (run.split(ENSEMBLE) for run in runs)
    short = [ENSEMBLE.join(one.rstrip("/").rpartition("/")[2] for one in several) for several in folders]
    return short if len(set(short)) == len(short) else runs
