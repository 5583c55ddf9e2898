"""Studies: trainings of several heads and seeds, whose entries outlive the runs."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts" / "study.py"
STUDY = """
about = "Two heads."
program = "dialog"
preset = "smalltalk_"
settings = ["train.threads=1", "train.max_steps=2", "optim.decay_steps=2", "optim.warmup_steps=0"]
seeds = [1]
evaluation = "smalltalk-test.first-20.beam-1.nbest-1"
unit = "dialog"
evaluate = ["--limit", "20", "--set", "decode.beam=1", "--set", "decode.nbest=1"]
analyses = {}

[heads]
softmax = "softmax"
mos = "MoS"
"""


def study(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_study_trains_what_is_missing_and_keeps_what_tests_need(tmp_path: Path) -> None:
    file, results = tmp_path / "two.toml", tmp_path / "two.json"
    file.write_text(STUDY)
    options = ("--runs", tmp_path / "runs", "--results", results, "--machine", "a test")
    first = study(file, *options, "--heads", "mos")
    assert first.returncode == 0, first.stderr
    second = study(file, *options)
    assert second.stdout.startswith("missing: 1 of 2 trainings: softmax-1\n"), second.stderr
    assert study(file, *options).stdout == "missing: 0 of 2 trainings\n"
    softmax, mos = json.loads(results.read_text())["entries"]
    assert (softmax["label"], softmax["config"], softmax["seeds"]) == ("softmax", "smalltalk_softmax", [1])
    assert softmax["config_sha256"] != mos["config_sha256"]
    assert softmax["units"]["tokens"] == mos["units"]["tokens"]
    nats, tokens = (np.array(softmax["units"][name].split(), float).sum() for name in ("nats", "tokens"))
    assert np.exp(nats / tokens) == pytest.approx(softmax["numbers"]["test_perplexity"], rel=1e-3)


def test_a_mistake_is_told_in_one_line_and_changes_nothing(tmp_path: Path) -> None:
    file, results = tmp_path / "two.toml", tmp_path / "two.json"
    file.write_text(STUDY.replace("smalltalk_", "smallchat_"))
    options = ("--runs", tmp_path / "runs", "--results", results)
    for wrong, message in (
        (("--heads", "mof"), "error: --heads mof: choose from softmax, mos"),
        ((), "error: name the machine with --machine TEXT"),
        (("--machine", "a test", "--heads", "mos"), "mos-1: dialog train smallchat_mos"),
    ):
        ended = study(file, *options, *wrong)
        assert ended.returncode == 2
        assert ended.stderr.startswith(message)
        assert ended.stderr.count("\n") == 1
    assert not results.exists()
