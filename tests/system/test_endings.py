"""Processes whose standard streams are closed or full end with the code, and the work, of any other time.

The processes are real, forked from one that has imported everything.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lm.errors import OutOfMemory
from lm.stop import SIGNALS
from tests.support.command_lines import COMMANDS, FULL, LM_COMMANDS
from tests.support.crash_dialog import DialogTraining
from tests.support.crash_driver import Lab, crash_lab
from tests.support.crash_lm import LmTraining
from tests.support.crash_process import ENVIRONMENT, Ended, interpreter

pytestmark = pytest.mark.timeout(600)

OUT, ERR = 1, 2
CLOSED, FULL_DEVICE = "", "/dev/full"
STREAMS = {
    "all closed": {0: CLOSED, OUT: CLOSED, ERR: CLOSED},
    "stdout closed": {OUT: CLOSED},
    "stdout unread": {OUT: "|"},
    "stderr closed": {ERR: CLOSED},
    "stdout full": {OUT: FULL_DEVICE},
    "stderr full": {ERR: FULL_DEVICE},
}
ARGUMENTS = {  # of commands that need more than a folder, which does not exist
    "dialog demo": "--out /dev/null/x",
    "dialog describe": "none.toml",
    "dialog prepare": "none.txt --out x",
    "dialog presets": "none",
    "dialog references": "--train none.txt --test none.txt --out x",
    "dialog train": "none.toml",
    "dialog tune": "none.toml",
    "lm analyze examples": "none none --data none",
    "lm bottleneck": "--out /dev/null/x",
    "lm describe": "none.toml",
    "lm prepare": "none.txt --out x",
    "lm presets": "none",
    "lm reverse-copy": "--out /dev/null/x",
    "lm score": "none none.txt",
    "lm train": "none.toml",
    "lm tune": "none.toml",
}
FAILING = [
    f"{program} {command} {ARGUMENTS.get(f'{program} {command}', 'none')}"
    for program, commands in (("dialog", COMMANDS), ("lm", LM_COMMANDS))
    for command in commands
]
WORKING = [  # and the file that each has to write
    ("dialog presets", ""),
    ("dialog describe dialog.toml --json out", "out"),
    ("dialog check dialog-run --json out", "out"),
    ("dialog evaluate dialog-run --limit 3 --json out --output hyps", "hyps"),
    ("dialog prepare dialog-corpus/train.jsonl --out out", "out/manifest.json"),
    ("dialog references --train T --test V --out out", "out"),
    ("dialog chat dialog-run", ""),
    ("dialog train dialog.toml --run out", "out/checkpoints/step-00000012/manifest.json"),
    ("lm presets", ""),
    ("lm describe ptb_mos --json out", "out"),
    ("lm check lm-run --json out", "out"),
    ("lm evaluate lm-run --json out", "out"),
    ("lm dynamic lm-run --json out", "out"),
    ("lm score lm-run text --output out", "out"),
    ("lm generate lm-run --max-tokens 5", ""),
    ("lm analyze components lm-run --json out", "out"),
    ("lm prepare text --out out", "out/manifest.json"),
    (
        "lm finetune lm-run --set train.max_steps=1 --set optim.lr=1 --run out",
        "out/checkpoints/step-00000001/manifest.json",
    ),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A folder with a run of each program."""
    with crash_lab(tmp_path_factory.mktemp("endings")) as lab:
        for case in (DialogTraining("mos", "adam"), LmTraining("mos", "nt-asgd")):
            program = case.program
            lab.command([program, *case.arguments(lab)], lab.folder)
            (lab.folder / "run").rename(lab.folder / f"{program}-run")
            config = lab.shared(f"{case.name}.toml", Path.touch)
            shutil.copy(config, lab.folder / f"{program}.toml")
        shutil.copy(lab.folder / "lm-text.txt", lab.folder / "text")
        yield lab


def run(lab: Lab, line: str, streams: dict[int, str] | None = None, memory: int = 0) -> Ended:
    corpus = lab.folder / "dialog-corpus"
    words = [
        {"T": corpus / "train.jsonl", "V": corpus / "valid.jsonl"}.get(word, word) for word in line.split()
    ]
    return lab.server.run(words, lab.folder, streams=streams, memory=memory)


def test_every_command_has_its_row() -> None:
    assert len(FAILING) == len(COMMANDS) + len(LM_COMMANDS)


