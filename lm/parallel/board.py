"""Messages between the ranks of a group outside of exchanges, in the key-value store of torchrun."""

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from lm.disk.jsonfile import JSON
from lm.errors import require
from lm.launched import whole_number

REACHED = timedelta(minutes=1)  # in which the store of torchrun answers, which is there before the ranks
ASKED = 0.5  # seconds between two questions about an alert
_BEAT = "exchange/{}"  # key under which a rank counts its exchanges
_FAILURE = "failure"  # key under which the first rank to fail tells why
_ALERT = "alert"  # key that exists once a rank has received a signal


class Board:
    """The store of a group; after a restart by torchrun, a new one. RuntimeError if its host is lost."""

    def __init__(self, rank: int, size: int, timeout: timedelta) -> None:
        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

        self._rank, self._size, self._asked = rank, size, 0.0
        host, port = os.environ["MASTER_ADDR"], whole_number("MASTER_PORT")
        require(port < 1 << 16, f"MASTER_PORT = {port}: not a port; start several processes by torchrun")
        master = rank == 0 and not hosted()
        connecting = min(timeout, REACHED) if hosted() else timeout
        store = TCPStore(host, port, size, is_master=master, timeout=connecting, wait_for_workers=False)
        store.set_timeout(timeout)
        self.store = PrefixStore(f"highrank/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

    def beat(self, exchange: int) -> None:
        """Show that this rank has come to an exchange, by its number from 1."""
        self.store.set(_BEAT.format(self._rank), str(exchange))

    def all_here(self) -> bool:
        """True if every rank has shown a beat."""
        return bool(self.store.check([_BEAT.format(rank) for rank in range(self._size)]))

    def behind(self, exchange: int) -> list[int]:
        """Ranks that have not come to an exchange."""
        return [rank for rank in range(self._size) if self._exchange_of(rank) < exchange]

    def _exchange_of(self, rank: int) -> int:
        key = _BEAT.format(rank)
        return int(self.store.get(key)) if self.store.check([key]) else 0

    def report_failure(self, facts: Mapping[str, JSON]) -> bool:
        """Tell why this rank fails. Return True for the first rank that does."""
        text = json.dumps(facts)
        return bool(self.store.compare_set(_FAILURE, "", text).decode() == text)

    def failure(self) -> Any:
        """The facts that the first rank to fail has told; None as long as there is none."""
        return json.loads(self.store.get(_FAILURE)) if self.store.check([_FAILURE]) else None

    def alert(self) -> None:
        """Let :meth:`alerted` be true on every rank from now on."""
        with suppress(RuntimeError):  # a lost store is noticed by the next exchange
            self.store.set(_ALERT, "1")

    def alerted(self) -> bool:
        """True if a rank has called :meth:`alert`. The store is asked at most every ``ASKED`` seconds."""
        now = time.monotonic()
        if now - self._asked < ASKED:
            return False
        self._asked = now
        with suppress(RuntimeError):
            return bool(self.store.check([_ALERT]))
        return False


def hosted() -> bool:
    """True if torchrun's agent hosts the store, and so outlives every rank."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
