"""Gives the waiting requests of all models of upstreams their places."""

import asyncio
from functools import partial
from typing import Final

from nightshift.jobs.priorities import PriorityClass
from workers.upstreams.running.loop import LoopThread
from workers.upstreams.running.metrics import UpstreamMetrics
from workers.upstreams.running.server import UpstreamServer
from workers.upstreams.running.upstream import RunningUpstream

TICK_S: Final = 0.1  # between two passes while requests wait: an upstream's pause or budget may have ended


class Dispatcher:
    """Gives the waiting requests of all models their places: the most urgent class first."""

    def __init__(self, loop: LoopThread, upstreams: list[RunningUpstream]) -> None:
        self.metrics = UpstreamMetrics(upstreams)
        self._loop = loop
        self.upstreams = upstreams
        self.servers: list[UpstreamServer] = []
        self._is_awake = False  # a pass is due at once …
        self._is_ticking = False  # … or soon

    # -- any thread

    def add(self, server: UpstreamServer) -> None:
        self._loop.call(partial(self.servers.append, server))

    def remove(self, server: UpstreamServer) -> None:
        """Cancels what the server has; the last one ends the thread."""
        self._loop.wait_for(self._remove(server))
        if not self.servers:
            self._loop.stop()

    def wake(self) -> None:
        """Makes a pass, soon. Many calls may lead to one."""
        if not self._is_awake:
            self._is_awake = True
            self._loop.call(self._pass)

    # -- the loop's thread

    async def _remove(self, server: UpstreamServer) -> None:
        server.cancel_all()
        self.servers.remove(server)
        if not self.servers:
            for upstream in [*self.upstreams]:  # addresses come and go meanwhile
                await upstream.connection.close()

    def _pass(self) -> None:
        self._is_awake = False
        for server in self.servers:
            server.begin_pass()
        for priority in PriorityClass:
            for server in self.servers:
                server.send_waiting(priority)
        if self.servers:
            self.servers.append(self.servers.pop(0))  # each model is first in its turn
        if not self._is_ticking and any(server.waiting for server in self.servers):
            self._is_ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._is_ticking = False
        self._pass()
