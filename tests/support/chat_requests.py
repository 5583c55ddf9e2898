"""Requests to the server of dialog models."""

from typing import Any

from lm.serve.protocol import ChatRequest


def conversation(*texts: str) -> Any:
    """Messages of the human and the model in turn; the last one is the human's."""
    roles = ("user", "assistant")
    return [
        {"role": roles[(len(texts) - 1 - place) % 2], "content": text} for place, text in enumerate(texts)
    ]


def parsed_chat(**more: Any) -> ChatRequest:
    """A chat of one message, with further fields."""
    return ChatRequest.model_validate({"model": "tiny", "messages": conversation("a"), **more})
