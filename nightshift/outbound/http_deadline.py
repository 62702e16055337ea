"""Connections with a deadline for the whole request; an HTTP library's timeouts cover one read each."""

import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import httpcore

Clock = Callable[[], float]  # monotonic seconds


@dataclass(frozen=True)
class Deadline:
    """A time limit on a monotonic clock."""

    at_s: float
    clock: Clock = time.monotonic

    def bounded(self, timeout_s: float | None = None) -> float:
        """The timeout, shortened to the deadline. Raises httpcore.ReadTimeout past it."""
        left_s = self.at_s - self.clock()
        if left_s <= 0:
            raise httpcore.ReadTimeout("the deadline for the whole request has passed")
        return left_s if timeout_s is None else min(timeout_s, left_s)


class BoundedBackend(httpcore.NetworkBackend):
    """Opens the connections of one request."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._sockets = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        timeout_s = self._deadline.bounded(timeout)
        connected = self._sockets.connect_tcp(host, port, timeout_s, local_address, socket_options)
        return BoundedStream(connected, self._deadline)


class BoundedStream(httpcore.NetworkStream):
    """A connection whose reads and writes end by the deadline."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.bounded(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._deadline.bounded(timeout))

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        encrypted = self._stream.start_tls(ssl_context, server_hostname, self._deadline.bounded(timeout))
        return BoundedStream(encrypted, self._deadline)

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
