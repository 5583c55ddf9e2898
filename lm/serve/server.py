"""The process that serves: address, keys, limits of connections, and the end by a signal."""

import asyncio
import ctypes
import ipaddress
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from lm.disk.storage import read_file
from lm.errors import ConfigError, visible
from lm.serve.app import Served, Server
from lm.serve.connections import Connection
from lm.serve.gate import Policy
from lm.stop import StopFlag

BACKLOG = 128  # connections that the system keeps until they are accepted
SHORTEST_KEY = 16  # characters
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
STOPPING = "finishing the requests that have come; another signal ends at once"
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)
_LARGEST = 32 << 20  # bytes, the highest threshold that every glibc takes
_KEPT = 256 << 20  # bytes


@dataclass(frozen=True)
class Address:
    """The address to listen at, and the file of API keys, if any."""

    host: str = "127.0.0.1"
    port: int = 8000
    keys: Path | None = None

    def policy(self) -> Policy:
        """Hosts and keys of requests. ConfigError for an open address without keys."""
        keys = read_keys(self.keys) if self.keys else ()
        local = is_loopback(self.host)
        if not local and not keys:
            raise ConfigError(
                f"--host {self.host}: others can reach this address; give --api-key-file, or use 127.0.0.1"
            )
        own = f"[{self.host}]" if ":" in self.host else self.host
        return Policy(keys, None if keys else LOOPBACK | {own.lower()})

    def listen(self) -> socket.socket:
        """A listening socket. ConfigError if the address is taken, or not of this machine."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.host, self.port))
            listener.listen(BACKLOG)
        except (OSError, UnicodeError) as error:
            listener.close()
            reason = getattr(error, "strerror", None) or "not an address"
            raise ConfigError(
                f"--host {self.host} --port {self.port}: {reason.lower()}; choose another"
            ) from None
        return listener


def is_loopback(host: str) -> bool:
    """True for an address that only this machine reaches."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_keys(path: Path) -> tuple[str, ...]:
    """The keys in a file, one a line; # begins a comment. ConfigError for a short one, or for none."""
    lines = [line.strip() for line in read_file(path, limit=1 << 20).decode("utf-8", "replace").splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"{path}: has no key; write one a line")
    if short := next((key for key in keys if len(key) < SHORTEST_KEY or not key.isascii()), None):
        raise ConfigError(
            f"{path}: line {lines.index(short) + 1}: a key has at least {SHORTEST_KEY} ASCII characters"
        )
    return keys


def named_runs(runs: Sequence[Path]) -> dict[str, Path]:
    """Runs by the name of their folder, with as many parents as make the names different.

    ConfigError for a repetition.
    """
    places = [run.resolve() for run in runs]
    if twice := next((run for run, place in zip(runs, places, strict=True) if places.count(place) > 1), None):
        raise ConfigError(f"{visible(twice)}: given twice; name each run once")
    for length in range(1, max(len(place.parts) for place in places) + 1):
        names = [visible("/".join(place.parts[-length:])) for place in places]
        if len(set(names)) == len(names):
            break
    return dict(zip(names, runs, strict=True))


def serve(runs: Mapping[str, Served], address: Address, *, page: bool, log: Callable[[str], None]) -> None:
    """Answer requests until a signal, then finish those that have come.

    Raises ConfigError for an address that cannot be had.
    """
    server = Server(runs, address.policy(), page=page, log=log)
    listener = address.listen()
    host = f"[{address.host}]" if ":" in address.host else address.host
    url = f"http://{host}:{listener.getsockname()[1]}"
    answer_at(listener, server, lambda: log(f"{url} serves {', '.join(runs)}; Ctrl-C ends"))


def answer_at(
    listener: socket.socket,
    server: Server,
    ready: Callable[[], None] = lambda: None,
    *,
    connections: int = 256,
    idle: int = 20,
    stop: int = 60,
) -> None:
    """Answer requests at a bound socket until a signal, then finish those that have come.

    Args:
        ready: called when the first request can be answered.
        connections: number at once; further ones get status 503, unless one of these is silent.
        idle: seconds that a silent client, or one that does not read its answer, has.
        stop: seconds that the last answers after a signal may take.
    """
    keep_freed_memory()
    config = uvicorn.Config(
        server.app,
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=connections + 1,  # at which uvicorn refuses
        timeout_keep_alive=idle,
        timeout_graceful_shutdown=stop,
    )
    asyncio.run(_Uvicorn(config, ready).serve([listener]))


def keep_freed_memory() -> None:
    """Let the process keep up to 256 MiB of freed memory, instead of returning it to the system.

    A step of decoding allocates some MiB, and fresh pages cost as much time as the arithmetic on them. It has
    no effect without glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST)
    mallopt(_TRIM_THRESHOLD, _KEPT)


class _Uvicorn(uvicorn.Server):
    """Uvicorn with our signals: the first one ends it in order, the second at once."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop, self._ready = StopFlag(notice=STOPPING), ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with self._stop:
            yield

    async def on_tick(self, counter: int) -> bool:
        return bool(self._stop) or await super().on_tick(counter)
