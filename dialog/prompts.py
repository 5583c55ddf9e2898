"""Contexts as prompts of a chat template, with speakers as the roles ``user`` and ``assistant``."""

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from dialog.utterance import Utterance
from lm.errors import DataError
from lm.huggingface.chat import ChatRenderer, messages_of
from lm.text.pretrained_tokenizer import PretrainedTokenizer
from lm.text.tokenizers import DIALOG
from lm.text.vocabulary import Codec

_CUTS = 2**14  # utterances kept, since the examples of a dialog share most of their contexts


def alternating(context: Sequence[Utterance], responder: str) -> list[str]:
    """Texts of a context that alternate between another speaker and the responder, the first of the former.

    Consecutive utterances of one side are lines of one text. Where the responder begins or answers the own
    utterance, the text of the other side is empty. The mark of the beginning of a dialog is left out.
    """
    said = [one for one in context if one.text != DIALOG]
    texts: list[str] = []
    for own, group in groupby(said, lambda one: one.speaker == responder):
        if own and not texts:
            texts.append("")
        texts.append("\n".join(one.text for one in group))
    return texts if len(texts) % 2 else [*texts, ""]


class Prompts:
    """Converts contexts to prompts in token ids.

    Args:
        codec: codec of the run, which has a chat template.
        max_tokens: maximum tokens of an utterance, with two for marks.
        room: maximum tokens of a prompt.
    """

    def __init__(self, codec: Codec, max_tokens: int, room: int) -> None:
        tokenizer, form = codec.tokenizer, codec.chat
        assert isinstance(tokenizer, PretrainedTokenizer)
        assert form is not None
        self._codec, self._form, self._most, self._room = codec, form, max_tokens - 2, room
        self._begin = tokenizer.text_start
        self._renderer = _renderer(tokenizer)
        self._cut = lru_cache(maxsize=_CUTS)(self._cut_text)

    def ids(self, context: Sequence[Utterance], responder: str) -> tuple[int, ...]:
        """The prompt of a context, whose last token is that before every response.

        The oldest utterances are left out, and then the end of the last one, until the prompt has room. The
        first utterance is found by bisection, since a rendering takes as long as its context.
        DataError if the template raises, or cannot be made to fit.
        """

        def rendered(first: int) -> tuple[int, ...]:
            return self._rendered(context[first:], responder, self._most)

        if len(ids := rendered(0)) <= self._room:
            return ids
        last = len(context) - 1
        first = bisect_left(range(last), True, lo=min(1, last), key=lambda n: len(rendered(n)) <= self._room)
        ids, most = rendered(first), self._most
        while len(ids) > self._room and most > 0:
            most = max(0, most - (len(ids) - self._room))
            ids = self._rendered(context[-1:], responder, most)
        if len(ids) > self._room:
            raise DataError(
                f"the chat template takes {len(ids):,} tokens without a text, more than data.context ×"
                f" data.max_tokens = {self._room:,}; raise data.max_tokens, or set data.chat_template = false"
            )
        return ids

    def _rendered(self, context: Sequence[Utterance], responder: str, most: int) -> tuple[int, ...]:
        cut = [Utterance(one.speaker, self._cut(one.text, most)) for one in context]
        try:
            ids = self._renderer.ids(messages_of(alternating(cut, responder)), True)
        except ValueError as error:
            raise DataError(
                f"the chat template {error}; train with data.chat_template = false, or mend the template"
            ) from error
        ids += self._form.lead
        if ids[-1] != self._form.first:
            raise DataError(
                "the chat template ends a prompt in another way than before; train with data.chat_template ="
                " false"
            )
        return (*ids,) if len(ids) > 1 else (self._begin, *ids)

    def _cut_text(self, text: str, most: int) -> str:
        """The first ``most`` tokens of a text; the mark of the beginning of a dialog is kept."""
        if text == DIALOG:
            return text
        ids = self._codec.encode(text)
        return text if len(ids) <= most else self._codec.decode(ids[:most])


@lru_cache(maxsize=4)
def _renderer(tokenizer: PretrainedTokenizer) -> ChatRenderer:
    """The renderer of a tokenizer, kept, since a large one takes seconds to read."""
    assert tokenizer.chat is not None
    return ChatRenderer(tokenizer.library, tokenizer.chat.template, tokenizer.chat.marks)
