"""The rules that hold for every file: who may import whom, sizes, and what the packages never do."""

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.support.modules import MODULES, PACKAGES, ROOT, TREES, dotted, nodes

# What belongs to language models alone; everything else in lm is the core that dialog may use.
LM_ONLY = {
    name
    for name in MODULES
    if name.startswith(("lm.analysis", "lm.language", "lm.studies"))
    or name in ("lm.__main__", "lm.cli", "lm.hf", "lm.export")
}
UNPICKLER = "dialog.corpora.unpickle"  # a process of its own, whose standard output is what it found
SPEAKS_TO_THE_USER = {
    "lm.cli",
    "lm.console.app",
    "lm.console.output",
    "lm.ending",
    "dialog.cli",
    "dialog.chat.terminal",
    UNPICKLER,
}
MAX_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 400, 80, 10


@cache
def imports(name: str) -> frozenset[str]:
    """Full dotted names that a module imports, at whatever depth; ``from a import b`` gives a and a.b."""
    found: set[str] = set()
    for node in nodes(name):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def test_packages_that_are_imported_are_the_dependencies() -> None:
    """Others belong to an extra, and a command that needs one says which."""
    known = {"tokenizers": "transformers"}  # packages that come with another
    found = {target.split(".")[0] for name in MODULES for target in imports(name)}
    others = {known.get(name, name) for name in found - sys.stdlib_module_names - set(PACKAGES)}
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.split("[^a-z0-9_]", text)[0] for text in declared["dependencies"]}
    assert needed <= others
    assert others - needed == {"optuna", "starlette", "uvicorn", "transformers", "triton", "_typeshed"}


def local_imports(name: str) -> set[str]:
    return set(imports(name) & MODULES.keys()) - {name}


