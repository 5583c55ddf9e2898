"""Draws what is generated: keys of configs, the API, tables and pictures of the pages, sizes of presets.

python scripts/docs.py             # after a change of a schema, a preset, a docstring or results/*.json
python scripts/docs.py --check     # names what is out of date, and ends with 1

A generated part stands between the comments ``<!-- scripts/docs.py NAME -->`` and ``<!-- end -->``.
"""

import ast
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from command_line import Options, run_script
from pages.head_pictures import head_picture
from pages.page_tables import page_tables
from pages.preset_sizes import preset_sizes
from pages.result_pictures import result_pictures
from pages.table_forms import markdown

from dialog.config import DialogConfig
from lm.config.section import MAX_SEED, MAX_SIZE
from lm.errors import require
from lm.language.config import LmConfig

ROOT = Path(__file__).resolve().parent.parent
PART = re.compile(
    r"(<!-- scripts/docs\.py (.+?) -->\n)(?:(?!<!-- scripts/docs\.py ).)*?(<!-- end -->)", re.DOTALL
)
MATPLOTLIB = re.compile("Matplotlib v[^,]*")
ENDLESS = (MAX_SIZE, MAX_SEED)  # limits that no one meets
MODULES = (
    "lm.heads.head",
    "lm.heads.sampling",
    "lm.cells.stack",
    "lm.language.model",
    "lm.language.sizes",
    "lm.language.train",
    "lm.language.trained",
    "lm.language.evaluate",
    "lm.language.results",
    "lm.language.compare",
    "dialog.seq2seq",
    "dialog.decoding.steps",
    "dialog.decoding.beam",
    "dialog.train",
    "dialog.trained",
    "dialog.evaluate",
    "dialog.results",
    "dialog.compare",
    "dialog.metrics.bleu",
    "dialog.metrics.scores",
    "dialog.metrics.distinct",
    "lm.runs.evaluations",
    "lm.runs.compare",
    "lm.runs.contrasts",
    "lm.runs.pooling",
    "lm.results",
    "lm.config.load",
    "lm.errors",
)
PLAIN_BASES = {"NamedTuple", "Protocol", "Exception"}


def configs() -> str:
    """A table for every section: first those that both families have."""
    lm, dialog = (schema_sections(schema) for schema in (LmConfig, DialogConfig))
    groups = {
        "Language models and dialog models": {
            name: rows for name, rows in lm.items() if dialog.get(name) == rows
        },
        "Language models": {name: rows for name, rows in lm.items() if dialog.get(name) != rows},
        "Dialog models": {name: rows for name, rows in dialog.items() if lm.get(name) != rows},
    }
    return "\n".join(
        f"## {title}\n\n" + "\n".join(keys_table(name, rows) for name, rows in sections.items())
        for title, sections in groups.items()
    )


def schema_sections(config: type[LmConfig] | type[DialogConfig]) -> dict[str, dict[str, Any]]:
    """The JSON schema of every key, by section; "" holds the keys at the top of a file."""
    schema = config.model_json_schema()
    sections: dict[str, dict[str, Any]] = {"": {}}
    for name, field in schema["properties"].items():
        if "$ref" in field:
            sections[name] = schema["$defs"][field["$ref"].rpartition("/")[2]]["properties"]
        else:
            sections[""][name] = field
    return sections


def keys_table(section: str, rows: Mapping[str, Any]) -> str:
    """One row a key: name, type and range, default, description."""
    heading = f"[{section}]" if section else "Top of the file"
    lines = []
    for name, field in rows.items():
        key = f"{section}.{name}" if section else name
        value, about = plain(value_type(field)), plain(field.get("description", ""))
        lines.append([f"`{key}`", value, shown_value(field.get("default")), about])
    return f"### {heading}\n\n{markdown(['key', 'value', 'default', 'description'], lines)}\n"


def value_type(field: Mapping[str, Any]) -> str:
    """The type of a value in words, with its range."""
    if "anyOf" in field:
        return " or ".join(value_type(option) for option in field["anyOf"])
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    kind = field.get("type")
    if kind == "null":
        return "`none`"
    if kind == "array":
        items = field.get("items") or {}
        if "prefixItems" in field:
            return "list of " + ", ".join(value_type(item) for item in field["prefixItems"])
        return f"list: {value_type(items)}"
    words = {"integer": "integer", "number": "number", "boolean": "`true`, `false`", "string": "text"}
    return words[str(kind)] + "".join(limits(field))


def limits(field: Mapping[str, Any]) -> Iterator[str]:
    """The bounds of a number."""
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    for word, sign in signs.items():
        if word in field and field[word] not in ENDLESS:
            yield f" {sign} {field[word]:,g}"


def shown_value(value: object) -> str:
    """A default as TOML has it."""
    if value is None:
        return "`none`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list | tuple):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{value}`" if value != "" else ""


def plain(text: str) -> str:
    """Text for a cell of a table, outside code."""
    parts = re.split(r"(`[^`]*`)", text)
    escaped = (part if part.startswith("`") else re.sub(r"([<>*])", r"\\\1", part) for part in parts)
    return "".join(escaped).replace("|", "\\|")


