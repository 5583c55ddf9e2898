"""Text that a terminal would obey, and text of any kind."""

import re

from hypothesis import strategies as st

DANGEROUS = [
    "\x1b", "\x9b", "\x9d", "\x90", "\x9c", "\x07", "\x18", "\r", "\b", "\x00", "\x7f", "\x85",
    "\u202e", "\u2066", "\u200f", "\u061c", "\u200b", "\ufeff", "\ud800", "\udcff", "\U000e0041",
    "[", "]", "P", "_", "^", "X", "\\",
    "31m", "2J", "52;c;", "?1049h", "(B", ";", "0", " ", "\n", "\t", "hello",
]  # fmt: skip
FORBIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ud800-\udfff]"
)
mixtures = st.lists(st.sampled_from(DANGEROUS) | st.text(max_size=3), max_size=30).map("".join)
anything = st.text(st.characters(codec=None), max_size=60)  # surrogates too