def by_streams(*default: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "name", [name if name in default else pytest.param(name, marks=pytest.mark.slow) for name in STREAMS]
    )


@pytest.fixture(scope="module")
def told(lab: Lab) -> dict[str, Ended]:
    """What failing commands say when they can."""
    return {line: run(lab, line) for line in FAILING}


@by_streams("all closed")
def test_an_error_has_its_code_whoever_reads_it(lab: Lab, told: dict[str, Ended], name: str) -> None:
    streams, wrong = STREAMS[name], {}
    for line, usual in told.items():
        assert usual.code in (2, 3, 4), (line, usual)
        assert usual.output, line
        ended = run(lab, line, streams)
        said = "" if ERR in streams else usual.output
        if (ended.code, ended.output) != (usual.code, said):
            wrong[line] = ended
    assert not wrong


@by_streams("all closed", "stdout full")
def test_work_is_done_whoever_reads_it(lab: Lab, name: str) -> None:
    """A full disk under stdout is told, once, when all is done; nothing else changes a code."""
    for line, file in WORKING:
        shutil.rmtree(lab.folder / "out", ignore_errors=True)
        for path in (lab.folder / "out", lab.folder / "hyps"):
            path.unlink(missing_ok=True)
        ended = run(lab, line, STREAMS[name])
        expected = 4 if name == "stdout full" and not line.startswith("dialog chat") else 0
        assert ended.code == expected, (line, ended)
        assert ended.output.count(FULL) == bool(expected), (line, ended)
        assert (lab.folder / file).exists(), (line, ended)


# Names


HOSTILE = ("r\x1b[2Jx", "r\x1b]52;c;aGk=\x07x", "r\u202ex", "r\udcff", "r\n[/red]")  # \udcff: the byte 255


@pytest.mark.parametrize(
    "name",
    [HOSTILE[0] + HOSTILE[3], *(pytest.param(name, marks=pytest.mark.slow) for name in HOSTILE)],
)
def test_names_are_shown_with_escapes(lab: Lab, tmp_path: Path, name: str) -> None:
    """Standard output takes UTF-8 alone here: a name that is none must not end what has done its work."""
    escape = name.encode("ascii", "ignore").decode()
    for program in ("dialog", "lm"):
        shutil.copytree(lab.folder / f"{program}-run", tmp_path / f"{program}-{name}")
    for file in ("text", "hyps", "refs", "json", "scores"):  # one name is that of a file in a folder
        (tmp_path / f"{file}-{name}").parent.mkdir(exist_ok=True)
    shutil.copy(lab.folder / "text", tmp_path / f"text-{name}")
    train, test = (lab.folder / "dialog-corpus" / f"{split}.jsonl" for split in ("train", "test"))
    lines: list[tuple[int, list[object]]] = [
        (0, ["dialog", "check", f"dialog-{name}"]),
        (0, ["dialog", "evaluate", f"dialog-{name}", "--limit", 2, "--output", f"hyps-{name}"]),
        (0, ["dialog", "score", f"hyps-{name}"]),
        (0, ["dialog", "prepare", train, "--out", f"out-{escape}"]),  # Arrow opens no path that is not UTF-8
        (0, ["dialog", "references", "--train", train, "--test", test, "--out", f"refs-{name}"]),
        (0, ["dialog", "train", lab.folder / "dialog.toml", "--run", f"new-{name}"]),
        (0, ["dialog", "compare", f"dialog-{name}", f"dialog-{name}", "--name", "test.first-2"]),
        (4, ["dialog", "evaluate", f"none-{name}"]),
        (2, ["dialog", "describe", f"none-{name}"]),
        (2, ["dialog", f"command-{name}"]),
        (2, ["dialog", "check", f"dialog-{name}", f"dialog-{name}"]),
        (0, ["lm", "check", f"lm-{name}"]),
        (0, ["lm", "evaluate", f"lm-{name}", "--json", f"json-{name}"]),
        (0, ["lm", "dynamic", f"lm-{name}"]),
        (0, ["lm", "analyze", "components", f"lm-{name}"]),
        (0, ["lm", "score", f"lm-{name}", f"text-{name}", "--output", f"scores-{name}"]),
        (0, ["lm", "finetune", f"lm-{name}", "--set", "train.max_steps=1", "--set", "optim.lr=1"]),
        (0, ["lm", "prepare", f"text-{name}", "--out", f"data-{name}"]),
        (3, ["lm", "prepare", f"none-{name}", "--out", f"data2-{name}"]),
        (4, ["lm", "generate", f"none-{name}"]),
    ]  # fmt: skip
    for code, line in lines:
        ended = lab.server.run(line, tmp_path)
        said = lab.server.output.read_bytes().decode()  # strictly
        assert ended.code == code, (line, ended)
        assert "internal error" not in said
        assert all(character.isprintable() or character == "\n" for character in said), (line, said)


