"""Chat templates of pretrained tokenizers: learned from a folder, and rendered in transformers' sandbox.

A conversation alternates between ``user`` and ``assistant``, and begins and ends with ``user``. A template
that asks for the date gets noon of one fixed day, so that no prompt depends on the day of its rendering.
"""

import json
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from lm.disk.storage import read_file
from lm.errors import brief
from lm.libraries import require_libraries
from lm.text.chat_form import ChatForm

TEMPLATE = "chat_template.jinja"

_LIMIT = 1 << 20  # bytes of a template
_SECONDS = 10.0  # time limit of one rendering
_MARKS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_ANSWERS = ("Yes, it is.", "no")
# Noon of a Friday, by the directives of strftime. Runs depend on it: it never changes.
_NOON = {
    "a": "Fri", "A": "Friday", "b": "Jul", "B": "July", "c": "Fri Jul 26 12:00:00 2024", "d": "26",
    "D": "07/26/24", "e": "26", "f": "000000", "F": "2024-07-26", "G": "2024", "h": "Jul", "H": "12",
    "I": "12", "j": "208", "m": "07", "M": "00", "p": "PM", "R": "12:00", "S": "00", "T": "12:00:00",
    "u": "5", "U": "29", "V": "30", "w": "5", "W": "30", "x": "07/26/24", "X": "12:00:00", "y": "24",
    "Y": "2024", "z": "", "Z": "",
}  # fmt: skip
_UNPADDED = {"-d": "26", "-H": "12", "-I": "12", "-j": "208", "-m": "7", "-M": "0", "-S": "0", "-y": "24"}
_TALKS = (("",), ("Good morning.",), ("hello", "Hi there!", "what time is it?"))


