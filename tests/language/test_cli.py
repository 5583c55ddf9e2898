"""The ``lm`` command line on a tiny text, from preparing it to analysing a model."""

import inspect
import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

import pytest

from lm.analysis.cli import examples
from lm.analysis.examples import Wanted
from lm.cli import generate, prepare
from lm.engine.events import Event, Update
from lm.language.corpora.prepare import PrepareOptions
from lm.language.corpora.sources import ReadOptions
from lm.language.generate import GenerateOptions
from lm.language.trained import TrainedLm
from lm.runs.checkpoint import CheckpointStore
from lm.spectra.spectrum import RankResult
from lm.studies.backward import BackwardOptions
from lm.studies.bottleneck import BottleneckOptions
from lm.studies.cli import bottleneck
from lm.studies.options import LanguageOptions
from lm.studies.spam import SpamOptions
from lm.text.vocabulary import Codec
from tests.support.lm_workspace import Lm, measured, names
from tests.support.tiny_lm import tiny_lm

BOTTLENECK = (
    "bottleneck", "--contexts", "12", "--vocab", "24", "--rank", "6", "--embedding-sizes", "2,4",
    "--components", "2", "--hidden-size", "8", "--steps", "3", "--heads", "softmax,mos",
)  # fmt: skip


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
    assert "diverged" in lm("runs", "runs/relu")[1]
    assert lm("check", "runs/relu")[0] == 0
    assert lm("evaluate", "runs/relu")[0] == 0


def test_a_text_is_prepared_once(lm: Lm, inside: Path) -> None:
    options = ("--out", "p", "--valid-fraction", "0.2", "--test-fraction", "0.2")
    code, out, _ = lm("prepare", "text.txt", *options)
    assert (code, out.splitlines()[-1]) == (0, "p: unchanged")
    assert {"train", "valid", "test", "vocabulary.json"} <= names("p")
    result, _ = measured(lm, "describe", "tiny.toml")
    words = len(Codec.load(Path("p")).vocabulary)
    assert (result["vocabulary"], result["vocabulary_assumed"]) == (words, False), "as the corpus has them"
    assert result["parameters"] == sum(result["parameters_by_part"].values())
    assert result["config"]["head"]["components"] == 2
    assert result["seed"] == 1
    code, _, err = lm("describe", "tiny.toml", "--set", "data.vocab_size=18")
    assert (code, "data.vocab_size: p/train is prepared, which decided it" in err) == (2, True), "as train"


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
    for name, checkpoint in (("rank-test.npz", "best"), (other, "step-5")):
        spectrum = RankResult.load(Path("runs/tiny/analysis", name))
        fingerprint = CheckpointStore.of(Path("runs/tiny")).fingerprint(checkpoint)
        assert (spectrum.checkpoint, spectrum.fingerprint) == (checkpoint, fingerprint)


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
        (bottleneck, BottleneckOptions, ("vocab",)),
        (bottleneck, BackwardOptions, ("vocab",)),
        (bottleneck, SpamOptions, ("vocab",)),
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


def test_the_default_vocabulary_is_that_of_the_task(lm: Lm) -> None:
    assert LanguageOptions.vocab == 768
    assert SpamOptions.vocab == 10_000
    assert "Default: 768, and 10,000 for spam" in " ".join(lm("bottleneck", "--help")[1].split())


def test_the_bottleneck_is_drawn_once(lm: Lm, inside: Path) -> None:
    result, out = measured(lm, *BOTTLENECK, "--out", "b")
    files = {"points.jsonl", ".points.jsonl.lock", "bottleneck.json", "bottleneck.png", "bottleneck.svg"}
    assert names("b") == files
    assert result["settings"]["embedding_sizes"] == [2, 4]
    assert "drawn in b/bottleneck.png and b/bottleneck.svg" in out
    before = {name: (Path("b") / name).read_bytes() for name in files}
    assert measured(lm, *BOTTLENECK, "--out", "b")[0]["rows"] == result["rows"]
    assert {name: (Path("b") / name).read_bytes() for name in files} == before


def test_a_config_without_keys_is_told(lm: Lm, inside: Path) -> None:
    Path("empty.toml").write_text("# nothing yet\n")
    sizes = [
        f"--set={key}" for key in ("model.embedding_size=4", "model.hidden_sizes=[4]", "train.max_steps=1")
    ]
    data = [f"--set=data.{split}=text.txt" for split in ("train", "valid")]
    said = "warning: the config has no keys, so a model of the default sizes is trained"
    code, _, err = lm("train", "empty.toml", *data, *sizes, "--run", "runs/empty")
    assert (code, said in err) == (0, True)
    Path("empty.toml").write_text('about = "a beginning"\n')
    assert said not in lm("train", "empty.toml", *data, *sizes, "--run", "runs/told")[2]
