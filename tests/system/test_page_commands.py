"""The commands and the code of the pages: they parse, and those of README and tutorial run."""

import io
import json
import random
import re
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import typer
from starlette.testclient import TestClient

from dialog.cli import app as dialog_app
from dialog.cli import main as dialog_main
from lm.cli import app as lm_app
from lm.cli import main as lm_main
from lm.config.presets import preset_names
from lm.serve.app import Server
from lm.serve.server import Address
from tests.support.command_lines import Outcome
from tests.support.page_commands import PageCommand, page_commands
from tests.support.words import WORDS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
MAINS = {"lm": lm_main, "dialog": dialog_main}
GROUPS = {"lm": typer.main.get_command(lm_app), "dialog": typer.main.get_command(dialog_app)}
CORPORA = {"path/to/ptb": "ptb", "path/to/switchboard": "swda"}
TRAINING_TOKENS = {"Language models": "929,589", "Dialog": "1,447,148"}  # of the corpora of a section
FEW = (
    "train.max_steps=4",
    "train.validate_every=2",
    "train.threads=1",
    "optim.warmup_steps=1",
    "train.checkpoint_minutes=0",
    "head.products=float32",
)


@pytest.mark.parametrize("page", [*filter(page_commands, PAGES)], ids=lambda page: page.stem)
def test_every_command_of_a_page_is_one_that_there_is(page: Path) -> None:
    """Commands, options and presets exist."""
    for command in page_commands(page):
        words, at = list(command.arguments), GROUPS[command.program]
        while hasattr(at, "commands"):
            at = at.commands[words.pop(0)]
        options, *_ = at.make_parser(typer.Context(at)).parse_args(words)
        config = str(options.get("config") or "")
        if config and not re.search(r"[$/.]", config):
            assert config in preset_names(command.program), command


@pytest.mark.parametrize("page", ["README.md", "docs/heads.md"])
def test_the_python_of_a_page_runs(page: str) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.M | re.S)
    names: dict[str, object] = {}
    exec(compile(code, page, "exec"), names)
    loss = names["loss"]
    assert isinstance(loss, torch.Tensor)
    assert 8 < loss.item() < 11, "nats a token of 10,000 words that are all alike"


def sentences(count: int, start: str = "") -> str:
    """Invented sentences, one a line."""
    source = random.Random(count)
    return "".join(
        f"{start}{' '.join(source.choices(WORDS, k=source.randint(3, 9)))}\n" for _ in range(count)
    )


def invent(folder: Path) -> None:
    """A chat, and corpora where the pages have path/to/NAME."""
    chat = "\n".join(sentences(1, "A: ") + sentences(2, "B: ") + sentences(3, "A: ") for _ in range(40))
    (folder / "chat.txt").write_text(chat)
    for name in CORPORA:
        (folder / name).mkdir(parents=True)
        for split in ("train", "valid", "test"):
            text = f"the company said <unk>\n{sentences(60)}" if name.endswith("ptb") else chat
            (folder / name / f"{split}.txt").write_text(text)


@pytest.fixture
def run(ending: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> Callable[[PageCommand], str]:
    """Runs a command with few updates and checks that it succeeds; returns what it says."""

    def run(command: PageCommand) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO(command.written or "hello there\n"))
        arguments = list(command.arguments)
        if arguments[0] == "train":
            arguments += [f"--set={change}" for change in FEW]
        code, out, err = ending(partial(MAINS[command.program]), *arguments)
        assert not code, f"{command}: {err}"
        return out

    return run


def test_the_tutorial_runs(
    in_tmp: Path, run: Callable[[PageCommand], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server answers the request of the page, and then ends."""
    page, replies = ROOT / "docs/tutorial.md", list[str]()
    (asked,) = re.findall(r"-d '(.*)'", page.read_text("utf-8"))

    def answer_once(listener: socket.socket, server: Server, ready: Callable[[], None]) -> None:
        listener.close()
        with TestClient(server.app, base_url="http://localhost") as client:
            answer = client.post("/v1/chat/completions", json=json.loads(asked))
        replies.extend(choice["message"]["content"] for choice in answer.json()["choices"])

    listen = Address.listen
    monkeypatch.setattr(Address, "listen", lambda address: listen(replace(address, port=0)))
    monkeypatch.setattr("lm.serve.server.answer_at", answer_once)
    invent(in_tmp)
    said = {command.arguments[0]: run(command) for command in page_commands(page)}
    assert {"prepare", "train", "evaluate", "compare", "chat", "serve", "check"} <= set(said)
    assert len(replies) == 1


@pytest.mark.parametrize("section", ["Language models", pytest.param("Dialog", marks=pytest.mark.slow)])
def test_the_first_page_runs(section: str, in_tmp: Path, run: Callable[[PageCommand], str]) -> None:
    invent(in_tmp)
    commands = [command for command in page_commands(ROOT / "README.md") if command.section == section]
    assert len(commands) > 3
    for command in commands:
        run(command)


@pytest.mark.corpora
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("section", ["Language models", "Dialog"])
def test_the_first_page_runs_with_its_corpora(
    section: str, in_tmp: Path, corpora: Path, run: Callable[[PageCommand], str]
) -> None:
    """The licensed corpora in place of invented ones; the chat stays invented."""
    invent(in_tmp)
    for place, name in CORPORA.items():
        shutil.rmtree(in_tmp / place)
        (in_tmp / place).symlink_to(corpora / name)
    said = {}
    for command in page_commands(ROOT / "README.md"):
        if command.section == section:
            few = {("dialog", "evaluate"): ("--limit", "20"), ("lm", "analyze"): ("--limit", "200")}
            more = few.get((command.program, command.arguments[0]), ())
            said[command.arguments[0]] = run(replace(command, arguments=(*command.arguments, *more)))
    assert TRAINING_TOKENS[section] in said["prepare"], "invented or cut corpora were read"
    assert re.search(r"\d", said["evaluate"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_of_the_first_page_ends_in_a_conversation(
    in_tmp: Path, run: Callable[[PageCommand], str]
) -> None:
    """``make demo`` is ``dialog demo`` in the environment that it installs."""
    run(PageCommand("Start", "dialog", ("demo",)))
    (chat,) = [command for command in page_commands(ROOT / "README.md") if command.section == "Start"]
    assert run(chat).strip()
