"""A TCP proxy that fails as networks do: late, silent, cut off, with one message missing.

It stands before a port or a unix socket and breaks every connection through it alike, from `set` until
`heal`. "up" is from the client to the server, "down" the way back.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

HOST: Final = "127.0.0.1"
CHUNK_BYTES: Final = 65536
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s: closing sends RST

Way = Literal["up", "down"]
T = TypeVar("T")


@dataclass(frozen=True)
class Latency:
    """Everything arrives so much later, both ways."""

    ms: float


@dataclass(frozen=True)
class Blackhole:
    """Connections are accepted, and nothing comes through; on `heal`, what was held does."""

    way: Way | Literal["both"] = "both"


@dataclass(frozen=True)
class Refuse:
    """The server is gone: every connection, old or new, is reset."""


@dataclass(frozen=True)
class Reset:
    """The server gets a request with these bytes in it and carries it out; the client sees a reset instead of
    the answer. It happens so many times in all, then the proxy has healed.
    """

    after: bytes
    times: int = 1


@dataclass(frozen=True)
class Swallow:
    """Pieces of answers with these bytes in them never arrive."""

    pattern: bytes


Fault = Latency | Blackhole | Refuse | Reset | Swallow


class FaultProxy:
    """Before one server. Its methods may be called from any thread; use `proxied` to make one."""

    def __init__(self, target: int | Path) -> None:
        self._target = target
        self._fault: Fault | None = None
        self._resets_left = 0
        self._changed = asyncio.Event()
        self._connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        self._change(None)
        self._reset_all()
        while left := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            for task in left:
                task.cancel()
            await asyncio.wait(left)

    def set(self, fault: Fault) -> None:
        """Fails in this way from now on, until `heal` or the next fault."""
        self._call(lambda: self._change(fault))

    def heal(self) -> None:
        self._call(lambda: self._change(None))

    def reset_connections(self) -> int:
        """Cuts every connection there is, once. Returns how many there were."""
        return self._call(self._reset_all)

    @property
    def fault(self) -> Fault | None:
        return self._fault

    def _call(self, action: Callable[[], T]) -> T:
        async def call() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def _change(self, fault: Fault | None) -> None:
        self._fault = fault
        self._resets_left = fault.times if isinstance(fault, Reset) else 0
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if isinstance(fault, Refuse):
            self._reset_all()

    def _reset_all(self) -> int:
        connections = list(self._connections)
        for connection in connections:
            connection.reset()
        return len(connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        near = _Side(reader, writer)
        if isinstance(self._fault, Refuse):
            near.reset()
            return
        try:
            if isinstance(self._target, Path):
                far = _Side(*await asyncio.open_unix_connection(str(self._target)))
            else:
                far = _Side(*await asyncio.open_connection(HOST, self._target))
        except OSError:
            near.reset()
            return
        connection = _Connection(near, far)
        self._connections.add(connection)
        try:
            pumps = [self._pump(connection, "up"), self._pump(connection, "down")]
            await asyncio.gather(*pumps, return_exceptions=True)
        except asyncio.CancelledError:
            pass  # we close; asyncio's streams complain of a task that ends as cancelled
        finally:
            self._connections.discard(connection)
            connection.close()

    async def _pump(self, connection: "_Connection", way: Way) -> None:
        source, sink = connection.sides(way)
        with suppress(OSError):
            while data := await source.reader.read(CHUNK_BYTES):
                await self._pass(connection, way, data, sink)
            if sink.writer.can_write_eof():
                sink.writer.write_eof()

    async def _pass(self, connection: "_Connection", way: Way, data: bytes, sink: "_Side") -> None:
        while isinstance(self._fault, Blackhole) and self._fault.way in (way, "both"):
            await self._changed.wait()
        match self._fault:
            case Latency(ms):
                await asyncio.sleep(ms / 1000)
            case Reset(after) if way == "up" and self._resets_left > 0 and after in data:
                self._resets_left -= 1
                connection.swallows_next = True
            case Swallow(pattern) if way == "down" and pattern in data:
                return
        if way == "down" and connection.swallows_next:
            connection.reset()  # the answer is here, so it was carried out
            return
        await sink.send(data)


@dataclass(eq=False)
class _Side:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        connected = self.writer.get_extra_info("socket")
        with suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.writer.transport.abort()


@dataclass(eq=False)
class _Connection:
    near: _Side  # the client's
    far: _Side  # the server's
    swallows_next: bool = False  # the next answer becomes a reset

    def sides(self, way: Way) -> tuple[_Side, _Side]:
        """Where bytes come from, and where they go."""
        return (self.near, self.far) if way == "up" else (self.far, self.near)

    def reset(self) -> None:
        self.near.reset()
        self.far.reset()

    def close(self) -> None:
        self.near.writer.close()
        self.far.writer.close()


@contextmanager
def proxied(target: int | Path) -> Iterator[FaultProxy]:
    """A proxy before a port or a unix socket of this machine."""
    proxy = FaultProxy(target)
    thread = threading.Thread(target=proxy._loop.run_forever, name=f"proxy-{target}", daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(proxy.start(), proxy._loop).result()
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(proxy.close(), proxy._loop).result()
        proxy._loop.call_soon_threadsafe(proxy._loop.stop)
        thread.join()
        proxy._loop.close()
