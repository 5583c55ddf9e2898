"""The ``dialog`` command line: presets and sizes of models, and a whole run, from training to chatting."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dialog.cli import main
from dialog.config import DialogConfig
from lm.cli import main as lm_main
from lm.config.load import load_config
from lm.config.presets import preset_folder, preset_names
from lm.errors import ConfigError
from tests.support.command_lines import Outcome

TINY = """
extends = "{base}"
[model]
embedding_size = 8
[encoder]
utterance_size = 8
context_size = 8
[decoder]
hidden_size = 8
[head]
embedding_size = 8
[data]
train = "talk.txt"
valid = "talk.txt"
test = "talk.txt"
[train]
max_steps = 3
checkpoint_every = 1
[decode]
beam = 2
nbest = 2
max_length = 4
"""
TALK = "A: good morning\nB: morning , did you sleep ?\nA: i did\nB: good\n\nA: hello\nB: well hello\nA: bye\n"


@pytest.mark.parametrize(("main", "family"), [(main, "dialog"), (lm_main, "lm")])
def test_presets_lists_every_preset(
    ending: Callable[..., Outcome], main: Callable[..., Any], family: str
) -> None:
    code, out, _ = ending(main, "presets")
    assert code == 0
    names = set(preset_names(family))
    assert len(names) > 5
    assert names == {line.split()[1] for line in out.splitlines() if line.startswith("│")}


@pytest.mark.parametrize("tied", [False, True])
def test_describe_counts_the_parameters_that_a_model_has(
    dialog: Callable[..., Outcome], in_tmp: Path, tied: bool
) -> None:
    from dialog.describe import describe
    from dialog.seq2seq import Seq2Seq

    overrides = ["head.embedding_size=16", "model.embedding_size=16", f"head.tied={str(tied).lower()}"]
    setters = [word for override in overrides for word in ("--set", override)]
    code, out, _ = dialog("describe", "smalltalk_mos", *setters, "--json", "d.json")
    result = json.loads((in_tmp / "d.json").read_text())
    config = load_config("smalltalk_mos", DialogConfig, family="dialog", overrides=overrides).config
    model = Seq2Seq(config, result["vocabulary"])
    assert code == 0
    assert result["parameters"] == sum(p.numel() for p in model.parameters())
    assert result["parameters"] == sum(result["parameters_by_part"].values())
    assert result["provenance"]["head.tied"] == "--set"
    assert result["config"] == config.model_dump(mode="json")
    assert f"{result['parameters']:,}" in out
    assert result["memory"]["weights"] == 4 * result["parameters"]
    assert "the largest possible: a corpus with fewer words gives a smaller model" in " ".join(out.split())
    smaller = describe(config, 100)
    assert not smaller["vocabulary_assumed"]
    assert smaller["parameters"] < result["parameters"]


@pytest.mark.parametrize("link", ["mos", "moss"])
@pytest.mark.parametrize("tied", [False, True])
def test_describe_knows_how_large_a_checkpoint_is(tied: bool, link: str) -> None:
    from dialog.describe import describe
    from dialog.seq2seq import Seq2Seq
    from lm.engine.averaging import Averager
    from lm.engine.optim import build_optimizer, optimizer_tensors
    from lm.engine.state import model_tensors

    overrides = [
        *("head.embedding_size=16", "model.embedding_size=16", f"head.tied={str(tied).lower()}"),
        *(f"head.kind={link}", "optim.name=adam", "optim.average=ema"),
    ]
    config = load_config("smalltalk_mos", DialogConfig, family="dialog", overrides=overrides).config
    model = Seq2Seq(config, 50)
    optimizer, averager = build_optimizer(config.optim, model, "float32"), Averager(config.optim, model)
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone()
    optimizer.step()
    averager.update(config.optim.average_start + 1)
    groups = (model_tensors(model), averager.tensors(), optimizer_tensors(optimizer, model))
    stored = sum(tensor.nbytes for group in groups for tensor in group.values())
    assert describe(config, 50)["memory"]["checkpoint"] == pytest.approx(stored, rel=1e-3)


def test_describe_counts_the_buffers_of_a_chunk_of_logits() -> None:
    """Four bytes an entry, or two in as many rows; no link needs more than a block besides."""
    from dialog.describe import describe
    from lm.heads.links import EXP
    from lm.heads.loss_options import LossOptions

    def activations(kind: str, products: str) -> int:
        overrides = [f"head.kind={kind}", f"head.products={products}"]
        config = load_config("smalltalk_mos", DialogConfig, family="dialog", overrides=overrides).config
        return int(describe(config, 5000)["memory"]["activations"])

    components = load_config("smalltalk_mos", DialogConfig, family="dialog").config.head.components
    float32, bfloat16 = (
        components * LossOptions(EXP, bf16_products=half).tokens_per_chunk(components, 5000)
        for half in (False, True)
    )
    assert activations("moss", "float32") - activations("mos", "float32") == 0
    saved = activations("mos", "float32") - activations("mos", "bfloat16")
    assert saved == (4 * float32 - 2 * bfloat16) * 5000


def test_a_training_without_an_end_is_refused_before_anything_is_written(
    dialog: Callable[..., Outcome], in_tmp: Path
) -> None:
    limits = ("max_steps", "max_epochs", "max_minutes", "patience")
    zeros = [word for limit in limits for word in ("--set", f"train.{limit}=0")]
    Path("bad.txt").write_bytes(b"\xff\n")
    unread = ["--set", "data.train=bad.txt", "--set", "data.valid=bad.txt"]
    code, out, err = dialog("train", "smalltalk_mos", *zeros, *unread)
    assert (code, out) == (ConfigError.exit_code, "")
    assert "training would never end; set train.max_steps" in err
    assert [path.name for path in in_tmp.iterdir()] == ["bad.txt"]


@pytest.mark.parametrize(
    ("nll", "told"),
    [(1.5, "best validation 1.5000 nats a token, at update 2"), (math.nan, "no validation was finite")],
)
def test_train_tells_of_the_best_validation(
    dialog: Callable[..., Outcome], in_tmp: Path, monkeypatch: pytest.MonkeyPatch, nll: float, told: str
) -> None:
    from lm.engine.loop import FitResult

    result = FitResult(4, 1, nll, 2 if math.isfinite(nll) else -1, "done", 0.5)
    monkeypatch.setattr("dialog.train.train", lambda *arguments: result)
    code, out, _ = dialog("train", "smalltalk_mos", "--run", "r")
    assert code == 0
    assert f"0.5 minutes; {told}" in out.replace("\n", " ")
    assert "nan" not in out


# A whole run


def test_train_evaluate_check_compare_chat(
    dialog: Callable[..., Outcome], in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = preset_folder("dialog") / "smalltalk_mos.toml"  # as configs of before have it
    Path("talk.txt").write_text(TALK)
    Path("tiny.toml").write_text(TINY.format(base=base))
    assert dialog("train", "tiny.toml")[0] == 0
    assert dialog("train", "tiny.toml", "--run", "other")[0] == 0
    assert dialog("train", "tiny.toml", "--run", "seed2", "--set", "train.seed=2")[0] == 0
    hashes = [_check(dialog, run)["state_sha256"] for run in ("runs/tiny", "other", "seed2")]
    assert hashes[0] == hashes[1] != hashes[2]

    code, out, _ = dialog(
        "evaluate", "other", "--json", "e.json", "--output", "h.jsonl", "--set", "decode.nbest=1"
    )
    result = json.loads(Path("e.json").read_text())
    assert code == 0
    assert result["command"] == "dialog evaluate other --json e.json --output h.jsonl --set decode.nbest=1"
    kept = json.loads(Path(f"other/evaluation/{result['name']}.json").read_text())
    assert kept["details"]["command"] == result["command"], "as given, for reports"
    assert {
        "perplexity",
        "bleu",
        "bleu_legacy",
        "sacrebleu",
        "config",
        "versions",
        "seed",
        "device",
    } <= result.keys()
    assert all(len(json.loads(line)["hypotheses"]) == 1 for line in Path("h.jsonl").read_text().splitlines())
    assert "true response" in out
    assert "'uh-huh'" not in out, "a yardstick for corpora that say it"
    code, out, _ = dialog("score", "h.jsonl", "--json", "s.json")
    assert code == 0
    assert "BLEU-4" in out
    assert json.loads(Path("s.json").read_text())["bleu"] == result["bleu"]
    assert dialog("evaluate", "seed2", "--set", "decode.nbest=1")[0] == 0
    code, _, err = dialog("evaluate", "seed2", "--set", "decode.products=auto")
    assert (code, "only a training measures it; choose float32 or bfloat16" in err) == (2, True)
    code, out, _ = dialog("compare", "other", "seed2")
    assert code == 0
    assert "seed2" in out
    Path("results.json").touch()
    code, out, err = dialog("compare", "other", "seed2", "results.json", "runs")
    assert (code, err) == (0, "")
    assert out.endswith("left out, being no runs: results.json, runs\n")
    code, _, err = dialog("compare", "results.json")
    assert (code, err.count("\n")) == (3, 1)
    assert "results.json: no run" in err
    assert dialog("compare", "other", "absent")[0] == 4

    with Path("talk.txt").open() as lines:
        monkeypatch.setattr("sys.stdin", lines)
        code, out, err = dialog("chat", "other")
    assert code == 0
    assert "line 2: unknown: b\n" in err, "its words are good, morning and so on"
    assert len(out.splitlines()) == len([line for line in TALK.splitlines() if line])

    newest = max(Path("other/checkpoints").glob("step-*")) / "model.safetensors"
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    assert _check(dialog, "other", expected=4)["state_sha256"] is None


def _check(dialog: Callable[..., Outcome], run: str, expected: int = 0) -> dict[str, Any]:
    code, out, err = dialog("check", run, "--json", "c.json")
    result: dict[str, Any] = json.loads(Path("c.json").read_text())
    assert code == expected
    assert out.splitlines()[-1] == f"state_sha256 {result['state_sha256'] or '–'}"
    assert bool(result["problems"]) == bool(expected)
    assert err.count("\n") == bool(expected)
    return result


def test_prepare_and_references(dialog: Callable[..., Outcome], in_tmp: Path) -> None:
    Path("talk.txt").write_text(TALK)
    code, out, _ = dialog(
        "prepare", "talk.txt", "--out", "p", "--valid-fraction", "0", "--test-fraction", "0"
    )
    assert code == 0
    assert out.endswith("p: written\n")
    again = dialog("prepare", "talk.txt", "--out", "p", "--valid-fraction", "0", "--test-fraction", "0")
    assert again[1].endswith("p: unchanged\n")
    code, out, _ = dialog("references", "--train", "p/train", "--test", "talk.txt", "--out", "r.json")
    assert code == 0
    assert len(json.loads(Path("r.json").read_text())) == 5
