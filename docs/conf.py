"""The site of these pages: ``make docs`` writes it to build/site."""

import re
from pathlib import Path
from typing import Any

project = "Highrank"
extensions = ["myst_parser"]
root_doc = "index"
html_theme = "furo"
html_title = project
html_copy_source = False
myst_heading_anchors = 3  # links to headings have the form that GitHub gives them


def add_contents(app: Any, name: str, source: list[str]) -> None:
    """Append the table of contents to the index: the pages that it links, in their order."""
    if name == root_doc:
        pages = re.findall(r"\]\((\w+)\.md\)", Path(__file__).with_name("index.md").read_text("utf-8"))
        source[0] += "\n```{toctree}\n:hidden:\n" + "\n".join(pages) + "\n```\n"


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_contents)
