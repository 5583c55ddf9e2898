"""Examples of the page on formats."""

import re
from pathlib import Path

from dialog.corpora.formats import PAGE

ROOT = Path(__file__).parents[2]


def page_examples() -> list[tuple[str, str]]:
    """Format and text of each example."""
    sections = re.split(r"^### ", (ROOT / PAGE).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return [
        (section.split("\n")[0], example)
        for section in sections
        for example in re.findall(r"^```\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    ]
