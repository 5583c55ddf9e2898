"""Locks that processes share: who has one, and what becomes of the file."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lm.disk.filelock import FileLock, exclusive, held
from lm.ending import EarlyStop
from lm.errors import StorageError

ADD = """
import sys
from pathlib import Path
from lm.disk.filelock import FileLock, exclusive
lock, number = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(200):
    if sys.argv[3] == "removed":
        while True:
            try:
                with exclusive(lock, "another"):
                    number.write_text(str(int(number.read_text()) + 1))
                break
            except Exception as error:
                assert str(error) == "another", error
    else:
        with FileLock(lock):
            number.write_text(str(int(number.read_text()) + 1))
"""


@pytest.mark.parametrize("how", ["kept", "removed"])
def test_processes_that_take_turns_lose_nothing(how: str, tmp_path: Path) -> None:
    """``removed``: where every holder removes the file, some wait for one that is gone."""
    (number := tmp_path / "number").write_text("0")
    command = [sys.executable, "-c", ADD, tmp_path / "lock", number, how]
    for process in [subprocess.Popen(command) for _ in range(3)]:
        assert process.wait() == 0
    assert number.read_text() == "600"
    assert (tmp_path / "lock").exists() == (how == "kept")


def test_a_lock_that_is_held_is_refused_or_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = FileLock(path), FileLock(path)
    assert first.acquire(wait=False)
    assert not second.acquire(wait=False)
    with pytest.raises(StorageError, match="in use"), exclusive(path, "in use"):
        pass
    assert path.exists(), "it is the holder's"
    first.release()
    first.release()
    assert second.acquire(wait=False)
    second.release()


def test_who_waits_for_a_file_that_its_holder_removes_takes_the_next(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    wait = (
        "from lm.disk.filelock import *; from pathlib import Path; "
        f"lock = FileLock(Path({str(path)!r})); lock.acquire()"
    )
    with exclusive(path, ""):
        waiting = subprocess.Popen([sys.executable, "-c", wait + "; print(1, flush=True); input()"],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        time.sleep(0.5)
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == b"1\n"
    assert not FileLock(path).acquire(wait=False), "of the new file, not of the one that was removed"
    waiting.communicate(b"\n")


def test_a_removal_that_ends_in_an_exception_releases_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "lock"
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", interrupted)
        with pytest.raises(KeyboardInterrupt) as _kept, exclusive(path, "in use"):
            pass
    with exclusive(path, "in use"):
        pass


def test_a_signature_is_all_that_the_file_has(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    for signature in (b"a long one", b"short"):
        with lock:
            lock.sign(signature)
    assert (tmp_path / "lock").read_bytes() == b"short"


def test_a_lock_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="absent/lock"):
        FileLock(tmp_path / "absent/lock").acquire()
    os.symlink(tmp_path / "elsewhere", tmp_path / "link")
    with pytest.raises(StorageError, match="link"):
        FileLock(tmp_path / "link").acquire()
    with pytest.raises(StorageError, match=r"^/proc: no file can be created there"):
        FileLock(Path("/proc/lock")).acquire(wait=False)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_has_its_own_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    (tmp_path / "lock").touch()

    def refuse(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert not held(tmp_path / "lock"), "a run there can be looked at"
    with pytest.raises(StorageError, match="cannot lock files: choose a folder on another file system"):
        FileLock(tmp_path / "lock").acquire()
    with exclusive(tmp_path / "lock"):
        pass  # an evaluation is kept there


@pytest.mark.parametrize("waiting", [False, True])
def test_signals_are_delivered_while_a_lock_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting: bool
) -> None:
    returned: list[bool] = []

    def another_has_it(lock: FileLock, wait: bool = True) -> bool:
        if wait == waiting:
            signal.raise_signal(signal.SIGTERM)
        returned.append(wait)
        return wait

    monkeypatch.setattr(FileLock, "acquire", another_has_it)
    (tmp_path / "lock").touch()
    with pytest.raises(KeyboardInterrupt), EarlyStop(), exclusive(tmp_path / "lock"):
        returned.append(True)
    assert returned == [False], "deferred only for the attempt"
