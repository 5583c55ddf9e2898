"""The process: addresses, keys, clients that leave, and the end by a signal."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest

from lm.errors import ConfigError
from lm.serve import server
from lm.serve.server import Address, is_loopback, named_runs, read_keys

ROOT = Path(__file__).parents[2]
CHAT = "/v1/chat/completions"


def ask(text: str) -> dict[str, object]:
    return {"model": "toy", "messages": [{"role": "user", "content": text}]}


def test_memory_is_kept_where_the_c_library_can(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(server.ctypes, "CDLL", lambda name: library)
    server.keep_freed_memory()
    assert [parameter for parameter, _ in calls] == [-3, -1]
    del library.mallopt
    server.keep_freed_memory()
    assert len(calls) == 2


def test_only_the_loopback_address_needs_no_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# mine\n0123456789abcdef\n\nfedcba9876543210\n")
    assert Address("127.0.0.1").policy().hosts == {"localhost", "127.0.0.1", "[::1]"}
    assert "[0:0:0:0:0:0:0:1]" in (Address("0:0:0:0:0:0:0:1").policy().hosts or ())
    assert Address("0.0.0.0", keys=keys).policy().keys == ("0123456789abcdef", "fedcba9876543210")
    for host in ("0.0.0.0", "::", "192.168.1.7", "example.org", ""):
        assert not is_loopback(host)
        with pytest.raises(ConfigError, match="give --api-key-file"):
            Address(host).policy()
    assert all(map(is_loopback, ("localhost", "LOCALHOST", "127.0.0.1", "127.8.9.1", "::1")))


@pytest.mark.parametrize(
    ("text", "message"), [("", "has no key"), ("# a\nshort\n", "line 2: a key has at least 16")]
)
def test_a_file_of_keys_has_some_that_are_long(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_keys(tmp_path / "keys")


def test_runs_have_the_names_of_their_folders_unless_these_are_equal() -> None:
    assert list(named_runs([Path("runs/mos"), Path("runs/softmax/")])) == ["mos", "softmax"]
    assert list(named_runs([Path("x/a/mos"), Path("y/b/mos")])) == ["a/mos", "b/mos"], "no more than needed"
    with pytest.raises(ConfigError, match="given twice"):
        named_runs([Path("a/mos"), Path("a/mos")])


def test_an_address_that_is_taken_is_a_line() -> None:
    listener = Address(port=0).listen()
    port = listener.getsockname()[1]
    with pytest.raises(ConfigError, match=f"--port {port}: address already in use"):
        Address(port=port).listen()
    listener.close()
    with pytest.raises(ConfigError, match="choose another"):
        Address(host="no such host").listen()


@contextmanager
def toy_server(folder: Path, **limits: int) -> Iterator["subprocess.Popen[str]"]:
    """A process that serves a toy at a Unix socket, with these limits of connections."""
    command = [sys.executable, "-m", "tests.support.toy_served", str(folder / "socket"), json.dumps(limits)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not (folder / "socket").exists():
        assert process.poll() is None
        time.sleep(0.02)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("head", [b"", b"GET / HTTP/1.1\r\nX: "], ids=["silent", "half a head"])
def test_silent_connections_end_and_lock_nobody_out(tmp_path: Path, head: bytes) -> None:
    with toy_server(tmp_path, connections=3, idle=1), contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(5)]
        for one in silent:
            one.settimeout(10)
            one.connect(str(tmp_path / "socket"))
            one.sendall(head)
        transport = httpx2.HTTPTransport(uds=str(tmp_path / "socket"))
        with httpx2.Client(transport=transport, base_url="http://localhost") as client:
            assert client.get("/healthz").status_code == 200
        for one in silent:
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b"", "the server closes it"


def test_a_client_that_is_served_is_not_refused_for_a_silent_one(tmp_path: Path) -> None:
    body = json.dumps(ask("sleep 0.5")).encode()
    post = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with toy_server(tmp_path, connections=1, idle=20), contextlib.ExitStack() as stack:
        served, silent = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        for one in (served, silent):
            one.settimeout(10)
        served.connect(str(tmp_path / "socket"))
        served.sendall(f"{post}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(0.2)
        silent.connect(str(tmp_path / "socket"))
        assert served.recv(1 << 16).startswith(b"HTTP/1.1 200")
        time.sleep(0.2)
        served.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = served.recv(1 << 16)
        while b"HTTP/1.1" not in answer:
            answer = served.recv(1 << 16)
        assert b"HTTP/1.1 200" in answer
        with contextlib.suppress(ConnectionResetError):
            assert silent.recv(1) == b""


def test_a_batch_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    with toy_server(tmp_path, stop=1) as process, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "socket"))
        body = json.dumps(ask("sleep 1000")).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "a batch does not end" in said


def test_sigterm_finishes_what_has_come_and_a_client_that_left_is_dropped(tmp_path: Path) -> None:
    answers: list[int] = []

    def connected(seconds: float = 60) -> httpx2.Client:
        transport = httpx2.HTTPTransport(uds=str(tmp_path / "socket"))
        return httpx2.Client(transport=transport, base_url="http://localhost", timeout=seconds)

    def chat(text: str, seconds: float = 60) -> None:
        with connected(seconds) as client:
            try:
                answers.append(client.post(CHAT, json=ask(text)).status_code)
            except httpx2.TimeoutException:
                answers.append(0)

    def waiting(client: httpx2.Client) -> int:
        return int(client.get("/healthz").json()["waiting"])

    with toy_server(tmp_path) as process, connected() as client:
        first, last = (threading.Thread(target=chat, args=[text]) for text in ("sleep 2", "word"))
        first.start()
        while "highrank_batches_total 1" not in client.get("/metrics").text:
            time.sleep(0.02)
        chat("this one leaves", 0.2)
        while waiting(client):
            time.sleep(0.02)
        last.start()
        while not waiting(client):
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        first.join()
        last.join()
        said, _ = process.communicate(timeout=30)
    assert answers == [0, 200, 200]
    assert process.returncode == 0
    lines = said.splitlines()
    assert (lines[0], lines[-1]) == ("ready", "ended")
    assert sum(" 499 " in line for line in lines) == 1
    assert any("finishing the requests" in line for line in lines)
