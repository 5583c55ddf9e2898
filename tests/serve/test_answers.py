"""Replies of the API, cut where a request wants them to stop."""

import pytest

from lm.serve.answers import Choice, Token

REPLY = Choice(tuple(Token(text, text) for text in ("so", " it", " goes")), finished=False)


@pytest.mark.parametrize(
    ("stops", "text", "tokens"),
    [
        ([" it"], "so", 1),
        ([" goes", "t g"], "so i", 2),
        (["so"], "", 0),
        (["o"], "s", 1),
    ],
)
def test_a_reply_ends_before_the_first_stop(stops: list[str], text: str, tokens: int) -> None:
    cut = REPLY.until(stops)
    assert (cut.text, len(cut.tokens), cut.finish_reason) == (text, tokens, "stop")


def test_without_a_stop_in_it_a_reply_is_whole() -> None:
    assert REPLY.until(["went"]) is REPLY
