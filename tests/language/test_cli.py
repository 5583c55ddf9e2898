"""The ``lm`` command line on a tiny text, from preparing it to analysing a model, and its mistakes."""

import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dialog.config import DialogConfig
from lm.analysis.cli import examples
from lm.analysis.examples import Wanted
from lm.cli import generate, main, prepare
from lm.config.load import Resolved, save_config
from lm.engine.events import Event, Update
from lm.language.generate import GenerateOptions
from lm.language.prepare import PrepareOptions
from lm.language.sources import ReadOptions
from lm.language.trained import TrainedLm
from lm.studies.bottleneck import BottleneckOptions
from lm.studies.cli import bottleneck
from lm.text.vocabulary import Codec
from tests.support.kept_records import keep_record
from tests.support.tiny_lm import text_of, tiny_lm

TINY = """
[data]
train = "p/train"
valid = "p/valid"
test = "p/test"
[window]
length = 10
[model]
embedding_size = 6
hidden_sizes = [7, 6]
[head]
kind = "mos"
components = 2
tied = true
[optim]
name = "sgd"
lr = 1.0
[train]
max_steps = 6
batch_size = 4
validate_every = 2
checkpoint_every = 1
keep_last = 6
device = "cpu"
"""
COMMON = {"command", "config", "versions", "seed", "device"}
FEWER = ("--set", "head.kind=softmax", "--set", "head.components=1")
BOTTLENECK = (
    "bottleneck", "--contexts", "12", "--vocab", "24", "--rank", "6", "--embedding-sizes", "2,4",
    "--components", "2", "--hidden-size", "8", "--steps", "3", "--heads", "softmax,mos",
)  # fmt: skip

Outcome = tuple[int, str, str]
Lm = Callable[..., Outcome]


@pytest.fixture
def lm(ending: Callable[..., Outcome]) -> Lm:
    """Runs ``lm`` in this process: exit code, stdout and stderr."""
    return partial(ending, main)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a prepared text, two trained runs, and a run of dialog."""
    folder = tmp_path_factory.mktemp("lm")
    (folder / "text.txt").write_text(text_of(300, 1), encoding="utf-8")
    (folder / "tiny.toml").write_text(TINY)
    prepared = ("prepare", "text.txt", "--out", "p", "--valid-fraction", "0.2", "--test-fraction", "0.2")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for arguments in (
            prepared,
            ("train", "tiny.toml"),
            ("train", "tiny.toml", "--run", "runs/soft", *FEWER),
        ):
            with pytest.raises(SystemExit) as ending:
                main(arguments)
            assert not ending.value.code, arguments
    (folder / "talk").mkdir()
    save_config(Resolved(DialogConfig(), {}), folder / "talk" / "config.json")
    keep_record(folder / "talk", "test", {"data": {"sha256": ""}, "perplexity": 2.0}, {"nll": [1.0]})
    return folder


@pytest.fixture
def inside(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(workspace)
    return workspace


def measured(lm: Lm, *arguments: str) -> tuple[dict[str, Any], str]:
    """What a command writes to ``--json`` and shows; it has the fields that all results have."""
    code, out, err = lm(*arguments, "--json", "result.json")
    assert (code, err) == (0, "")
    text = Path("result.json").read_text()
    Path("result.json").unlink()
    result: dict[str, Any] = json.loads(text)
    assert result.keys() >= COMMON
    assert result["command"].split()[:2] == ["lm", arguments[0]]
    assert result["versions"].keys() >= {"highrank", "python", "torch"}
    return result, out


def names(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


def stopping(event: Event) -> None:
    """Reporter that stops the training after its third update, as a user would."""
    if isinstance(event, Update) and event.step == 3:
        signal.raise_signal(signal.SIGTERM)


def test_relu_diverges_with_code_5_and_keeps_its_checkpoints(
    lm: Lm, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where all numbers stay finite, which is how it diverges; Kanai et al. (2018) publish that."""
    monkeypatch.chdir(workspace)
    wild = ("--set", "head.kind=relu", "--set", "head.components=1", "--set", "optim.lr=1e4")
    code, _, err = lm("train", "tiny.toml", "--run", "runs/relu", *wild, "--set", "optim.clip_norm=0")
    assert code == 5
    assert "runs/relu: diverged: the best validation perplexity is" in err.splitlines()[-1]
    assert lm("check", "runs/relu")[0] == 0
    assert lm("evaluate", "runs/relu")[0] == 0