def functions(parts: Iterable[ast.AST]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in parts if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def test_the_packages_were_found() -> None:
    assert {name.split(".")[0] for name in MODULES} == set(PACKAGES)
    assert {"lm.config.section", "lm.engine.loop", "lm.heads.head", "dialog.config", "dialog.task"} <= set(
        MODULES
    )
    assert "lm.config.section" in local_imports("dialog.config"), "imports are not seen at all"


def test_lm_never_imports_dialog() -> None:
    found = {(name, target) for name in MODULES if name.startswith("lm") for target in imports(name)}
    assert found
    assert not {(name, target) for name, target in found if target.split(".")[0] == "dialog"}


def test_errors_for_the_user_are_in_one_module() -> None:
    """Processes of a group raise each other's errors by their names there."""
    classes = {
        (name, node.name): {base.id for base in node.bases if isinstance(base, ast.Name)}
        for name in MODULES
        for node in nodes(name)
        if isinstance(node, ast.ClassDef)
    }
    own = {name for module, name in classes if module == "lm.errors"}
    assert {"HighrankError", "StorageError", "RunMovedError"} <= own
    assert not {place for place, bases in classes.items() if bases & own and place[0] != "lm.errors"}


def test_what_tests_share_is_in_their_support() -> None:
    """A test file that others import is collected and changed for two reasons."""
    modules = {
        module
        for path in (ROOT / "tests").rglob("*.py")
        for module in re.findall(r"^ *(?:from|import) (\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert "tests.support.modules" in modules
    assert not {name for name in modules if name.startswith("tests.") and ".test_" in name}


def test_dialog_imports_only_the_shared_core_of_lm() -> None:
    found = {
        (name, target) for name in MODULES if name.startswith("dialog") for target in local_imports(name)
    }
    assert any(target.startswith("lm.") for _, target in found)
    assert not {(name, target) for name, target in found if target in LM_ONLY}


BRIDGES = (
    "lm.hf",
    "lm.export",
    "lm.huggingface",
    "lm.text.pretrained_tokenizer",
    "dialog.hf",
    "dialog.export",
)


def test_only_the_bridge_to_transformers_loads_it() -> None:
    libraries = {"transformers", "tokenizers", "accelerate"}
    found = {name for name in MODULES if any(target.split(".")[0] in libraries for target in imports(name))}
    assert "lm.hf" in found
    assert not {name for name in found if not name.startswith(BRIDGES)}


def test_the_shared_core_imports_nothing_of_the_language_models() -> None:
    core = {name for name in MODULES if name.startswith("lm.") and name not in LM_ONLY}
    assert core
    assert not {(name, target) for name in core for target in local_imports(name) & LM_ONLY}


def folder_of(name: str) -> str:
    """``lm.heads`` for ``lm.heads.links``; a module directly in a package, as ``lm.errors``, for itself."""
    package, *inner = name.split(".")
    return ".".join((package, inner[0])) if inner else package


@pytest.mark.parametrize("room", [str, folder_of], ids=["modules", "folders"])
def test_there_are_no_import_cycles(room: Callable[[str], str]) -> None:
    """Among all imports, those inside functions and for type checkers included."""
    graph: dict[str, set[str]] = {room(name): set() for name in MODULES}
    for name in MODULES:
        graph[room(name)] |= {room(target) for target in local_imports(name) if not is_package(target)}
    for name, targets in graph.items():
        targets.discard(name)
    assert sum(map(len, graph.values())) > len(graph)
    TopologicalSorter(graph).prepare()  # raises CycleError with the cycle


def is_package(name: str) -> bool:
    """Whether a name of MODULES is that of an ``__init__.py``."""
    return MODULES[name].name == "__init__.py"


def test_a_config_module_is_a_schema_and_a_train_module_the_wiring() -> None:
    sections, wirings = set(), set()
    for name, tree in TREES.all():
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        if any("Section" in map(dotted, node.bases) for node in classes):
            sections.add(name)
        if "lm.engine.session.train_run" in imports(name):
            wirings.add(name)
    assert sections == {name for name in MODULES if name.endswith(".config")}, sections
    assert wirings == {"lm.language.train", "dialog.train"} == {n for n in MODULES if n.endswith(".train")}


def test_files_stay_small() -> None:
    own = [path for folder in ("dialog", "lm", "scripts", "tests") for path in ROOT.glob(f"{folder}/**/*.py")]
    sizes = {str(path): path.read_text(encoding="utf-8").count("\n") for path in own}
    assert not {name: size for name, size in sizes.items() if size > MAX_LINES}, "split along a concept"


def test_functions_stay_small() -> None:
    for name, function in ((module, one) for module in MODULES for one in functions(nodes(module))):
        length = (function.end_lineno or function.lineno) - function.lineno + 1
        assert length <= MAX_FUNCTION_LINES, f"{name}.{function.name} has {length} lines"
        arguments = function.args
        count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
        is_command = name.endswith("cli")  # typer reads the options of a command from its signature
        is_kernel = any("triton.jit" in ast.unparse(decorator) for decorator in function.decorator_list)
        is_interface = name.endswith(".hf") and function.name == "forward"  # transformers passes all by name
        free = is_command or is_kernel or is_interface  # a kernel takes pointers and strides one by one
        assert free or count <= MAX_PARAMETERS, f"{name}.{function.name} has {count} parameters"
        assert arguments.kwarg is None, (
            f"{name}.{function.name} takes **{arguments.kwarg and arguments.kwarg.arg}"
        )


FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml"}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "torch.load",
    "torch.save",
    "numpy.load",
    "np.load",
}


@cache
def calls_in(name: str) -> frozenset[str]:
    """The dotted names of everything that a module calls."""
    return frozenset(dotted(node.func) for node in nodes(name) if isinstance(node, ast.Call))


def test_nothing_can_execute_what_a_file_says() -> None:
    for name in MODULES:
        allowed = {"pickle"} if name == UNPICKLER else set()
        roots = {target.split(".")[0] for target in imports(name)}
        assert not roots & FORBIDDEN_MODULES - allowed, name
        calls = calls_in(name)
        assert not calls & FORBIDDEN_CALLS, name
        assert not calls & {"pickle.load", "pickle.loads"}, name


def test_the_one_unpickler_refuses_every_global() -> None:
    classes = {
        dotted(base): node
        for node in nodes(UNPICKLER)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    }
    assert "find_class" in {function.name for function in functions(classes["pickle.Unpickler"].body)}


def test_only_the_command_line_prints() -> None:
    printing = {"print", "sys.stdout.write", "sys.stderr.write", "typer.echo", "click.echo"}
    found = {name for name in MODULES if calls_in(name) & printing}
    assert found
    assert found <= SPEAKS_TO_THE_USER


def test_no_file_leaves_work_for_later_or_names_a_home() -> None:
    files = [
        path
        for folder in (*PACKAGES, "configs", "scripts", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".toml", ".md"} and path != Path(__file__)
    ]
    assert len(files) > len(MODULES)
    pattern = re.compile(r"\bTODO\b|\bFIXME\b|\bXXX\b|/home/|/root/|/work/")
    hits = {
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line)
    }
    assert not hits


def test_the_package_files_hold_a_docstring_and_nothing_else() -> None:
    for package in PACKAGES:
        body = TREES[f"{package}.__init__"].body
        names = {dotted(target) for node in body if isinstance(node, ast.Assign) for target in node.targets}
        assert names <= {"__version__"}, f"{package}/__init__.py holds {names}"
        assert all(isinstance(node, (ast.Expr, ast.Assign)) for node in body), (
            f"{package}/__init__.py re-exports"
        )


def test_the_map_for_contributors_is_complete() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^([\w/]+)/  +\S", text, flags=re.MULTILINE))
    folders = {path.parent.relative_to(ROOT).as_posix() for path in MODULES.values()}
    assert folders <= listed, "folders without a line in the map"


def test_every_path_that_contributors_and_packagers_are_told_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    map_of_folders = re.findall(r"^([\w.]+(?:/\w+)*)/  +\S", text, flags=re.MULTILINE)
    assert {"lm", "dialog", "configs/dialog", "configs/lm", "scripts", "tests"} <= set(map_of_folders)
    said = re.findall(r"(?<![\w/.])((?:\.ci|configs|dialog|lm|scripts|tests)/[\w./]+\w)(?![\w<])", text)
    assert "tests/system/test_architecture.py" in said
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, wheel = metadata["project"], metadata["tool"]["hatch"]["build"]["targets"]["wheel"]
    packed = [project["readme"], *project["license-files"], *wheel["packages"], *wheel["force-include"]]
    assert not [path for path in (*map_of_folders, *said, *packed) if not (ROOT / path).exists()]


def test_a_wheel_carries_the_presets() -> None:
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = metadata["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    families = {path.parent.name for path in (ROOT / "configs").glob("*/*.toml")}
    assert "dialog" in families
    assert included == {f"configs/{family}": f"{family}/configs" for family in families}
