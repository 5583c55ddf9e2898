"""What a run or a folder holds, for tests that compare two of them."""

from pathlib import Path

from lm.runs.checkpoint import CheckpointStore


def outcome(run: Path) -> tuple[str, bytes]:
    """What equal runs agree on: all that the last commit holds, as a hash, and the log."""
    store = CheckpointStore(run / "checkpoints")
    return store.open("last").state_sha256, (run / "metrics.jsonl").read_bytes()


def files_below(folder: Path) -> dict[str, bytes]:
    """The bytes of every file by its path below the folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
