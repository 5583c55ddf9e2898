"""Signs that a corpus was read wrongly: no conversation has them, and files of another layout do."""

import re
from collections.abc import Callable, Sequence

from dialog.corpora.stamps import STAMPED
from dialog.utterance import Dialog, Utterance
from lm.errors import visible

_FEW = 20  # utterances of which nothing is said
_C1 = re.compile("[\x80-\x9f]")
_NUMBER = re.compile(r"[\d\s.,:;%+-]*\d[\d\s.,:;%+-]*")
_WORD = re.compile(r"\w+")


def nonsense(dialogs: Sequence[Dialog]) -> str | None:
    """The reason why dialogs are likely not what was said, with an example; None where there is none."""
    said = [utterance for dialog in dialogs for utterance in dialog.utterances]

    def share(holds: Callable[[Utterance], object]) -> float:
        return sum(map(bool, map(holds, said))) / len(said)

    strange = next((utterance.text for utterance in said if _C1.search(utterance.text)), "")
    if strange:
        return (
            f"control characters in {_quoted(strange)}, which Windows text taken for Latin-1 has; "
            "convert the original with `iconv -f cp1252 -t utf-8`"
        )
    if len(said) < _FEW:
        return None
    text = _quoted(said[0].text)
    if share(lambda utterance: _NUMBER.fullmatch(utterance.text)) > 0.95:
        return f"nearly every text is a number, as {text}"
    if share(lambda utterance: STAMPED.match(utterance.text)) > 0.8:
        return f"nearly every text begins with a date or time, as {text}"
    if len({utterance.speaker for utterance in said}) > 0.9 * len(said):
        return f"nearly every utterance has a speaker of its own, as {_quoted(said[0].speaker)}"
    words: set[str] = set()
    for utterance in said:
        words.update(map(str.lower, _WORD.findall(utterance.text)))
        if len(words) > 6:
            return None
    return f"all texts together have {len(words)} different words, as {text}"


def _quoted(text: str) -> str:
    return f"`{visible(text[:60])}`"
