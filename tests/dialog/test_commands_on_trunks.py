"""Every command that opens a dialog run, on a transformer and on a pretrained causal network."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("optuna")

from starlette.testclient import TestClient

from dialog.cli import main
from dialog.serve.served import ServedDialog
from lm.serve.gate import Policy
from lm.serve.server import Server
from tests.support.chat_templates import CHATML, folder_with
from tests.support.pretrained_dialog import CONFIG
from tests.support.tiny_dialog import write_corpus

TRANSFORMER = """
[data]
train = "talk.jsonl"
valid = "talk.jsonl"
test = "talk.jsonl"
context = 3
[model]
embedding_size = 8
[encoder]
kind = "transformer"
context_size = 8
[decoder]
kind = "transformer"
hidden_size = 8
[transformer]
heads = 2
[head]
kind = "mos"
components = 2
[train]
max_steps = 2
validate_every = 1
[decode]
beam = 2
max_length = 5
"""


@pytest.fixture(params=["transformer", "stream", "template"])
def corpus(in_tmp: Path, request: pytest.FixtureRequest) -> Path:
    """``run.toml`` and what it names."""
    write_corpus(in_tmp)
    settings = TRANSFORMER
    if request.param != "transformer":
        template = request.param == "template"
        folder_with(in_tmp / "folder", CHATML if template else "")
        data = f"context = 3\nchat_template = {str(template).lower()}"
        settings = CONFIG.replace("max_steps = 6", "max_steps = 2").replace("context = 3", data)
    (in_tmp / "run.toml").write_text(settings)
    return in_tmp


def test_every_command_works(
    corpus: Path, ending: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (corpus / "space.toml").write_text('[space]\n"optim.lr" = {low = 1e-3, high = 0.01, log = true}\n')
    (corpus / "said.txt").write_text("is it raining\nyes\n")
    for command in (
        ("describe", "run.toml"),
        ("train", "run.toml", "--run", "a"),
        ("train", "run.toml", "--run", "b", "--set", "train.seed=2"),
        ("evaluate", "a"),
        ("evaluate", "b"),
        ("evaluate", "b", "--set", "decode.method=sample"),
        ("evaluate", "a", "b", "--json", "ensemble.json"),
        ("compare", "a", "b"),
        ("report", "a", "b", "--out", "report.html"),
        ("check", "a"),
        ("chat", "a"),
        ("chat", "a", "b"),
        ("tune", "run.toml", "--space", "space.toml", "--trials", "1", "--set", "train.seed=3"),
        ("export", "a", "exported"),
        ("import", "exported", "--run", "back"),
        ("evaluate", "back"),
    ):
        with (corpus / "said.txt").open() as lines:
            monkeypatch.setattr("sys.stdin", lines)
            code, _, error = ending(main, *command)
        assert code == 0, (command, error)
    assert json.loads((corpus / "ensemble.json").read_text())["perplexity"] > 1
    server = Server({"a": ServedDialog.load(Path("a"))}, Policy(keys=("k" * 16,)))
    with TestClient(server.app, base_url="http://localhost/v1/") as client:
        asked = {"model": "a", "messages": [{"role": "user", "content": "is it raining"}], "logprobs": True}
        answer = client.post("chat/completions", json=asked, headers={"Authorization": f"Bearer {'k' * 16}"})
        assert answer.status_code == 200, answer.text
