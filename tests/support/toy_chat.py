"""A chat with the toy responder: conversations, the examples that it heard, saved lines."""

import json
from pathlib import Path
from typing import Any

from dialog.batches import Example
from dialog.chat.conversation import Conversation
from dialog.chat.repl import Repl
from tests.support.terminal_text import FORBIDDEN
from tests.support.toy_responder import ToyResponder


def conversation() -> Repl:
    return Repl(Conversation(ToyResponder()))


def heard(chat: Repl) -> list[Example]:
    """The examples that a toy was asked to answer."""
    assert isinstance(chat.conversation.model, ToyResponder)
    return chat.conversation.model.heard


def safe(lines: list[str]) -> bool:
    return not any("\n" in line or FORBIDDEN.search(line) for line in lines)


def chat_lines(name: str) -> list[dict[str, Any]]:
    """The lines of a conversation that chat has saved."""
    chat = conversation()
    chat.feed("hello")
    chat.feed("how are you")
    chat.feed(f"/save {name}")
    return [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]
