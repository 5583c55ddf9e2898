"""Signals of the commands: deferred where files are published, at once everywhere else."""

import signal
import subprocess
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from lm.disk.filelock import exclusive, held
from lm.disk.storage import write_atomic
from lm.ending import EarlyStop
from lm.errors import Interrupted, StorageError
from lm.stop import StopFlag, deferred_signals, delivered_signals
from tests.support.signals import signal_at


def ended(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def send() -> None:
    signal.raise_signal(signal.SIGTERM)


def test_a_deferred_signal_comes_at_the_end_of_the_outermost_section() -> None:
    seen: list[str] = []

    def work() -> None:
        with deferred_signals():
            with deferred_signals():
                send()
                seen.append("inner")
            seen.append("outer")
        seen.append("after")

    with pytest.raises(KeyboardInterrupt), EarlyStop():
        work()
    assert seen == ["inner", "outer"]
    with EarlyStop(), deferred_signals():
        pass  # nothing is left of it


def test_a_deferred_signal_wakes_what_it_waits_for() -> None:
    seen: list[str] = []

    def work() -> None:
        with deferred_signals(lambda: seen.append("woken")):
            with deferred_signals():
                send()
            seen.append("ended")

    with pytest.raises(KeyboardInterrupt), EarlyStop():
        work()
    assert seen == ["woken", "ended"]

    def late() -> None:
        with deferred_signals():
            send()
            assert seen == ["woken", "ended"], "nothing is left of the first section"
            with deferred_signals(lambda: seen.append("at once")):
                seen.append("ended")

    with pytest.raises(KeyboardInterrupt), EarlyStop():
        late()
    assert seen[2:] == ["at once", "ended"]


def test_a_flag_that_raises_defers_a_signal_too() -> None:
    seen: list[str] = []

    def work() -> None:
        with deferred_signals():
            send()
            seen.append("published")
        seen.append("after")

    with pytest.raises(Interrupted), StopFlag() as stop, stop.raising():
        work()
    assert seen == ["published"]


def test_a_deferred_signal_comes_after_an_error_too() -> None:
    def fail() -> None:
        send()
        raise StorageError("no space")

    with pytest.raises(KeyboardInterrupt) as caught, EarlyStop(), deferred_signals():
        fail()
    assert isinstance(caught.value.__context__, StorageError)


def test_the_echo_of_a_signal_does_not_cut_off_the_cleaning_up_after_it() -> None:
    seen: list[str] = []

    def work() -> None:
        try:
            send()
        finally:
            with deferred_signals():
                send()
            seen.append("cleared")

    with pytest.raises(KeyboardInterrupt), EarlyStop():
        work()
    assert seen == ["cleared"]


@pytest.mark.parametrize("outer", [nullcontext, deferred_signals], ids=["alone", "in another"])
def test_long_work_in_a_section_is_cut_off_unless_another_section_is_around(
    outer: type[AbstractContextManager[None]],
) -> None:
    seen: list[str] = []

    def work() -> None:
        try:
            with delivered_signals():
                send()
                seen.append("work")
        finally:
            seen.append("cleared")
        seen.append("published")

    with pytest.raises(KeyboardInterrupt), EarlyStop(), outer(), deferred_signals():
        work()
    assert seen == (["cleared"] if outer is nullcontext else ["work", "cleared", "published"])


def test_a_signal_from_before_long_work_is_delivered_there() -> None:
    def work() -> None:
        send()
        with delivered_signals():
            raise AssertionError("work began")

    with pytest.raises(KeyboardInterrupt), EarlyStop(), deferred_signals():
        work()


def test_sections_of_other_threads_defer_nothing() -> None:
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with deferred_signals():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(60)
    try:
        with pytest.raises(KeyboardInterrupt), EarlyStop():
            send()
    finally:
        leave.set()
        thread.join()


@pytest.mark.parametrize("long", [False, True])
def test_a_signal_at_any_moment_of_writing_leaves_the_old_file_or_the_new_one(
    long: bool, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(target: Path) -> None:
        target.write_bytes(b"ne")
        done.append(held(tmp_path / "no lock"))
        target.write_bytes(b"new")

    done: list[bool] = []
    with signal_at() as calls:
        write_atomic(path, write if long else b"new")
    left = []
    for call in range(1, calls[0] + 1):
        path.write_bytes(b"old")
        done.clear()
        with pytest.raises(KeyboardInterrupt), signal_at(call):
            write_atomic(path, write if long else b"new")
        assert list(tmp_path.iterdir()) == [path]
        left.append(path.read_bytes())
        assert not done or left[-1] == b"new", "what was cut off was the call"
    assert set(left) == {b"old", b"new"}


def test_a_signal_leaves_no_lock(tmp_path: Path) -> None:
    def work() -> None:
        with exclusive(tmp_path / "lock", "busy"):
            assert held(tmp_path / "lock")

    with signal_at() as calls:
        work()
    for call in range(1, calls[0] + 1):
        with pytest.raises(KeyboardInterrupt), signal_at(call):
            work()
        assert not list(tmp_path.iterdir())


def test_a_flag_ends_a_section_of_training_at_once() -> None:
    def work() -> None:
        send()
        raise AssertionError("work went on")

    with StopFlag() as stop:
        with stop.raising():
            pass
        with pytest.raises(Interrupted, match="SIGTERM"), stop.raising():
            work()
        with pytest.raises(Interrupted, match="SIGTERM"), stop.raising():
            raise AssertionError("work began")
    with StopFlag() as stop:
        send()
        assert stop, "outside of a section nothing is raised"


SECOND = """
import os, signal, time
from lm.ending import EarlyStop
from lm.stop import deferred_signals
EarlyStop().install()
with deferred_signals():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    print("went on")
"""
FINALISER = """
import os, signal
from lm.ending import EarlyStop
class Open:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000): pass
EarlyStop().install()
Open()
print("went on")
"""
CALLBACK = """
import os, signal, weakref
from lm.ending import EarlyStop
class Open:
    pass
class Signals(dict):
    def __delitem__(self, key):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000): pass
    discard = pop = __delitem__
EarlyStop().install()
one = Open()
KEPT
del one
print("went on")
"""
KEEPERS = {
    "set": "kept = weakref.WeakSet([one]); kept.data = Signals.fromkeys(kept.data)",
    "keys": "kept = weakref.WeakKeyDictionary({one: 1}); kept.data = Signals.fromkeys(kept.data)",
    "finalize": "weakref.finalize(one, Signals().pop, 1)",
}
LOSING = [SECOND, FINALISER, *(CALLBACK.replace("KEPT", keeper) for keeper in KEEPERS.values())]


@pytest.mark.parametrize("program", LOSING, ids=["second", "finaliser", *KEEPERS])
def test_a_second_signal_and_one_that_would_get_lost_end_the_process(program: str) -> None:
    found = ended(program)
    assert (found.returncode, found.stdout) == (Interrupted.exit_code, "")


def test_a_signal_before_the_imports_of_a_command_ends_it_in_one_line() -> None:
    found = ended("import lm.begun, os, signal; os.kill(os.getpid(), signal.SIGINT)")
    assert (found.returncode, found.stderr) == (75, "interrupted; run the same command again\n")


def test_a_signal_while_python_ends_changes_nothing() -> None:
    program = """
import os, signal
from lm.ending import begin
class Last:
    def __del__(self):
        print("the end", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
begin()
last = Last()
"""
    found = ended(program)
    assert (found.returncode, found.stdout, found.stderr) == (0, "the end\n", "")


def test_a_signal_in_an_import_leaves_no_folder_that_was_begun(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    program = """
import sys
from pathlib import Path
from lm.disk.new_folder import NewFolder
from lm.ending import EarlyStop, begin
begin()
place = NewFolder(Path(sys.argv[1]) / "out", "work")
sys.path.insert(0, sys.argv[1])
with EarlyStop(), place.exclusive(), place.building() as folder:
    (folder / "file").write_text("begun")
    import slow
"""
    found = ended(program, tmp_path)
    assert (found.returncode, found.stderr) == (75, "interrupted; run the same command again\n")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["slow.py"]
