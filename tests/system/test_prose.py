"""Names and words of the packages: one meaning for a name, plain words, short sentences."""

import ast
import re
from collections.abc import Iterator

from tests.support.modules import MODULES, PACKAGES, ROOT, TREES, dotted, nodes

# Names of counterparts: the same thing for each family, a command and its function, a type variable.
COUNTERPARTS = {
    "Compat", "Config", "DataConfig", "FAMILY", "LOCK", "LOWEST", "Located", "MANIFEST",
    "MEASURES", "ModelConfig", "POINTS", "Piece", "PrepareOptions", "RESULT", "ReadOptions", "analyze", "app",
    "bottleneck", "chat", "compare", "comparison_tables", "demo", "describe", "dynamic", "evaluate",
    "evaluation_tables", "export_run", "generate", "gradient", "import_run", "locate", "main",
    "preparation", "prepare", "prepared_tables", "rank", "read_split", "recovery",
    "score", "serve", "train", "train_point", "write_split",
}  # fmt: skip


def test_a_public_name_has_one_meaning() -> None:
    homes: dict[str, set[str]] = {}
    for module, tree in TREES.all():
        for node in tree.body:
            names = [node.name] if isinstance(node, (ast.ClassDef, ast.FunctionDef)) else []
            if isinstance(node, ast.AnnAssign):
                names = [dotted(node.target)]
            elif (
                isinstance(node, ast.Assign) and dotted(getattr(node.value, "func", node.value)) != "TypeVar"
            ):
                inner = (part for target in node.targets for part in ast.walk(target))
                names = [part.id for part in inner if isinstance(part, ast.Name)]
            for name in names:
                if not name.startswith("_"):
                    homes.setdefault(name, set()).add(module)
    twice = {name: modules for name, modules in homes.items() if len(modules) > 1}
    assert set(twice) == COUNTERPARTS, {name: twice.get(name) for name in set(twice) ^ COUNTERPARTS}


QUESTION_WORDS = {"what", "how", "when", "where", "whether", "who", "which", "why"}


MAX_WORDS = 25


def sentences(text: str) -> list[str]:
    """Sentences of a text, with code as one word each."""
    return re.split(r"(?<=[.!?])\s+|\n\s*\n", re.sub(r"``.*?``|:\w+:`.*?`|`.*?`", "X", text, flags=re.DOTALL))


def string(node: ast.AST) -> str:
    """The text of a string literal or f-string, each inserted value as one word."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(string, node.values))
    return str(node.value) if isinstance(node, ast.Constant) else "X"


def first_lines() -> Iterator[tuple[str, str]]:
    """Module and first line of every docstring."""
    for name in MODULES:
        for node in nodes(name):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (
                text := ast.get_docstring(node)
            ):
                yield name, text.splitlines()[0]


RIDDLES = re.compile(r"\b(but for|in place of|whatever|so many|so much|mere|merely)\b", re.IGNORECASE)


def test_riddling_words_are_in_no_text() -> None:
    """Of our own code and pages; a quotation of the rule is none."""
    files = [
        path
        for folder in (*PACKAGES, "configs", "docs", "scripts")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".toml", ".md"} and path.name != "corpus.toml"
    ]
    assert len(files) > len(MODULES)
    hits = {
        f"{path.relative_to(ROOT)}:{number}: {found[0]}"
        for path in (*files, ROOT / "README.md")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (found := RIDDLES.search(line))
    }
    assert not hits


def test_docstrings_start_with_the_thing() -> None:
    for name, line in first_lines():
        assert re.split(r"\W", line)[0].lower() not in QUESTION_WORDS, f"{name}: {line}"


def errors() -> Iterator[tuple[str, str]]:
    """Module and text of every error that is raised with a text of ours."""
    for name in MODULES:
        for node in nodes(name):
            if not isinstance(node, ast.Call):
                continue
            called = dotted(node.func).rpartition(".")[2]
            if called in ("require", "bad"):  # with the condition, or file and line, before the text
                yield from ((name, string(text)) for text in node.args[1:])
            elif re.search("(Error|Interrupted)$", called) and node.args:
                yield name, string(node.args[0])


def test_help_errors_and_first_lines_have_short_sentences() -> None:
    words = (
        (name, string(word.value))
        for name in MODULES
        for node in nodes(name)
        if isinstance(node, ast.Call)
        for word in node.keywords
        if word.arg in ("help", "description")
    )
    found = [(name, text.replace(";", ".")) for name, text in errors()]  # what is wrong; the remedy
    assert len(found) > len(MODULES)
    for name, text in (*first_lines(), *words, *found):
        for sentence in sentences(text):
            assert len(sentence.split()) <= MAX_WORDS, f"{name}: {sentence}"
