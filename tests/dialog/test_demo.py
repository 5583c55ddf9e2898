"""The demo as `dialog demo` runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dialog.demo import DEMO_HEADS, RESULTS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_leaves_a_run_and_results_for_every_head(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dialog", "demo", "--out", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    results = json.loads((tmp_path / "demo" / RESULTS).read_text())
    assert tuple(results) == DEMO_HEADS == ("softmax", "mos")
    floor = results["softmax"]["true_perplexity"]
    assert floor == pytest.approx(8.60, abs=0.01)
    for head, result in results.items():
        assert head in done.stdout
        assert (tmp_path / "demo" / head / "config.json").is_file()
        assert result["true_perplexity"] == floor < result["perplexity"] < 220
        assert set(result["bleu"]) == {"1", "2", "3", "4"}
        assert result["parameters"] > 0
    assert results["mos"]["perplexity"] < results["softmax"]["perplexity"]
    assert f"dialog chat {tmp_path / 'demo' / 'mos'}" in done.stdout.replace("\n", " ")
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads((tmp_path / "demo" / RESULTS).read_text()) == results
    assert "Built-in corpus" in again.stdout