def template_of(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The chat template of a folder with these settings of its tokenizer, None without one."""
    if (folder / TEMPLATE).is_file():
        return read_file(folder / TEMPLATE, limit=_LIMIT).decode("utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):  # of named templates
        found = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}.get(
            "default"
        )
    return found if isinstance(found, str) else None


def dated(template: str) -> str:
    """The template with a ``strftime_now`` of its own, which tells a fixed date instead of today's.

    It is a macro, since transformers lets no function through to a template. Jinja drops the line end after
    it, so that the template begins a line as before.
    """
    if "strftime_now" not in template:
        return template
    values = {"%%": "\0"} | {f"%{name}": value for name, value in (_UNPADDED | _NOON).items()} | {"\0": "%"}
    replaced = "".join(f"|replace({json.dumps(old)},{json.dumps(new)})" for old, new in values.items())
    return f"{{% macro strftime_now(format) %}}{{{{ format{replaced} }}}}{{% endmacro %}}\n{template}"


def messages_of(texts: Sequence[str]) -> list[dict[str, str]]:
    """Messages of texts that alternate, the first by ``user``."""
    roles = ("user", "assistant")
    return [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]


class ChatRenderer:
    """Renders conversations with a template to token ids. ``library`` is a tokenizer of ``tokenizers``."""

    def __init__(self, library: Any, template: str, marks: Mapping[str, str]) -> None:
        require_libraries("a chat template", "hf", "transformers")
        from transformers import PreTrainedTokenizerFast

        self._library = library
        self._tokenizer: Any = PreTrainedTokenizerFast(
            tokenizer_object=library, chat_template=dated(template), **marks
        )

    def ids(self, messages: Sequence[dict[str, str]], prompt: bool) -> list[int]:
        """Ids of a conversation; with ``prompt`` also what comes before an answer.

        Special tokens in contents are read as text. Raises ValueError as :meth:`text` does.
        """
        with _rendering():
            found: list[int] = self._tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=prompt, return_dict=False, sanitize_control_tokens=True
            )
        return found

    def text(self, messages: Sequence[dict[str, str]], prompt: bool) -> str:
        """:meth:`ids` before tokenization. Raises ValueError if the template raises, or never ends."""
        with _rendering():
            found: str = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=prompt
            )
        return found

    def plain(self, text: str) -> list[int]:
        """Ids of a text without a template."""
        found: list[int] = self._library.encode(text, add_special_tokens=False).ids
        return found

    def end_in(self, tail: str) -> int | None:
        """Place of the first special token in the ids of a text, if only blanks are before it."""
        special = {
            index for index, token in self._library.get_added_tokens_decoder().items() if token.special
        }
        ids = self.plain(tail)
        place = next((place for place, index in enumerate(ids) if index in special), None)
        if place is None or self._library.decode(ids[:place], skip_special_tokens=False).strip():
            return None
        return place


def learn_form(library: Any, template: str, settings: Mapping[str, Any]) -> ChatForm:
    """The form of a template, learned from the ways in which it renders a few conversations.

    ValueError with the problem if the template raises, never ends, puts something else last than the response
    and a special token, or does not keep the tokens of prompt and response apart.
    """
    named = {name: token_text(settings.get(name)) for name in _MARKS}
    marks = {name: text for name, text in named.items() if text is not None}
    renderer = ChatRenderer(library, template, marks)
    around = {_around(renderer, talk, answer) for talk in _TALKS for answer in _ANSWERS}
    if len(around) > 1:
        raise ValueError("puts different texts around different responses")
    (lead, tail) = around.pop()
    if tail.strip():
        place = renderer.end_in(tail)
        if place is None:
            raise ValueError(f"ends a response with {tail[:20]!r}, which is no special token")
        end = renderer.plain(tail)[place]
        after = tail[: tail.index(library.id_to_token(end))]
    elif "eos_token" in marks:
        end, after = library.token_to_id(marks["eos_token"]), tail
    else:
        raise ValueError("ends a response with nothing, and there is no eos_token")
    blanks = (lead[len(lead.rstrip(" ")) :], "", lead[len(lead.rstrip()) :])  # words may take a blank before
    for before in dict.fromkeys(blanks):
        opening = renderer.plain(lead.removesuffix(before))
        lasts = {
            _last(renderer, talk, answer, opening, (before, after), end)
            for talk in _TALKS
            for answer in _ANSWERS
        }
        if len(lasts) == 1 and (last := lasts.pop()) is not None:
            return ChatForm(
                template=template,
                marks=marks,
                lead=tuple(opening),
                first=last,
                end=end,
                before=before,
                after=after,
            )
    raise ValueError("joins the end of a prompt and the beginning of a response in one token")


def token_text(value: object) -> str | None:
    """Text of a special token, which is a text or an object with the text as ``content``."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _around(renderer: ChatRenderer, talk: Sequence[str], answer: str) -> tuple[str, str]:
    """Texts between a prompt and a response, and after the response."""
    prompt = renderer.text(messages_of(talk), True)
    whole = renderer.text(messages_of([*talk, answer]), False)
    rest = whole.removeprefix(prompt)
    if not whole.startswith(prompt) or answer not in rest:
        raise ValueError("does not put the response last")
    lead, _, tail = rest.partition(answer)
    return lead, tail


def _last(
    renderer: ChatRenderer,
    talk: Sequence[str],
    answer: str,
    opening: Sequence[int],
    blanks: tuple[str, str],
    end: int,
) -> int | None:
    """Last id of the prompt, None if prompt and response have other tokens in the whole conversation."""
    prompt = [*renderer.ids(messages_of(talk), True), *opening]
    said = renderer.plain(answer.join(blanks))
    whole = renderer.ids(messages_of([*talk, answer]), False)
    parts = [*prompt, *said]
    ends = whole[len(parts) : len(parts) + 1]
    return prompt[-1] if whole[: len(parts)] == parts and ends in ([], [end]) and prompt else None


@contextmanager
def _rendering() -> Iterator[None]:
    """Context of a template's own code, whose exceptions become ValueError, as does its time limit.

    Only the main thread has a time limit, since signals do. A template that ends on one conversation has
    been rendered there before.
    """

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"takes longer than {_SECONDS:g} seconds")

    limited = threading.current_thread() is threading.main_thread()
    try:
        if limited:
            before = signal.signal(signal.SIGALRM, late)
            signal.setitimer(signal.ITIMER_REAL, _SECONDS)
        try:
            yield
        finally:
            if limited:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
    except TimeoutError as error:
        raise ValueError(str(error)) from error
    except Exception as error:  # of the template
        raise ValueError(f"raises {brief(error)!r}") from error
