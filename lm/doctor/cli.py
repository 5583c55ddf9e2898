"""The command ``doctor`` of both command-line programs."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import typer

from lm.console.options import JsonFile
from lm.console.output import show, versions, write_result
from lm.console.tables import Table
from lm.doctor.checks import Diagnosis, light_checks, private
from lm.errors import visible
from lm.launched import module_command, module_environment

UNWELL = 8  # exit code if a check found a problem
PROBE_SECONDS = 120  # that the process with torch may take
DOCTOR = (
    "Check the installation and the machine, and print a remedy for every problem. "
    "The exit code is 8 for a problem, and 0 if there are only warnings.\n\n"
    "It takes a few seconds. --json writes a file for issues, without names or paths under your home."
)


def add_doctor(app: typer.Typer, program: str, module: str) -> None:
    """Add the command ``doctor``; ``module``, run as a process, does the checks that need torch."""

    @app.command(help=f"{DOCTOR}\n\nExample: {program} doctor --json doctor.json")
    def doctor(json_file: JsonFile = None) -> None:
        found = [*light_checks(), *_probed(module)]
        rows = [asdict(one) for one in found]
        unwell = any(one.state == "problem" for one in found)
        result = {"command": f"{program} doctor", "healthy": not unwell, "checks": rows}
        write_result(json_file, result | {"versions": versions()})
        table = [{"check": one.check, "": one.state, "found": one.says} for one in found]
        remedies = [f"{one.check}: {one.remedy}" for one in found if one.remedy]
        show(Table("Doctor", table), *remedies, *(["all is well"] if not remedies else []))
        if unwell:
            raise typer.Exit(UNWELL)


def _row(line: str) -> dict[str, Any]:
    """A line of the process as an object; empty for what a library has printed."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _probed(module: str) -> Iterator[Diagnosis]:
    """Findings of the process with torch, and one about its end if it did not finish."""
    environment = module_environment() | {"PYTHONFAULTHANDLER": ""}
    again = "file an issue with this report"
    try:
        ended = subprocess.run(
            module_command(module),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_SECONDS,
            env=environment,
            check=False,
        )
        out, code, err = ended.stdout, ended.returncode, ended.stderr
    except subprocess.TimeoutExpired as late:
        out, code, err = late.stdout or b"", None, b""
    except OSError as error:
        yield Diagnosis("torch", "problem", f"no process can be started: {error.strerror}", again)
        return
    doing = "start"
    for line in out.decode(errors="replace").splitlines():
        row = _row(line)
        if found := Diagnosis.read(row):
            yield found
        else:
            doing = str(row.get("begin", doing))
    if code is None:
        yield Diagnosis(
            doing, "problem", f"takes more than {PROBE_SECONDS} seconds", "end other programs first"
        )
    elif code:
        last = (err.decode(errors="replace").strip().splitlines() or [""])[-1]
        how = f"signal {-code}" if code < 0 else f"code {code}"
        yield Diagnosis(doing, "problem", private(visible(f"ends by {how}: {last}"))[:300], again)
