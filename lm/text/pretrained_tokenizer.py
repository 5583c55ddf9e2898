"""Tokenizers of pretrained models, as the library ``tokenizers`` stores them.

The vocabulary is the tokenizer's own, with the ids of the model. One of its pieces ends a line: the piece of
a line end, or else the one that ends a text. It has the name ``<eos>``, as in every language model. Ids
without a piece, which a model has in reserve, are named by their number.

For dialogs, the piece that ends a text is ``</s>``, and the other special tokens follow the model's ids. With
a chat template, ``</s>`` is the piece that ends a response.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

from lm.libraries import require_libraries
from lm.text.tokenizers import EOS, EOS_WORD, SPECIALS

if TYPE_CHECKING:
    from lm.text.chat_form import ChatForm


@dataclass(frozen=True)
class PretrainedTokenizer:
    """A tokenizer with its vocabulary, stored as bytes of JSON.

    In the JSON, ``tokenizer`` is the text of a ``tokenizer.json``, and ``size`` the number of ids. ``begin``
    is the id of the piece before a text, and ``end`` that of the piece for ends of lines or utterances.
    ``dialog`` is true for dialogs. ``chat`` is the :class:`ChatForm` of dialogs with a chat template.
    """

    model: bytes
    lowercase: bool = False
    kind: Literal["hf"] = "hf"

    @classmethod
    def of(
        cls,
        tokenizer: str,
        size: int,
        begin: int,
        end: int,
        *,
        dialog: bool = False,
        chat: "ChatForm | None" = None,
    ) -> Self:
        """Raises ValueError if the text is no tokenizer, or its ids do not fit the others."""
        stored: dict[str, Any] = {"begin": begin, "dialog": dialog, "end": end, "size": size}
        stored |= {"tokenizer": tokenizer} | ({} if chat is None else {"chat": chat.model_dump()})
        found = cls(json.dumps(stored).encode())
        if len(set(found.names)) != len(found.names):
            raise ValueError("two ids have pieces of the same name")
        return found

    @cached_property
    def _stored(self) -> Mapping[str, Any]:
        stored: dict[str, Any] = {"dialog": False, "chat": None} | json.loads(self.model)
        if stored["chat"] is not None:
            from lm.text.chat_form import ChatForm

            stored["chat"] = ChatForm.model_validate(stored["chat"])
            numbers = [stored["chat"].first, stored["chat"].end, *stored["chat"].lead]
        else:
            numbers = []
        numbers += [stored["begin"], stored["end"]]
        if not all(isinstance(number, int) and 0 <= number < stored["size"] for number in numbers):
            raise ValueError("the ids of begin and end are not in the vocabulary")
        if not isinstance(stored["tokenizer"], str):
            raise TypeError("the tokenizer is not a text")
        return stored

    @property
    def library(self) -> Any:
        """A new tokenizer of the library."""
        return library_tokenizer(self._stored["tokenizer"])

    @cached_property
    def _tokenizer(self) -> Any:
        return self.library

    @property
    def text_start(self) -> int:
        """Id of the piece before a text."""
        begin: int = self._stored["begin"]
        return begin

    @property
    def begin(self) -> int | None:
        """Id of the piece before a text; None for dialogs.

        Raises KeyError, TypeError or ValueError if the JSON is foreign.
        """
        return None if self._stored["dialog"] else self.text_start

    @property
    def chat(self) -> "ChatForm | None":
        """The chat template of dialogs, if they have one."""
        chat: ChatForm | None = self._stored["chat"]
        return chat

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The token of every id."""
        size, end, dialog = (self._stored[key] for key in ("size", "end", "dialog"))
        mark = EOS if dialog else EOS_WORD
        found = [f"<piece {index}>" for index in range(size)]
        for piece, index in self._tokenizer.get_vocab(with_added_tokens=True).items():
            if index >= size:
                raise ValueError(f"the piece {piece!r} has the id {index:,} of {size:,} ids")
            if piece not in (mark, EOS_WORD):
                found[index] = piece
        found[end] = mark
        known = set(found)
        return (*found, *(special for special in SPECIALS if dialog and special not in known))

    def split(self, text: str) -> list[str]:
        names = self.names
        return [names[index] for index in self._tokenizer.encode(text, add_special_tokens=False).ids]

    def join(self, tokens: Sequence[str]) -> str:
        decoder = self._tokenizer.decoder
        text: str = decoder.decode(list(tokens)) if decoder else " ".join(tokens)
        if chat := self.chat:
            text = text.removeprefix(chat.before).removesuffix(chat.after)
        return text


def library_tokenizer(text: str) -> Any:
    """The tokenizer of a ``tokenizer.json``, which neither cuts nor fills texts. ValueError if it is none."""
    require_libraries("data.tokenizer = hf", "hf", "tokenizers")
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises no narrower class
        raise ValueError("no tokenizer of the library tokenizers") from error
    tokenizer.no_truncation()  # whoever used it last may have stored how to cut and fill a batch
    tokenizer.no_padding()
    return tokenizer