# Memory


def test_memory_that_runs_out_is_told_and_loses_nothing(lab: Lab, tmp_path: Path) -> None:
    """At whatever moment it runs out: the same command goes on where there is more, to the same end."""
    line: list[object] = ["dialog", "train", lab.folder / "dialog.toml", "--run", "run"]
    line += ["--set", "decoder.hidden_size=600", "--set", "encoder.context_size=500"]
    line += ["--set", "train.max_steps=4"]
    reference = lab.server.run(line, tmp_path)
    assert reference.code == 0, reference
    (tmp_path / "run").rename(tmp_path / "reference")
    codes = []
    for megabytes in (4, 36, 60, 150):
        ended = lab.server.run(line, tmp_path, memory=megabytes << 20)
        codes.append(ended.code)
        assert ended.code in (0, 6), (megabytes, ended)
        assert ended.code == 0 or ended.output.endswith(f"{OutOfMemory()}\n"), (megabytes, ended)
        assert "Traceback" not in ended.output
    assert 6 in codes
    ended = lab.server.run(line, tmp_path)
    assert ended.code == 0
    assert lab.check("dialog", tmp_path / "run") == lab.check("dialog", tmp_path / "reference")
    log = [(tmp_path / folder / "metrics.jsonl").read_bytes() for folder in ("run", "reference")]
    assert log[0] == log[1]


@pytest.mark.parametrize(
    "line",
    [
        "dialog evaluate dialog-run",
        "lm evaluate lm-run",
        "lm dynamic lm-run",
        "lm score lm-run text --output scores",
    ],
)
def test_commands_that_run_out_of_memory_say_so(lab: Lab, line: str) -> None:
    ended = [run(lab, line, memory=size << 18) for size in (1, 4, 8)]
    assert all(one.code in (0, 6) for one in ended), ended
    assert 6 in {one.code for one in ended}


# The interpreter itself


def test_an_interpreter_without_streams(tmp_path: Path) -> None:
    """Of the same, once with everything that Python itself does at its beginning and end."""
    (tmp_path / "x.txt").write_text("A: well\nB: yes\n")
    line = ["dialog", "references", "--train", "x.txt", "--test", "x.txt", "--out", "x.json"]
    command = " ".join(interpreter(line))
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": os.getcwd()}
    for streams, code in ((">&- 2>&- <&-", 0), (">/dev/full 2>/dev/full", 4)):
        ended = subprocess.run(
            f"exec {command} {streams}", shell=True, executable="/bin/bash", cwd=tmp_path, env=environment,
            capture_output=True, check=False,
        )  # fmt: skip
        assert (ended.returncode, ended.stderr) == (code, b"")
        (tmp_path / "x.json").unlink()


def caught(process: subprocess.Popen[bytes]) -> int:
    """The signals that a process has handlers for, as bits."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("SigCgt:")[2].split()[0], 16)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("number", "after"),
    [
        (signal.SIGUSR1, 0.0),
        (signal.SIGHUP, 0.4),
        *(
            pytest.param(number, after, marks=pytest.mark.slow)
            for number in SIGNALS
            for after in (0.0, 0.1, 0.3, 1.0, 1.7, 2.5)
        ),
    ],
)
def test_a_signal_in_the_first_seconds_ends_with_75(
    tmp_path: Path, number: signal.Signals, after: float
) -> None:
    """From the moment on in which the interpreter has begun with our first module."""
    command = interpreter(["dialog", "train", "smalltalk_mos", "--run", "run"])
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": os.getcwd()}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
    while not caught(process) >> (signal.SIGUSR1 - 1) & 1:
        time.sleep(0.001)
    assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()
    time.sleep(after)
    process.send_signal(number)
    _, told = process.communicate()
    assert process.returncode == 75, told
    assert b"Traceback" not in told
    assert b"interrupted" in told.splitlines()[-1]