def test_a_text_is_prepared_once(lm: Lm, inside: Path) -> None:
    options = ("--out", "p", "--valid-fraction", "0.2", "--test-fraction", "0.2")
    code, out, _ = lm("prepare", "text.txt", *options)
    assert (code, out.splitlines()[-1]) == (0, "p: unchanged")
    assert {"train", "valid", "test", "vocabulary.json"} <= names("p")
    result, _ = measured(lm, "describe", "tiny.toml", "--set", "data.vocab_size=18")
    words = len(Codec.load(Path("p")).vocabulary)
    assert (result["vocabulary"], result["vocabulary_assumed"]) == (words, False), "as the corpus has them"
    assert result["parameters"] == sum(result["parameters_by_part"].values())
    assert result["config"]["head"]["components"] == 2
    assert result["seed"] == 1


def test_an_interrupted_training_resumes_to_the_same_end(
    lm: Lm, inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("lm.engine.progress.make_reporter", lambda *_: stopping)
        code, _, err = lm("train", "tiny.toml", "--run", "runs/stopped")
    assert code == 75
    assert err.splitlines() == [
        "stopping after this update and saving; another signal ends at once without saving",
        "interrupted: step 3 is saved; run the same command again to resume",
    ]
    saved = names("runs/stopped/checkpoints")
    assert "step-00000003" in saved
    assert "step-00000006" not in saved
    code, out, _ = lm("train", "tiny.toml", "--run", "runs/stopped")
    assert code == 0
    assert "after 6 updates" in out
    whole, stopped = (measured(lm, "check", run)[0] for run in ("runs/tiny", "runs/stopped"))
    assert whole["state_sha256"] == stopped["state_sha256"]
    assert whole["problems"] == []


def test_a_run_is_finetuned_beside_itself(lm: Lm, inside: Path) -> None:
    code, out, _ = lm("finetune", "runs/tiny", "--set", "train.max_steps=4")
    assert code == 0
    assert out.startswith("runs/tiny-finetuned: ")
    config = json.loads(Path("runs/tiny-finetuned/config.json").read_text())["config"]
    assert (config["train"]["start_from"], config["optim"]["average"]) == ("runs/tiny", "uniform")


def test_evaluate_and_compare(lm: Lm, inside: Path) -> None:
    result, out = measured(lm, "evaluate", "runs/tiny", "--temperature-search", "--mc-samples", "2")
    assert (result["seed"], result["device"], result["method"]) == (1, "cpu", "static")
    assert result["config"]["head"]["kind"] == "mos"
    assert result["tokens"] == result["scored"]
    assert result["mc_dropout"]["samples"] == 2
    assert result["temperature_search"]["perplexity"] > 1
    assert f"kept as {result['name']}" in out
    assert result["name"] == "test.temperature.mc-2-rate-1"
    for run in ("runs/soft", "runs/tiny"):
        plain, _ = measured(lm, "evaluate", run)
        assert plain["name"] == "test"
    assert plain["perplexity"] == result["perplexity"]
    assert {"test.json", f"{result['name']}.json"} <= names("runs/tiny/evaluation")
    compared, out = measured(lm, "compare", "runs/soft", "runs/tiny", "--name", "test")
    assert [row["perplexity"] for row in compared["runs"]][1] == plain["perplexity"]
    assert "runs/soft" in out


def test_dynamic_evaluation_of_the_beginning(lm: Lm, inside: Path) -> None:
    result, out = measured(lm, "dynamic", "runs/tiny", "--limit", "50")
    assert (result["tokens"], result["method"]) == (50, "dynamic")
    assert result["name"].startswith("test.first-50.dynamic")
    assert f"{result['name']}.json" in names("runs/tiny/evaluation")
    static, _ = measured(lm, "evaluate", "runs/tiny", "--limit", "50")
    assert static["perplexity"] == pytest.approx(result["static"]["perplexity"])
    assert static["name"] == "test.first-50"
    assert "static" in out
    kept = json.loads(Path(f"runs/tiny/evaluation/{result['name']}.json").read_text())
    assert (
        kept["details"]["command"]
        == result["command"]
        == "lm dynamic runs/tiny --limit 50 --json result.json"
    )


def test_score_and_generate(lm: Lm, inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("lines.txt").write_text("well so yeah\n\nyou like the dog\n")
    result, _ = measured(lm, "score", "runs/tiny", "lines.txt", "--output", "scores.jsonl")
    rows = [json.loads(line) for line in Path("scores.jsonl").read_text().splitlines()]
    assert [len(row["tokens"]) for row in rows] == [4, 1, 5]
    assert (result["tokens"], result["lines"], result["seed"]) == (10, 3, 1)
    assert result["config"]["head"]["kind"] == "mos"
    write = ("generate", "runs/tiny", "--prompt", "well so", "--max-tokens", "5", "--count", "2")
    code, out, err = lm(*write)
    assert (code, err) == (0, "")
    first, second = out.removesuffix("\n").split("\n\nwell so", 1)
    assert first.startswith("well so")
    assert second != first.removeprefix("well so")
    assert lm(*write) == (code, out, err)
    assert lm(*write, "--seed", "2")[1] != out
    monkeypatch.setattr(TrainedLm, "load", lambda *arguments: tiny_lm())
    code, out, err = lm("generate", "runs/tiny", "--prompt", "you Z\u00fcrich qqq you", "--max-tokens", "1")
    assert (code, err) == (0, "unknown: Z\u00fcrich, qqq\n")
    assert out.startswith("you Z\u00fcrich qqq you")


def test_ranks_are_kept_by_text_and_checkpoint(lm: Lm, inside: Path) -> None:
    command = ("analyze", "rank", "runs/soft", "runs/tiny")
    whole, out = measured(lm, *command)
    assert whole["figures"] == ["analysis/rank.png", "analysis/rank.svg"]
    assert names("analysis") == {"rank.png", "rank.svg"}
    assert whole["device"] == "cpu"
    assert "reused results" not in out
    stored = Path("runs/tiny/analysis/rank-test.npz").read_bytes()
    short, _ = measured(lm, *command, "--limit", "9", "--checkpoint", "step-5")
    other = "rank-test.first-9.step-5.npz"
    for run in ("runs/soft", "runs/tiny"):
        assert names(f"{run}/analysis") == {"rank-test.npz", other}
        assert whole["runs"][run]["spectrum"] == f"{run}/analysis/rank-test.npz"
        assert short["runs"][run]["spectrum"] == f"{run}/analysis/{other}"
        assert short["runs"][run]["tokens"] == 9 < whole["runs"][run]["tokens"]
    again, out = measured(lm, *command)
    assert "reused results: runs/soft, runs/tiny" in out
    assert [row["rank"] for row in again["runs"].values()] == [row["rank"] for row in whole["runs"].values()]
    assert Path("runs/tiny/analysis/rank-test.npz").read_bytes() == stored


def test_divergence_components_and_examples(lm: Lm, inside: Path) -> None:
    runs = ("runs/soft", "runs/tiny")
    result, out = measured(lm, "analyze", "divergence", *runs, "--limit", "30")
    assert {row["contexts"] for row in result["runs"].values()} == {30}
    assert "in runs/" in out
    assert all(Path(run).name in out for run in runs)
    result, _ = measured(lm, "analyze", "components", "runs/tiny", "--limit", "30")
    assert (result["tokens"], result["components"], result["device"]) == (30, 2, "cpu")
    assert result["data"]["name"] == "test.first-30"
    assert result["config"]["head"]["kind"] == "mos"
    result, out = measured(
        lm, "analyze", "examples", *runs, "--margin", "-9", "--count", "2", "--limit", "30"
    )
    assert (len(result["examples"]), result["tokens"]) == (2, 30)
    assert "over 30 tokens runs/tiny gains" in out


@pytest.mark.parametrize(
    ("command", "options", "not_asked_for"),
    [
        (bottleneck, BottleneckOptions, ()),
        (examples, Wanted, ("context", "guesses")),
        (generate, GenerateOptions, ()),
        (prepare, PrepareOptions, ("read",)),
        (prepare, ReadOptions, ()),
    ],
)
def test_defaults_of_commands_are_those_of_the_options(
    command: Callable[..., None], options: type, not_asked_for: Sequence[str]
) -> None:
    parameters = inspect.signature(command).parameters
    for field in fields(options):
        if field.name not in not_asked_for:
            wanted = field.default
            if isinstance(wanted, tuple):
                wanted = ",".join(map(str, wanted))
            assert parameters[field.name].default == wanted, field.name


def test_the_bottleneck_is_drawn_once(lm: Lm, inside: Path) -> None:
    result, out = measured(lm, *BOTTLENECK, "--out", "b")
    files = {"points.jsonl", ".points.jsonl.lock", "bottleneck.json", "bottleneck.png", "bottleneck.svg"}
    assert names("b") == files
    assert result["settings"]["embedding_sizes"] == [2, 4]
    assert "drawn in b/bottleneck.png and b/bottleneck.svg" in out
    before = {name: (Path("b") / name).read_bytes() for name in files}
    assert measured(lm, *BOTTLENECK, "--out", "b")[0]["rows"] == result["rows"]
    assert {name: (Path("b") / name).read_bytes() for name in files} == before


# Mistakes


@pytest.mark.parametrize(
    "command",
    [
        "evaluate talk", "dynamic talk", "generate talk", "score talk text.txt", "finetune talk",
        "compare talk talk", "analyze rank talk", "analyze divergence talk", "analyze components talk",
        "analyze examples talk runs/tiny", "check talk",
    ],
)  # fmt: skip
@pytest.mark.parametrize("run", ["talk", "none"])
def test_what_is_no_run_of_a_language_model_is_refused(lm: Lm, inside: Path, command: str, run: str) -> None:
    code, out, err = lm(*command.replace("talk", run).split())
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert run in err
    assert names("talk") == {"config.json", "evaluation"}


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("trian", 2, "trian: no such command; did you mean train?"),
        ("analyze rnk", 2, "rnk: no such command; did you mean rank?; see `lm analyze --help`\n"),
        ("analyze rank", 2, "RUN... is missing; write the command as in `lm analyze rank runs/ptb"),
        ("analyze rank runs/tiny --limit 2 --limit 3", 2, "--limit: given twice; leave out one of the two\n"),
        ("evaluate ptb_mos", 4, "ptb_mos: a preset, not a run; `lm train ptb_mos` makes the run runs/ptb"),
        ("evaluate runs", 4, "runs: a folder of runs, not a run; name one of them, such as runs/"),
        ("train runs/tiny", 2, "runs/tiny: a run, not a config; `lm runs runs/tiny` shows it\n"),
        ("train ptb_sofmax", 2, "ptb_sofmax: no such preset or file; did you mean ptb_softmax?\n"),
        ("train ptb_mos --set model.embeding_size=2", 2, "did you mean model.embedding_size?\n"),
        ("train tiny.toml --run x --set data.train=p/nothing", 3, "p/nothing"),
        ("train tiny.toml --run x --set data.train=p", 3, "p/train or p/valid or p/test"),
        ("describe tiny.toml --set head.kind=mosss", 2, "did you mean moss?\n"),
        ("finetune runs/tiny --set model.embedding_size=2", 2, "fixed when the run was trained"),
        ("dynamic runs/tiny --setting paper-mos-pbt", 2, "did you mean paper-mos-ptb?\n"),
        ("dynamic runs/tiny --setting x", 2, "choose from default"),
        ("evaluate runs/tiny --checkpoint step-99", 4, "step-99"),
        ("evaluate runs/tiny --mc-samples 1 --mc-rate 9", 2, "--mc-rate 9"),
        ("evaluate runs/tiny --json no/e.json", 4, "no/e.json: its folder does not exist; create it"),
        ("analyze rank runs/tiny --json no/r.json", 4, "no/r.json: its folder does not exist; create it"),
        ("analyze rank runs/tiny --tokens 5", 2, "--tokens: no such option; see `lm analyze rank --help`\n"),
        ("analyze rank runs/tiny --limit 0", 2, "--limit: must be at least 1, got 0; see"),
        ("analyze divergence runs/tiny --limit 1", 3, "name a longer text"),
        ("analyze components runs/soft", 2, "has no prior to analyse"),
        ("bottleneck --out x --embedding-sizes x", 2, "--embedding-sizes 'x': separate whole numbers"),
        ("bottleneck --out x --heads softmax,sofmax", 2, "'sofmax': unknown head"),
        ("compare runs/tiny --name test --resamples 3", 2, "--resamples"),
        ("generate runs/tiny --temperature 0", 2, "--temperature 0"),
        ("prepare none.txt --out x", 3, "none.txt"),
    ],
)  # fmt: skip
def test_mistakes(lm: Lm, inside: Path, command: str, code: int, message: str) -> None:
    lm("evaluate", "runs/tiny")
    found, out, err = lm(*command.split())
    assert (found, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (inside / "x").exists()


def test_a_mistake_is_told_before_torch_is_loaded(inside: Path) -> None:
    program = """
import sys
from lm.cli import main
commands = "train ptb_mos --set x=1", "describe x", "evaluate x", "dynamic x", "generate x", "score x y"
for command in commands:
    try:
        main(command.split())
    except SystemExit as ending:
        assert ending.code in (2, 4)
assert "torch" not in sys.modules
"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("\n") == 6


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("empty.txt", "empty.txt"),
        ("nul.txt", "nul.txt:2"),
        ("foreign.txt", "foreign.txt"),
        ("none.txt", "none.txt"),
        ("p/none", "p/none"),
        ("p", "p/test"),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "dynamic", "analyze rank"])
def test_a_text_that_cannot_be_read_is_named(
    lm: Lm, inside: Path, command: str, data: str, message: str
) -> None:
    Path("empty.txt").write_bytes(b"")
    Path("nul.txt").write_bytes(b"well so\nyeah \0 you\n")
    Path("foreign.txt").write_text("sommes nous\n" * 9)
    before = names("runs/tiny")
    code, out, err = lm(*command.split(), "runs/tiny", "--data", data)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert message in err
    assert names("runs/tiny") == before


def test_examples_need_one_vocabulary_and_one_text(lm: Lm, inside: Path) -> None:
    text = Path("text.txt").read_text()
    Path("longer.txt").write_text(text + "zebra zebra\n")
    split = "data.{}=longer.txt"
    sources = [word for name in ("train", "valid", "test") for word in ("--set", split.format(name))]
    assert lm("train", "tiny.toml", "--run", "runs/other", *sources)[0] == 0
    code, out, err = lm("analyze", "examples", "runs/tiny", "runs/other")
    assert (code, out) == (3, "")
    assert err.startswith("the runs have different vocabularies, of ")
    Path("a.txt").write_text("well so\nyou like\n")
    Path("b.txt").write_text("you like\nwell so\n")
    for name in ("a", "b"):
        test = ("--set", f"data.test={name}.txt")
        assert lm("train", "tiny.toml", "--run", f"runs/{name}", *test)[0] == 0
    code, out, err = lm("analyze", "examples", "runs/a", "runs/b")
    assert (code, out) == (2, "")
    assert err == "runs/a and runs/b have different test splits; name one text with --data\n"
    assert lm("analyze", "examples", "runs/a", "runs/b", "--data", "a.txt")[0] == 0
