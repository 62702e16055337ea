"""Limits the number of connections, and the time for a request's head.

    uvicorn … --http api.middleware.connections:BoundedHttp --backlog 1024

uvicorn alone waits for a request indefinitely, and accepts until no file descriptor is left for the database.
Here the connection that has waited longest for its request is closed to admit a new one.
"""

import asyncio
import json
import resource
import socket
import sys
from http import HTTPStatus
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.responses.errors import HeadTooLarge, InvalidHttp, error_json

HEAD_S: Final = 10.0  # from readiness for a request to its complete head

# File descriptors for the database, Redis, uploads, and a backlog accepted at once. (Beyond the backlog, the
# kernel delays connections by seconds or resets them.)
BACKLOG: Final = 1024  # as in the command above
FILES_RESERVED: Final = 256 + BACKLOG


class BoundedHttp(H11Protocol):
    """A connection; it waits while none of its requests is being answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _send_at_once(transport)
        self._head_is_due: asyncio.TimerHandle | None = None
        self._await_head()
        files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if len(self.connections) > connections_max(files_max):
            self._close_longest_waiting()

    def on_response_complete(self) -> None:
        self._await_head()  # before uvicorn handles a request that has already arrived
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answers what is not HTTP like every other wrong request; not at all once an answer has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            status, body = _refusal(msg)
            headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
            events = [
                h11.Response(
                    status_code=status,
                    headers=[*headers, ("connection", "close")],
                    reason=HTTPStatus(status).phrase,
                ),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ]
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()

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
        """Closes the longest waiting connection; this one if all others are busy."""
        waiting = [held for held in self.connections if isinstance(held, BoundedHttp) and held.is_waiting]
        min(waiting, key=lambda held: held.waits_since_s).timeout_keep_alive_handler()


def _refusal(message: str) -> tuple[int, bytes]:
    """The status and body for the protocol error that is being handled."""
    status = getattr(sys.exception(), "error_status_hint", HTTPStatus.BAD_REQUEST)
    error = HeadTooLarge() if status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE else InvalidHttp(message)
    return status, json.dumps(error_json(error)).encode()


def _send_at_once(transport: asyncio.Transport) -> None:
    """asyncio does so for sockets that it has bound itself. Otherwise the second part of an answer waits for
    the client's acknowledgement of the first: 40 ms.
    """
    connected = transport.get_extra_info("socket")
    if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def connections_max(files_max: int) -> int:
    """The connections that leave enough of these file descriptors for the rest."""
    return files_max - min(FILES_RESERVED, files_max // 2)
