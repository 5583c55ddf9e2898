"""Sanitisation of text from data, models and users for terminals."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

# ECMA-48 sequences, in the order of a terminal's parser. Strings (DCS, SOS, OSC, PM, APC) run to BEL or
# ST; one that never ends is dropped to the end of its line, so that it cannot take the whole text with it.
_STRING = r"(?:\x1b[PX\]^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x18\x1a\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
_CSI = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
_ESCAPE = r"\x1b[ -/]*[0-~]?"
_CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 except tab and newline, DEL, C1
_BIDI = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"  # and the deprecated format characters after them
_INVISIBLE = (
    r"\u200b\u2060-\u2064\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # not the joiners that scripts need
)
_SURROGATES = r"\ud800-\udfff"
_UNSAFE = re.compile(f"{_STRING}|{_CSI}|{_ESCAPE}|[{_CONTROLS}{_BIDI}{_INVISIBLE}{_SURROGATES}]")


def sanitize(text: str) -> str:
    """Remove terminal controls and invisible characters from ``text``.

    Removed are escape sequences with parameters and payload, control characters except tab and newline,
    bidirectional controls, invisible characters except joiners, and lone surrogates. Everything else is
    unchanged. Sanitising twice changes nothing.
    """
    return _UNSAFE.sub("", text)


def unmarked(text: str) -> "Text":
    """``text`` sanitised for a rich console, without markup."""
    from rich.text import Text

    return Text(sanitize(text))
