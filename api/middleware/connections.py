"""How many connections the API holds, and how long one may take over the head of a request.

    uvicorn … --http api.middleware.connections:BoundedHttp --backlog 128

uvicorn by itself waits for a request for ever, and accepts until the process has no file descriptor left to
open the database with. Here the connection that has waited longest for its request is closed to admit a new
one. Slow bodies are limited in `limits.py`.
"""

import asyncio
import resource
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S: Final = 10.0  # from when we are ready for a request until its head is complete

# File descriptors that are not for connections: for the database, Redis, uploads, and one backlog of
# connections that are accepted in one go.
FILES_RESERVED: Final = 256


class BoundedHttp(H11Protocol):
    """One connection. It is waiting while no request of it is being answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_is_due: asyncio.TimerHandle | None = None
        self._await_head()
        files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if len(self.connections) > connections_max(files_max):
            self._close_longest_waiting()

    def on_response_complete(self) -> None:
        self._await_head()  # before uvicorn goes on to a request that has arrived meanwhile
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_is_due is not None:
            self._head_is_due.cancel()
        super().connection_lost(exc)

    @property
    def is_waiting(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _await_head(self) -> None:
        self.waits_since_s = self.loop.time()
        if self._head_is_due is not None:
            self._head_is_due.cancel()
        self._head_is_due = self.loop.call_later(HEAD_S, self._close_if_waiting)

    def _close_if_waiting(self) -> None:
        if self.is_waiting:
            self.timeout_keep_alive_handler()

    def _close_longest_waiting(self) -> None:
        """Close the connection that has waited the longest; this one, if all others are being answered."""
        waiting = [held for held in self.connections if isinstance(held, BoundedHttp) and held.is_waiting]
        min(waiting, key=lambda held: held.waits_since_s).timeout_keep_alive_handler()


def connections_max(files_max: int) -> int:
    """How many connections leave enough of so many file descriptors for the rest. Pure."""
    return files_max - min(FILES_RESERVED, files_max // 2)
