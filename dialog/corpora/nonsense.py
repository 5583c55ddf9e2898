"""Plausibility checks that detect a corpus read in the wrong format or encoding."""

import re
from collections.abc import Callable, Sequence

from dialog.corpora.stamps import STAMPED
from dialog.utterance import Dialog, Utterance
from lm.errors import visible

_FEW = 20  # utterances; shorter corpora are not judged
_C1 = re.compile("[\x80-\x9f]")
_NUMBER = re.compile(r"[\s.,:;%+-]*\d[\d\s.,:;%+-]*")
_WORD = re.compile(r"\w+")


def nonsense(dialogs: Sequence[Dialog]) -> str | None:
    """Reason why dialogs look wrongly read, with an example, or None if they look plausible."""
    said = [utterance for dialog in dialogs for utterance in dialog.utterances]

    def share(holds: Callable[[Utterance], object]) -> float:
        return sum(map(bool, map(holds, said))) / len(said)

    strange = next((utterance.text for utterance in said if _C1.search(utterance.text)), "")
    if strange:
        return (
            f"control characters in {_quoted(strange)}, a sign of Windows text decoded as Latin-1; "
            "convert the original with `iconv -f cp1252 -t utf-8`"
        )
    if len(said) < _FEW:
        return None
    text = _quoted(said[0].text)
    if share(lambda utterance: _NUMBER.fullmatch(utterance.text)) > 0.95:
        return f"nearly every text is a number, such as {text}"
    if share(lambda utterance: STAMPED.match(utterance.text)) > 0.8:
        return f"nearly every text begins with a date or time, such as {text}"
    if len({utterance.speaker for utterance in said}) > 0.9 * len(said):
        return f"nearly every utterance has its own speaker, such as {_quoted(said[0].speaker)}"
    words: set[str] = set()
    for utterance in said:
        words.update(map(str.lower, _WORD.findall(utterance.text)))
        if len(words) > 6:
            return None
    return f"all texts together have {len(words)} different words, such as {text}"


def _quoted(text: str) -> str:
    return f"`{visible(text[:60])}`"
