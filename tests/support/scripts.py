"""The programs of scripts/, run in this process, which has loaded torch already."""

import io
import runpy
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def ended_script(script: Path, *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.syspath_prepend(str(SCRIPTS))
        patch.setattr(sys, "argv", [str(script), *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(script), run_name="__main__")
    return int(left.value.code or 0), out.getvalue(), err.getvalue()


def run_script(script: Path, *arguments: object) -> str:
    """What a script prints that has to succeed."""
    code, out, err = ended_script(script, *arguments)
    assert not code, out + err
    return out
