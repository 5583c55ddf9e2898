"""Build wheel and sdist, check them, and try the wheel alone with the newest and the lowest allowed packages.

    python scripts/try_wheel.py                         both, in build/wheel
    python scripts/try_wheel.py --versions lowest --pin torch==2.13.0

Each version set gets a fresh environment with the wheel, its extra ``hf`` and what the tests need. It runs
``dialog demo`` and the quick tests there, which see no file of the repository except themselves. ``lowest``
turns every ``>=`` of pyproject.toml into ``==``. A ``--pin`` replaces the version of a package in both sets,
for example where an index lacks a build.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "wheel"
TOOLS = ("build>=1.2", "twine>=6")
TESTERS = ("pytest>=8.4", "pytest-timeout>=2.3", "hypothesis>=6.130", "nltk>=3.10.4")
EXTRAS = ("hf",)
QUICK = (
    "tests/config/test_load.py", "tests/config/test_places.py", "tests/config/test_tomlfile.py",
    "tests/config/test_mistakes.py", "tests/config/test_suggest.py", "tests/console", "tests/text",
    "tests/disk/test_storage.py", "tests/heads/test_heads.py", "tests/language/test_model.py",
    "tests/dialog/test_bleu.py", "tests/dialog/test_chat.py", "tests/dialog/test_chat_commands.py",
    "tests/dialog/test_chat_retry.py", "tests/dialog/test_chat_hostile.py", "tests/dialog/test_export.py",
    "tests/huggingface/test_export.py", "tests/huggingface/test_tokenizer.py",
)  # fmt: skip


def main() -> None:
    options = _options()
    shutil.rmtree(PLACE, ignore_errors=True)
    wheel = _build(options.pip)
    for versions in options.versions:
        _try(wheel, versions, options.pin, options.pip)
    print(f"tried with the {' and the '.join(options.versions)} packages: {wheel.relative_to(ROOT)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    both = ("newest", "lowest")
    parser.add_argument("--versions", nargs="+", choices=both, default=both, help="default: both")
    parser.add_argument("--pin", nargs="+", default=(), metavar="NAME==VERSION", help="versions to take")
    parser.add_argument("--pip", default="", metavar="OPTIONS", help="options for pip, as one text")
    return parser.parse_args()


def lowest(requirements: Sequence[str]) -> list[str]:
    """Requirements with their lowest version as the only one, without markers: ``a>=1,<2`` gives ``a==1``."""
    named = [re.fullmatch(r"([\w.-]+)>=([\w.]+).*", text) for text in requirements]
    if not all(named):
        wrong = [text for text, match in zip(requirements, named, strict=True) if not match]
        raise SystemExit(f"pyproject.toml: no lowest version: {', '.join(wrong)}; write NAME>=VERSION")
    return [f"{match[1]}=={match[2]}" for match in named if match]


def _build(pip: str) -> Path:
    tools = _environment(PLACE / "tools", [*TOOLS], pip)
    _call(tools, "-m", "build", "--outdir", str(PLACE / "dist"), str(ROOT))
    _call(tools, "-m", "twine", "check", "--strict", *map(str, sorted((PLACE / "dist").iterdir())))
    (wheel,) = (PLACE / "dist").glob("*.whl")
    return wheel


def _try(wheel: Path, versions: str, pins: Sequence[str], pip: str) -> None:
    """Install the wheel in a fresh environment and run it from a folder that holds only the tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [one for name in EXTRAS for one in project["optional-dependencies"][name]]
    wanted = [*project["dependencies"], *extras]
    pinned = {pin.partition("==")[0] for pin in pins}
    floor = lowest(wanted) if versions == "lowest" else []
    constraints = [one for one in floor if one.partition("==")[0] not in pinned] + [*pins]
    folder = PLACE / versions
    folder.mkdir()
    (folder / "constraints.txt").write_text("".join(f"{line}\n" for line in constraints))
    packages = ["--constraint", str(folder / "constraints.txt"), f"{wheel}[{','.join(EXTRAS)}]", *TESTERS]
    python = _environment(folder / "env", packages, pip)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    _call(python, "-m", "pip", "freeze", "--all", cwd=folder)
    _call(python.with_name("dialog"), "demo", "--out", "demo", cwd=folder)
    # old versions call functions that new ones below them deprecate
    warnings = ["-W", "default::DeprecationWarning"] if versions == "lowest" else []
    _call(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *warnings, *QUICK, cwd=folder)


def _environment(folder: Path, packages: Sequence[str], pip: str) -> Path:
    """Python of a new virtual environment with these packages."""
    _call(Path(sys.executable), "-m", "venv", str(folder))
    python = folder / "bin" / "python"
    _call(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *pip.split(), *packages)
    return python


def _call(program: Path, *arguments: str, cwd: Path = ROOT) -> None:
    print(f"+ {program.name} {' '.join(arguments)}", flush=True)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(program), *arguments], cwd=cwd, env=clean, check=False)
    if done.returncode:
        raise SystemExit(f"failed with exit code {done.returncode}: {program.name} {' '.join(arguments)}")


if __name__ == "__main__":
    main()
