"""The modules of both packages, parsed."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("lm", "dialog")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}


class Trees(dict[str, ast.Module]):
    """Parsed modules by name, when they are first needed: every parallel process imports this file."""

    def __missing__(self, name: str) -> ast.Module:
        self[name] = ast.parse(MODULES[name].read_text(encoding="utf-8"), str(MODULES[name]))
        return self[name]

    def all(self) -> Iterator[tuple[str, ast.Module]]:
        """Every module and its tree."""
        return ((name, self[name]) for name in MODULES)


TREES = Trees()


@cache
def nodes(name: str) -> tuple[ast.AST, ...]:
    """All nodes of a module; a walk takes longer than what tests do with them."""
    return tuple(ast.walk(TREES[name]))


def dotted(node: ast.expr) -> str:
    """``torch.load`` for the expression of that spelling, "" for anything that is no plain dotted name."""
    if isinstance(node, ast.Attribute):
        prefix = dotted(node.value)
        return f"{prefix}.{node.attr}" if prefix else ""
    return node.id if isinstance(node, ast.Name) else ""
