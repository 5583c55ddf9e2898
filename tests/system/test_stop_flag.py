"""The flag by which a signal ends a training: set once a request, at once for a second, and given back."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from lm.stop import StopFlag

OBEY = """
import sys, time
from lm.errors import Interrupted
from lm.stop import StopFlag
stop = StopFlag(); stop.install(); print("ready", flush=True)
while not stop: time.sleep(0.01)
print("stopping", flush=True)
if sys.argv[1] == "linger": time.sleep(60)
try: stop.check()
except Interrupted as error: print(error); sys.exit(error.exit_code)
"""


def obey(signals: list[signal.Signals], mode: str) -> tuple[int, str, float]:
    """Exit code, output after the first line, and seconds from the last signal to the end."""
    command = [sys.executable, "-c", OBEY, mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for number in signals:
            sent = time.monotonic()
            process.send_signal(number)
            if number is not signals[-1]:
                assert process.stdout.readline() == "stopping\n"
                time.sleep(0.3)
        output = process.stdout.read()
        return process.wait(), output, time.monotonic() - sent


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_sets_the_flag(number: signal.Signals) -> None:
    code, output, _ = obey([number], "stop")
    assert code == 75
    assert f"interrupted by {number.name}; the same command resumes it" in output


def test_a_second_signal_ends_at_once() -> None:
    code, output, seconds = obey([signal.SIGINT, signal.SIGTERM], "linger")
    assert code == 75
    assert "interrupted" not in output
    assert seconds < 30


ECHO = """
import os, signal
from lm.stop import StopFlag
stop = StopFlag(); stop.install()
for _ in range(3):
    os.kill(os.getpid(), signal.SIGTERM)
    while not stop: pass
print("alive")
"""


def test_one_request_delivered_several_times_is_one_request() -> None:
    ended = subprocess.run([sys.executable, "-c", ECHO], capture_output=True, text=True, check=True)
    assert ended.stdout == "alive\n"


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = StopFlag()
        stop.install()
        os.kill(os.getpid(), signal.SIGHUP)
        stop.check()
        stop.uninstall()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_the_main_thread_installing_does_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    flags: list[StopFlag] = []

    def work() -> None:
        flags.append(StopFlag())
        flags[0].install()
        flags[0].uninstall()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(flags) == 1
    assert signal.getsignal(signal.SIGTERM) is before
