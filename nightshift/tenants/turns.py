"""Turns of tenants at what they share: threads, calls, memory.

    Turns            who is next, of those that wait for a place
    TurnThreads      threads that run tasks
    TurnQueue        items for a thread that takes them in batches
    AsyncTurns       places for coroutines

A helper that serves several tenants takes one of these, and so has the same promise: beside any load of
others, a tenant's first item is next, after at most those that are under way.
"""

import asyncio
import heapq
import itertools
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")

Rank = tuple[int, ...]
"""Rank among a tenant's waiting work: the lowest is first."""


class Place:
    """A place, asked for and then held."""

    __slots__ = ("amount", "is_held", "is_left", "on_granted", "tenant")

    def __init__(self, tenant: str, amount: int, on_granted: Callable[["Place"], object]) -> None:
        self.tenant: Final = tenant
        self.amount: Final = amount
        self.on_granted: Final = on_granted
        self.is_held = False
        self.is_left = False


class Turns:
    """Places that tenants share. Thread-safe.

    A free place goes to the tenant that holds least, of equal ones to the one whose last turn was longest
    ago, and there to the lowest rank, then the oldest. What does not fit is waited for, so that small items
    do not pass a large one for ever.
    """

    def __init__(self, places: int, *, per_tenant: int | None = None) -> None:
        """`per_tenant`: as much as one tenant holds; by default all but one, which is left for another."""
        assert places > 0, f"{places} places"
        self._places = places
        self._per_tenant = max(1, places - 1) if per_tenant is None else per_tenant
        self._free = places
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, list[tuple[Rank, int, Place]]] = {}  # a heap for each tenant that waits
        self._last_turn: dict[str, int] = {}  # the last turns of tenants that wait or hold
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._is_closed = False

    def ask(
        self, tenant: str, on_granted: Callable[[Place], object], *, rank: Rank = (), amount: int = 1
    ) -> Place:
        """Asks for a place; `leave` gives it back, or takes the question back.

        `on_granted` is called once the place is held, on this thread or on one that leaves, and must return
        at once. What is more than all places is given all of them, alone.
        """
        place = Place(tenant, min(amount, self._places), on_granted)
        with self._lock:
            heapq.heappush(self._waiting.setdefault(tenant, []), (rank, next(self._numbers), place))
            granted = self._grant()
        _tell(granted)
        return place

    def leave(self, place: Place) -> None:
        """Gives the place back, or takes the question back. May be called again."""
        with self._lock:
            if place.is_left:
                return
            place.is_left = True
            if place.is_held:
                self._free += place.amount
                self._held[place.tenant] -= place.amount
            else:
                self._withdraw(place)
            self._forget(place.tenant)
            granted = self._grant()
        _tell(granted)

    @contextmanager
    def hold(self, tenant: str, *, rank: Rank = (), amount: int = 1) -> Iterator[None]:
        """Waits for a place, on a thread that may wait."""
        granted = threading.Event()
        place = self.ask(tenant, lambda _: granted.set(), rank=rank, amount=amount)
        try:
            granted.wait()
            yield
        finally:
            self.leave(place)

    def close(self) -> None:
        """Grant no more."""
        with self._lock:
            self._is_closed = True

    @property
    def num_waiting(self) -> int:
        with self._lock:
            return sum(map(len, self._waiting.values()))

    # -- under the lock

    def _grant(self) -> list[Place]:
        granted: list[Place] = []
        while not self._is_closed and (place := self._next()) is not None and place.amount <= self._free:
            heap = self._waiting[place.tenant]
            heapq.heappop(heap)
            if not heap:
                del self._waiting[place.tenant]
            place.is_held = True
            self._free -= place.amount
            self._held[place.tenant] += place.amount
            self._last_turn[place.tenant] = next(self._numbers)
            granted.append(place)
        return granted

    def _next(self) -> Place | None:
        firsts = (heap[0][2] for heap in self._waiting.values())
        return min((place for place in firsts if self._may_hold(place)), key=self._turn_of, default=None)

    def _may_hold(self, place: Place) -> bool:
        held = self._held.get(place.tenant, 0)
        return held == 0 or held + place.amount <= self._per_tenant

    def _turn_of(self, place: Place) -> tuple[int, int]:
        return self._held.get(place.tenant, 0), self._last_turn.get(place.tenant, 0)

    def _withdraw(self, place: Place) -> None:
        left = [entry for entry in self._waiting[place.tenant] if entry[2] is not place]
        heapq.heapify(left)
        if left:
            self._waiting[place.tenant] = left
        else:
            del self._waiting[place.tenant]

    def _forget(self, tenant: str) -> None:
        if not self._held.get(tenant):
            self._held.pop(tenant, None)
            if tenant not in self._waiting:
                self._last_turn.pop(tenant, None)


