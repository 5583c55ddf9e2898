"""``check``: is every byte of a run's checkpoints what was written?"""

from pathlib import Path
from typing import Any

from lm.checkpoint import CheckpointStore
from lm.errors import StorageError


def check_run(run: Path) -> dict[str, Any]:
    """Verify every hash of every commit of a run.

    Returns ``step`` and ``state_sha256`` of the last commit (equal between two runs exactly when weights,
    optimiser and position are bit-identical; None where it is damaged), ``commits``, newest first, and
    ``problems``, one line each. Raises StorageError where there is no commit at all.
    """
    store = CheckpointStore(run / "checkpoints")
    reports = store.verify_all()
    if not reports:
        raise StorageError(f"{run}: no checkpoint; is it the folder of a run?")
    problems = [report.problem for report in reports if report.problem]
    step: int | None = None
    state_sha256: str | None = None
    try:
        last = store.open("last")
        step, state_sha256 = last.step, last.state_sha256
    except StorageError as error:
        if not problems:  # the pointer, or what it points to, rather than a commit
            problems.append(str(error))
    commits = [
        {
            "step": r.step,
            "state_sha256": r.state_sha256 or None,
            "bytes": r.size,
            "problem": r.problem or None,
        }
        for r in reports
    ]
    return {"step": step, "state_sha256": state_sha256, "commits": commits, "problems": problems}
