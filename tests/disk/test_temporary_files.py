"""Temporary files: names, locks, permissions, and what killed processes have left."""

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lm.disk import storage
from tests.support.outcomes import files_below


def test_what_the_dead_left_goes_and_what_the_living_write_stays(tmp_path: Path) -> None:
    dead = [tmp_path / name for name in (".a.json.1.tmp", ".a.json.999999999999.tmp")]
    others = [tmp_path / name for name in (".b.json.1.tmp", ".a.json.x.tmp", "a.json.1.tmp", ".a.json.1")]
    for path in (*dead, *others):
        path.write_bytes(b"half")

    def write(path: Path) -> None:
        path.write_bytes(b"whole")
        storage.remove_leftovers(tmp_path)  # another process tidies up
        assert path.exists()

    storage.write_atomic(tmp_path / "a.json", write)
    assert set(files_below(tmp_path)) == {"a.json", ".a.json.x.tmp", "a.json.1.tmp", ".a.json.1"}
    assert (tmp_path / "a.json").read_bytes() == b"whole"


@pytest.mark.parametrize("name", ["a.json", "[a]*.json", "ü\n.json"])
def test_a_file_of_a_killed_process_goes_when_it_is_written_again(tmp_path: Path, name: str) -> None:
    program = (
        "import os, sys; from pathlib import Path; from lm.disk.storage import write_atomic\n"
        "write_atomic(Path(sys.argv[1]), lambda path: os.kill(os.getpid(), 9))"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / name)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [path.suffix for path in tmp_path.iterdir()] == [".tmp"]
    storage.write_atomic(tmp_path / name, b"whole")
    assert files_below(tmp_path) == {name: b"whole"}


def test_a_file_that_a_clean_up_has_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clean-up opens and locks it before the writer does, and removes it while that writes."""
    lock, write_all, doomed = fcntl.flock, storage.write_all, dict[Path, int]()

    def locked_before(fd: int, operation: int) -> None:
        if not doomed:
            (made,) = tmp_path.glob(".a.json.*.tmp")
            doomed[made] = os.open(made, os.O_RDWR)
            lock(doomed[made], operation)
        lock(fd, operation)

    def removed_meanwhile(fd: int, data: bytes) -> None:
        for path in doomed:
            path.unlink()
        write_all(fd, data)

    monkeypatch.setattr(storage.fcntl, "flock", locked_before)
    monkeypatch.setattr(storage, "write_all", removed_meanwhile)
    storage.write_atomic(tmp_path / "a.json", b"whole")
    assert files_below(tmp_path) == {"a.json": b"whole"}
    for fd in doomed.values():
        os.close(fd)


@pytest.mark.parametrize("name", ["a" * 237, "a" * 255, "ü" * 127])
def test_a_name_that_is_as_long_as_one_may_be_is_written_and_tidied_up(tmp_path: Path, name: str) -> None:
    storage.require_writable(tmp_path / name)

    def stopped(path: Path) -> None:
        path.rename(tmp_path / "left")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        storage.write_atomic(tmp_path / name, stopped)
    (tmp_path / "left").rename(tmp_path / f".{storage._kept_name(name)}.1.tmp")
    storage.write_atomic(tmp_path / name, b"whole")
    assert files_below(tmp_path) == {name: b"whole"}


def test_a_file_keeps_its_permissions_and_a_read_only_one_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    storage.write_atomic(path, b"one")
    usual = path.stat().st_mode
    for mode, then in ((0o600, 0o600), (0o640, 0o640), (0o400, 0o600)):
        path.chmod(mode)
        storage.write_atomic(path, b"two")
        assert stat.S_IMODE(path.stat().st_mode) == then
    path.unlink()
    storage.write_atomic(path, b"three")
    assert path.stat().st_mode == usual


def test_a_file_system_without_locks_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(storage.fcntl, "flock", refuse)
    (tmp_path / ".a.json.1.tmp").write_bytes(b"perhaps of the living")
    storage.write_atomic(tmp_path / "a.json", b"whole")
    assert set(files_below(tmp_path)) == {"a.json", ".a.json.1.tmp"}
