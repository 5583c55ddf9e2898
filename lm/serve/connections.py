"""Connections of clients: silent and stuck ones end, so that they do not keep others out."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """A connection that ends when its client is silent, or does not read, for ``timeout_keep_alive`` seconds.

    A client is silent while no whole head of a request has come since the start or since the end of the last
    answer. When ``limit_concurrency`` connections are open, a new one, or one with a new request, takes the
    place of the longest silent one.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch the connection, and make room for it."""
        super().connection_made(transport)
        self._silent_since = self.loop.time()
        self._stuck_since: float | None = None
        self._unsent = 0  # bytes at the last look
        self._watch = self.loop.call_later(self.timeout_keep_alive, self._look)
        self._make_room()

    def data_received(self, data: bytes) -> None:
        """Make room for a request, which a further silent connection would else have refused."""
        self._make_room()
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the watch."""
        self._watch.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Note the time, from which the client is silent."""
        self._silent_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Note the time, from which the client does not read."""
        self._stuck_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """Note that the client reads."""
        self._stuck_since = None
        super().resume_writing()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _served(self) -> bool:
        return self._answering or self.transport.get_write_buffer_size() > 0

    def _look(self) -> None:
        now, unsent = self.loop.time(), self.transport.get_write_buffer_size()
        if unsent < self._unsent:  # the client reads a long answer
            self._silent_since, self._stuck_since = now, now if unsent else None
        self._unsent = unsent
        since = self._stuck_since if self._answering else self._silent_since
        due = self.timeout_keep_alive + (now if since is None else since)
        if due <= now:
            self.transport.abort()
        else:
            self._watch = self.loop.call_at(due, self._look)

    def _make_room(self) -> None:
        others = [one for one in self.connections if isinstance(one, Connection) and one is not self]
        staying = [one for one in others if not one.transport.is_closing()]
        if self.limit_concurrency is None or len(staying) + 1 < self.limit_concurrency:
            return
        if silent := [one for one in staying if not one._served]:
            longest = min(silent, key=lambda one: one._silent_since)
            longest.transport.abort()
            self.connections.discard(longest)  # at once, for uvicorn counts them
