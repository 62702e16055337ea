"""The API as clients meet it: uvicorn on a free port, in a thread of the test's process."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.middleware.connections import BoundedHttp

HOST = "127.0.0.1"
START_TIMEOUT_S = 30.0
GRACE_S = 2.0  # for answers that are under way at the end
STOP_TIMEOUT_S = 10.0


class _Server(uvicorn.Server):
    """Says when it listens, and stops when it is told rather than when it next looks."""

    def __init__(self, app: ASGIApp, http: type[H11Protocol]) -> None:
        super().__init__(uvicorn.Config(app, http=http, log_config=None, lifespan="on", access_log=False))
        self.listens = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._loop, self._ends = asyncio.get_running_loop(), asyncio.Event()
        self.listens.set()

    async def main_loop(self) -> None:
        await self._ends.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, whose every wait takes a tenth of a second or more."""
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if self.server_state.tasks:
            _, late = await asyncio.wait(self.server_state.tasks, timeout=GRACE_S)
            for task in late:
                task.cancel()
        await self.lifespan.shutdown()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)


@contextmanager
def serving(app: ASGIApp, http: type[H11Protocol] = BoundedHttp) -> Iterator[str]:
    """Runs the application; yields its base URL, without a path."""
    with socket.create_server((HOST, 0)) as listener:
        server = _Server(app, http)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="api")
        thread.start()
        try:
            assert server.listens.wait(START_TIMEOUT_S), "the API did not start"
            yield f"http://{HOST}:{listener.getsockname()[1]}"
        finally:
            server.stop()
            thread.join(STOP_TIMEOUT_S)
