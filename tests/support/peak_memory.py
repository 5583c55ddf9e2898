"""Peak memory of computations, each in a process of its own that has computed nothing before."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MEASURABLE = Path("/proc/self/clear_refs").exists()  # there is a high-water mark that can be reset
_BEGIN = """
import json, os, sys
from pathlib import Path

import torch

torch.set_num_threads(1)


def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


def peak(work):  # bytes above those before
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    work()
    return status("VmHWM") - before
"""
_END = """

for case in json.loads(sys.argv[1]):
    if not os.fork():
        print(measure(case), flush=True)
        os._exit(0)
    os.wait()
"""


def measured(code: str, cases: Sequence[Any]) -> list[float]:
    """``measure(case)`` of every case; ``code`` defines it by ``peak(work)``, bytes of a function."""
    command = [sys.executable, "-c", _BEGIN + code + _END, json.dumps(cases)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [float(line) for line in ended.stdout.splitlines()]
    assert len(found) == len(cases)
    return found
