"""Rows of the command line: H mistyped configs, I paths that lead elsewhere or nowhere."""

import contextlib
import hashlib
import io
import os
import random
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dialog import cli as dialog_cli
from dialog.config import DialogConfig
from lm import cli as lm_cli
from lm.config.load import load_config
from lm.config.section import known_keys
from lm.errors import ConfigError
from lm.language.config import LmConfig
from tests.matrix.row import Case, refused
from tests.support.config_files import mutants
from tests.support.tiny_lm import write_run

STRIDE = 7919  # a prime: the first cases are of everything
KINDS = 16  # commands that take a path
SCHEMAS: dict[str, Any] = {"dialog": DialogConfig, "lm": LmConfig}
WRONG = (
    "{}", "[[1]]", "1979-05-27", "nan", "-1e308", "'\\u0007'", "9" * 5000, "0x" + "f" * 9000,
    "[" * 200 + "]" * 200, "[1, 2, 3, 4, 5, 6, 7]", "'" + "x" * 5000 + "'", "1" + "0" * 400,
)  # fmt: skip
BROKEN = (
    "[{section}]\n[{section}]\n", "{section} = 1\n", "[[{section}]]\n", "[{section}\n", "{section}.{name}\n",
    "[{section}]\n{name} = 1\n{name} = 1\n", "extends = 'a\\u0000b'\n", "extends = '{long}'\n",
    "[x{section}]\n{name} = 1\n", "{dots} = 1\n", "[{section}]\n{name} = [\n{lines}]\n",
)  # fmt: skip


@contextmanager
def mistyped(folder: Path) -> Iterator[Case]:
    """H: every key of both schemas with six kinds of typing errors, wrong values, broken files."""
    keys = [(family, key) for family, schema in SCHEMAS.items() for key in known_keys(schema) if "." in key]
    path = folder / "x.toml"

    def case(rng: random.Random, index: int) -> int:
        kind, place = index // len(keys) % 9, index * STRIDE % len(keys)
        family, key = keys[place]
        section, _, name = key.rpartition(".")
        if kind < 6:
            forms = [*mutants(name, rng)]
            wrong = forms[kind % len(forms)]
            if not wrong or f"{section}.{wrong}" in known_keys(SCHEMAS[family]):
                return 0
            text = f'about = ""\n[{section}]\n"{wrong}" = 1\n'
        elif kind < 8:
            value = rng.choice(WRONG)
            kinds = known_keys(SCHEMAS[family])[key].annotation
            if value.startswith("'") and "str" in str(kinds):
                return 0
            text = f"{key} = {value}\n"
        else:
            parts = {"section": section, "name": name, "long": "y" * 5000, "dots": "a." * 3000 + "b"}
            text = rng.choice(BROKEN).format(**parts, lines="1,\n" * 2000)
        path.write_text(text, encoding="utf-8")
        started = time.process_time()
        message = refused(lambda: load_config(str(path), SCHEMAS[family], family=family), ConfigError)
        seconds = time.process_time() - started
        assert seconds < 1, f"{text[:60]!r} took {seconds:.1f} s"
        assert str(path) in message, message[:200]
        assert len(message) < 2000, f"{len(message)} characters"
        return 1

    yield case


NAMES = (
    "", ".", "..", "../../outside/file", "/nonexistent/deep/file", "a\0b", "x" * 300, "y/" * 2500, "con",
    "~", "-", "--", "caf\u00e9\u202e", "r\x1b[2Jx", "r\x1b]52;c;aGk=\x07", "r\udcff", "link", "loop",
    "dangling", "pipe", "sealed", "file", "/dev/null", "/dev/full", "/dev/zero", "/proc/self/mem", "run",
    "run/config.json", "run/checkpoints", "full", "[bold]x[/bold]", "a b\tc", "a\nb", "$HOME", "*.toml",
    "%s%n", "{x}",
)  # fmt: skip


@contextmanager
def odd_paths(folder: Path) -> Iterator[Case]:
    """I: such a name wherever a command takes one."""
    place = folder / "here"
    place.mkdir()
    outside = folder / "outside"
    outside.mkdir()
    (outside / "file").write_text("somebody's\n")
    run = write_run(place / "run")
    (place / "x.toml").write_text("[train]\nmax_steps = 1\n")
    (place / "file").write_text("not of ours\n")
    (place / "full").mkdir()
    (place / "full" / "thing").write_text("x")
    (place / "link").symlink_to(outside / "file")
    (place / "loop").symlink_to("loop")
    (place / "dangling").symlink_to("nowhere")
    os.mkfifo(place / "pipe")
    (place / "sealed").mkdir(mode=0)

    def case(rng: random.Random, index: int) -> int:
        with contextlib.chdir(place):
            return visit(rng, index, run, outside)

    yield case


def visit(rng: random.Random, index: int, run: Path, outside: Path) -> int:
    """The command ends with a code of the table and a line, and touches nothing that is not its own."""
    kind, number = divmod(index * STRIDE % (KINDS * len(NAMES)), len(NAMES))
    name = NAMES[number]
    commands: tuple[tuple[Callable[..., None], list[str]], ...] = (
        (lm_cli.main, ["check", name]),
        (lm_cli.main, ["evaluate", name]),
        (lm_cli.main, ["evaluate", "run", "--json", name]),
        (lm_cli.main, ["evaluate", "run", "--data", name]),
        (lm_cli.main, ["describe", name]),
        (lm_cli.main, ["train", "x.toml", "--set", f"data.train={name}", "--run", "new"]),
        (lm_cli.main, ["generate", name]),
        (lm_cli.main, ["prepare", name, "--out", "out"]),
        (lm_cli.main, ["compare", name, "run"]),
        (dialog_cli.main, ["check", name]),
        (dialog_cli.main, ["prepare", name, "--out", "out"]),
        (dialog_cli.main, ["train", "x.toml", "--set", "data.train=x", "--run", name]),
        (dialog_cli.main, ["evaluate", name]),
        (dialog_cli.main, ["score", name]),
        (dialog_cli.main, ["references", "--train", name, "--test", "x", "--out", "refs.json"]),
        (dialog_cli.main, ["describe", "smalltalk_mos", "--set", f"data.train={name}"]),
    )
    main, arguments = commands[kind]
    kept = {
        path: digest(path) for path in (*outside.rglob("*"), *run.rglob("*"), Path("file"), Path("x.toml"))
    }
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), memory_limit(2 << 30):
        try:
            main(arguments)
            code: Any = 0
        except SystemExit as ending:
            code = ending.code or 0
    said = output.getvalue()
    shown = f"{arguments!r:.200} → {code}: {said[-300:]!r}"
    assert code in (0, 2, 3, 4), shown
    assert "internal error" not in said, shown
    assert "Traceback" not in said, shown
    assert not any(c < " " and c not in "\n\t" for c in said), f"control characters: {shown}"
    assert kept == {path: digest(path) for path in kept}, f"something was changed: {shown}"
    return 1


@contextmanager
def memory_limit(size: int) -> Iterator[None]:
    """So many bytes more than there are, for what reads without end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (size + pages * resource.getpagesize(), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
