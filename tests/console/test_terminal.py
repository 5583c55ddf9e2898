"""Nothing that a terminal obeys survives, and plain text is left alone."""

import io
import time
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from lm.console.terminal import sanitize, unmarked
from tests.support.terminal_text import FORBIDDEN, anything, mixtures

TAGS = "".join(map(chr, range(0xE0000, 0xE0080)))  # invisible, though Unicode assigns only some of them


@settings(max_examples=300, deadline=None)
@given(mixtures | anything)
def test_nothing_dangerous_survives(text: str) -> None:
    clean = sanitize(text)
    assert not FORBIDDEN.search(clean)
    assert sanitize(clean) == clean
    clean.encode()
    remaining = iter(text)
    assert all(character in remaining for character in clean)  # only ever drops


@settings(max_examples=200, deadline=None)
@example("\U000e0080")
@given(
    st.text(
        st.characters(exclude_categories=["Cc", "Cf", "Cs"], exclude_characters=TAGS)
        | st.sampled_from("\n\t\u200c\u200d")
    )
)
def test_plain_text_is_unchanged(text: str) -> None:
    assert sanitize(text) == text


@pytest.mark.parametrize("code", [*range(0x00, 0xA0), *range(0xD800, 0xE000, 64), 0x202E, 0x2066])
def test_single_characters(code: int) -> None:
    kept = chr(code) in "\n\t" or unicodedata.category(chr(code)) not in ("Cc", "Cf", "Cs")
    assert sanitize(f"a{chr(code)}") == ("a" + chr(code) * kept)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a\x1b[31mred\x1b[0m", "ared"),
        ("a\x1b[2J\x1b[1;1Hb", "ab"),
        ("a\x9b31mb", "ab"),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1b]52;c;ZXZpbA==\x1b\\b", "ab"),
        ("a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\b", "alinkb"),
        ("a\x1bPdevice\x1b\\b", "ab"),
        ("a\x1b_app\x1b\\b\x1b^pm\x1b\\c\x1bXsos\x9cd", "abcd"),
        ("a\x9dtitle\x9cb", "ab"),
        ("a\x1bcb\x1b(Bc", "abc"),
        ("a\x1b]never ends\nb", "a\nb"),
        ("a\x1b\x1b[31m[31mb", "a[31mb"),
        ("a\x1b", "a"),
        ("a\x1b[", "a"),
        ("a\rb\r\n", "ab\n"),
        ("user\u202eexe.txt", "userexe.txt"),
        ("\ufeffbom", "bom"),
        ("\U0001f468\u200d\U0001f469", "\U0001f468\u200d\U0001f469"),
    ],
)
def test_sequences_go_with_their_payload(text: str, clean: str) -> None:
    assert sanitize(text) == clean


@pytest.mark.parametrize("piece", ["\x1b]", "\x1b[", "\x1b[0;", "\x1b", "\x9d0", "\x1b(", "a\x1b]x\x1b"])
def test_a_megabyte_takes_no_time(piece: str) -> None:
    started = time.perf_counter()
    sanitize(piece * (1_000_000 // len(piece)))
    assert time.perf_counter() - started < 5


@settings(max_examples=100, deadline=None)
@given(mixtures | st.sampled_from(["[bold]x[/bold]", "[/foo]", "[link=http://x]y[/link]", ":smile:"]))
def test_rich_reads_no_markup_and_shows_no_control(text: str) -> None:
    output = io.StringIO()
    Console(file=output, force_terminal=True, width=10_000, highlight=False).print(unmarked(text), end="")
    shown = output.getvalue()
    assert not FORBIDDEN.search(shown)
    assert shown.split() == sanitize(text).split()
