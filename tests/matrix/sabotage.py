"""Row Z: builds of our own code with one safeguard taken out, each of which a test has to notice."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.matrix.mutants import commands, files, models, training
from tests.matrix.row import Case
from tests.support.crash_process import ENVIRONMENT, ROOT

FAILED = 1  # exit code of pytest where tests ran and failed
MUTANTS = (*files.MUTANTS, *training.MUTANTS, *models.MUTANTS, *commands.MUTANTS)


@contextmanager
def sabotage(folder: Path) -> Iterator[Case]:
    """Z: case after case the mutants; a test notices each, and passes without it."""
    clean, passed = folder / "clean", set[str]()
    copy_of_ours(clean)

    def case(rng: random.Random, index: int) -> int:
        if index >= len(MUTANTS):
            return 0
        mutant = MUTANTS[index]
        build = folder / f"build-{index}"
        shutil.copytree(clean, build)
        mutant.spoil(build)
        code, said = run_test(build, mutant.test)
        assert code == FAILED, f"{mutant.about} is gone, and {mutant.test} ends with {code}: {said[-300:]}"
        shutil.rmtree(build)
        if mutant.test not in passed:
            code, said = run_test(clean, mutant.test)
            assert not code, f"{mutant.test} fails without any mutant: {said[-300:]}"
            passed.add(mutant.test)
        return 1

    yield case


def copy_of_ours(target: Path) -> None:
    """The packages, their configs, tests, and the pages that tests read."""
    for name in ("lm", "dialog", "configs", "docs", "tests", "scripts"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, target / name)


def run_test(root: Path, test: str) -> tuple[int, str]:
    """Exit code and output of pytest on one test of a copy."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        f"tests/{test}",
    ]
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr
