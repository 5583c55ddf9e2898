"""Minimal pairs in lm-evaluation-harness have the scores of `lm score`."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("lm_eval")

from lm.export import export_run
from lm.language.scoring import score_lines
from lm.language.trained import TrainedLm
from tests.support.tiny_lm import text_of, write_run

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "huggingface.md"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_harness_has_our_scores(in_tmp: Path) -> None:
    run = write_run(in_tmp / "run", lines=(5, 2, 2), kind="mos", components=3, tied=False)
    export_run(run, in_tmp / "exported" / "mos")
    good = [line for line in text_of(12, seed=4).splitlines() if len(line.split()) > 1]
    bad = [" ".join(reversed(line.split())) for line in good]
    pairs = [{"good": one, "bad": other} for one, other in zip(good, bad, strict=True)]
    Path("pairs.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    text = PAGE.read_text("utf-8")
    (task,) = re.findall(r"^```yaml\n(.*?)^```$", text, re.M | re.S)
    (command,) = re.findall(r"^```\npython (-c 'import lm.hf.*?)^```$", text, re.M | re.S)
    Path("tasks").mkdir()
    Path("tasks/pairs.yaml").write_text(task)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    shell = f"{sys.executable} {command}".replace("\\\n", " ")
    subprocess.run(shell, shell=True, check=True, env=environment, capture_output=True)
    (samples,) = Path("out").rglob("samples_*.jsonl")
    rows = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda row: row["doc_id"])
    found = [float(answer[0][0]) for row in rows for answer in row["resps"]]
    lines = in_tmp / "lines.txt"
    lines.write_text("".join(f"{pair['good']}\n{pair['bad']}\n" for pair in pairs))
    ours = score_lines(TrainedLm.load(run), lines, independent=True)
    assert found == pytest.approx([math.fsum(row.log_probs) for row in ours], abs=1e-4)