def _tell(granted: list[Place]) -> None:
    for place in granted:
        place.on_granted(place)


class TurnThreads:
    """Daemon threads that run tenants' tasks in turn, from the first task on. A task must not raise."""

    def __init__(self, name: str, threads: int, *, per_tenant: int | None = None) -> None:
        self._turns = Turns(threads, per_tenant=per_tenant)
        self._granted: SimpleQueue[tuple[Place, Callable[[], object]] | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._num_unfinished = 0
        self._is_stopped = False
        self._name, self._num_threads = name, threads
        self._threads: list[threading.Thread] = []

    def run(self, tenant: str, task: Callable[[], object], *, rank: Rank = ()) -> bool:
        """Runs the task on a thread. False: the threads have been stopped, and the task will not run.

        Raises RuntimeError if a thread cannot be started: neither will it then.
        """
        with self._changed:
            if self._is_stopped:
                return False
            self._start_threads()
            self._num_unfinished += 1
        self._turns.ask(tenant, lambda place: self._granted.put((place, task)), rank=rank)
        return True

    def stop(self) -> None:
        """Starts no task any more. The threads are not joined: what is under way may take seconds."""
        with self._changed:
            self._is_stopped = True
        self._turns.close()
        for _ in self._threads:
            self._granted.put(None)

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Waits until no task runs or waits. False: tasks are under way, or wait and will run."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_idle, timeout_s)

    @property
    def _is_idle(self) -> bool:
        return self._num_unfinished == (self._turns.num_waiting if self._is_stopped else 0)

    @property
    def is_alive(self) -> bool:
        """Whether tasks will run."""
        return all(thread.is_alive() for thread in self._threads)

    def _start_threads(self) -> None:
        while (number := len(self._threads)) < self._num_threads:
            thread = threading.Thread(target=self._run, name=f"{self._name}-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _run(self) -> None:
        while (granted := self._granted.get()) is not None:
            place, task = granted
            try:
                task()
            finally:
                self._turns.leave(place)
                with self._changed:
                    self._num_unfinished -= 1
                    self._changed.notify_all()


class TurnQueue(Generic[Item]):
    """Items for one thread, which takes one of each tenant in turn, and a tenant's in their order.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Item]] = {}  # the tenant that is next first
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, tenant: str, item: Item) -> None:
        with self._changed:
            if not self._waiting:
                self._changed.notify()
            self._waiting.setdefault(tenant, deque()).append(item)

    def close(self) -> None:
        """Ends the queue after what is there."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def take(self, limit: int) -> list[Item]:
        """Waits for items. Empty: the queue is closed, and has none."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            taken: list[Item] = []
            while self._waiting and len(taken) < limit:
                tenant = next(iter(self._waiting))
                items = self._waiting.pop(tenant)
                taken.append(items.popleft())
                if items:
                    self._waiting[tenant] = items  # behind the others
            return taken


class AsyncTurns:
    """Places for coroutines of one event loop."""

    def __init__(self, places: int, *, per_tenant: int | None = None) -> None:
        self._turns = Turns(places, per_tenant=per_tenant)

    @asynccontextmanager
    async def hold(self, tenant: str) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        granted = loop.create_future()

        def tell() -> None:
            if not granted.done():  # else its coroutine is cancelled
                granted.set_result(None)

        place = self._turns.ask(tenant, lambda _: loop.call_soon_threadsafe(tell))
        try:
            if not place.is_held:
                await granted
            yield
        finally:
            self._turns.leave(place)
