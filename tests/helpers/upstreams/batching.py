"""A model of continuous batching: a request waits for a slot; a step makes a token for each that has one."""

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

from tests.helpers.upstreams.settings import Settings


class Full(Exception):
    """Too many requests wait for a slot."""


@dataclass(order=True)
class Sequence:
    """A request, or a choice of it: earlier where `priority` is lower, then by arrival."""

    priority: int
    number: int
    total: int = field(compare=False)  # tokens that it will have
    made: int = field(default=0, compare=False)
    wanted: int = field(default=0, compare=False)  # tokens at which `changed` is set
    changed: asyncio.Event = field(default_factory=asyncio.Event, compare=False)
    is_gone: bool = field(default=False, compare=False)

    async def reaches(self, wanted: int) -> None:
        """Waits until so many tokens are made."""
        if self.made < wanted:
            self.changed.clear()
            self.wanted = wanted
            await self.changed.wait()


class Batch:
    """The slots of an engine. Used on one event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._numbers = count()
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._stepping: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def sequence(self, total: int, priority: int) -> AsyncIterator[Sequence]:
        """A place in the batch for as long as the context is open. Raises Full."""
        sequence = Sequence(priority, next(self._numbers), total)
        settings = self.settings
        if not total or not settings.step_s + settings.slot_s + settings.prefill_s:
            sequence.made = total
            yield sequence
            return
        if settings.waiting_max is not None:
            num_here = sum(not one.is_gone for one in (*self._running, *self._waiting))
            if num_here >= settings.slots + settings.waiting_max:
                raise Full
        heapq.heappush(self._waiting, sequence)
        if self._stepping is None:
            self._stepping = asyncio.create_task(self._step())
        try:
            yield sequence
        finally:
            sequence.is_gone = True

    async def _step(self) -> None:
        """Steps while there is work. Steps that a busy machine missed are made up for."""
        loop, settings = asyncio.get_running_loop(), self.settings
        ends_s = loop.time()
        while True:
            self._running = [one for one in self._running if not one.is_gone and one.made < one.total]
            num_kept = len(self._running)
            while self._waiting and len(self._running) < settings.slots:
                if not (first := heapq.heappop(self._waiting)).is_gone:
                    self._running.append(first)
            if not self._running:
                self._stepping = None
                return
            num_new = len(self._running) - num_kept
            ends_s += settings.step_s + settings.slot_s * len(self._running) + settings.prefill_s * num_new
            await asyncio.sleep(max(0.0, ends_s - loop.time()))
            for sequence in self._running:
                sequence.made += 1
                if sequence.made >= sequence.wanted:
                    sequence.changed.set()