def api() -> str:
    """The public classes and functions of ``MODULES``, from their source."""
    return "\n".join(module_part(name) for name in MODULES)


def module_part(name: str) -> str:
    """A module: its first line, and its classes and functions."""
    source = (ROOT / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    parts = [f"## {name}\n", f"{summary(tree)}\n"]
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            methods = {inner.name: inner for inner in node.body if isinstance(inner, ast.FunctionDef)}
            made = signature(methods["__init__"]) if "__init__" in methods else bases(node)
            parts.append(entry(node, f"class {node.name}{made}", fields(node, source)))
            parts += [
                entry(method, f"{node.name}.{signature(method, named=True)}")
                for method in methods.values()
                if not method.name.startswith("_") and ast.get_docstring(method)
            ]
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            parts.append(entry(node, signature(node, named=True)))
    return "\n".join(parts)


def bases(node: ast.ClassDef) -> str:
    """The classes of the project that a class extends."""
    own = [base for base in map(ast.unparse, node.bases) if base.isidentifier() and base not in PLAIN_BASES]
    return f"({', '.join(own)})" if own else ""


def fields(node: ast.ClassDef, source: str) -> list[str]:
    """The public fields of a dataclass or named tuple, with their types, defaults and comments."""
    kinds = [*node.bases, *(getattr(one, "func", one) for one in node.decorator_list)]
    if not {"NamedTuple", "dataclass"} & set(map(ast.unparse, kinds)):
        return []
    lines = source.splitlines()
    return [
        line.strip()
        for part in node.body
        if isinstance(part, ast.AnnAssign) and not ast.unparse(part.target).startswith("_")
        for line in lines[part.lineno - 1 : part.end_lineno]
    ]


def entry(node: ast.ClassDef | ast.FunctionDef, title: str, more: Sequence[str] = ()) -> str:
    """Signature, first line, the rest of a docstring as it is, and ``more`` lines."""
    _, _, rest = (ast.get_docstring(node) or "").partition("\n")
    text = rest.strip("\n").splitlines()
    body = [*text, *([""] if text and more else []), *more]
    block = f"{title}\n" + "".join(f"\n    {line}".rstrip(" ") for line in body)
    return f"### {node.name if isinstance(node, ast.ClassDef) else title.partition('(')[0]}\n\n" + (
        f"{summary(node)}\n\n```text\n{block.rstrip()}\n```\n"
    )


def summary(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    """The first line of a docstring."""
    first = (ast.get_docstring(node) or "").partition("\n")[0]
    return plain(re.sub(r":\w+:`", "`", first).replace("``", "`"))


def signature(node: ast.FunctionDef, *, named: bool = False) -> str:
    """The arguments without self, and what is returned."""
    arguments = re.sub(r"^(self|cls)(, |$)", "", ast.unparse(node.args))
    returned = f" -> {ast.unparse(node.returns)}" if named and node.returns else ""
    return f"{node.name if named else ''}({arguments}){returned}"


def drawn(text: str, parts: Mapping[str, Callable[[], str]], page: str) -> str:
    """A page with its generated parts made anew."""

    def replaced(match: re.Match[str]) -> str:
        require(match[2] in parts, f"{page}: there is no part {match[2]!r}; choose from {', '.join(parts)}")
        return f"{match[1]}{parts[match[2]]().strip()}\n{match[3]}"

    parts_begun = text.count("<!-- scripts/docs.py ")
    require(parts_begun == len(PART.findall(text)), f"{page}: a part lacks its <!-- end -->")
    return PART.sub(replaced, text)


def pictures() -> dict[Path, str]:
    """The text of every picture that is drawn for docs/."""
    with tempfile.TemporaryDirectory() as folder:
        texts = {"heads.svg": head_picture()} | result_pictures(Path(folder))
    return {ROOT / "docs" / name: text for name, text in texts.items()}


def is_current(path: Path, new: str, *, check: bool) -> bool:
    """If a file has the text ``new``. A check says nothing of a picture by another version of matplotlib."""
    kept = path.read_text(encoding="utf-8") if path.exists() else None
    if check and kept is not None and MATPLOTLIB.findall(kept) != MATPLOTLIB.findall(new):
        return True
    return kept == new


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; 1 if a file is out of date")
    options = parser.parse_args()
    tables = {f"table {name}": partial(str, text) for name, text in page_tables(ROOT / "results").items()}
    parts = {"configs": configs, "api": api} | tables
    files = pictures() | preset_sizes()
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        files[page] = drawn(page.read_text(encoding="utf-8"), parts, page.name)
    stale = []
    for path, new in files.items():
        if not is_current(path, new, check=options.check):
            stale.append(path.relative_to(ROOT).as_posix())
            if not options.check:
                path.write_text(new, encoding="utf-8")
    for name in stale:
        print(f"{name}: out of date; run python scripts/docs.py" if options.check else f"{name}: drawn anew")
    sys.exit(1 if stale and options.check else 0)


if __name__ == "__main__":
    run_script(main)
