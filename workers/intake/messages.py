"""Messages that wait for their claim, and the subscription to bulk tokens."""

import heapq
import itertools
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

ONLINE_RANK: Final = 0
BULK_RANK: Final = 1


class Receipt(Protocol):
    """Called from the intake's thread; returns at once."""

    def acknowledge(self) -> None: ...

    def give_back(self) -> None:
        """Queues it again, for another worker."""


@dataclass(order=True, frozen=True)
class Message:
    """Sorts by kind, then by class, then by arrival."""

    kind_rank: int
    priority: int
    arrival: int
    shard_id: str | None = field(compare=False)  # of an online ring
    receipt: Receipt = field(compare=False)
    traceparent: str | None = field(compare=False, default=None)  # as it says of the span that has sent it


class MessageHeap:
    """Messages that are not acknowledged yet. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heap: list[Message] = []
        self._arrivals = itertools.count()

    def push(
        self,
        kind_rank: int,
        priority: int,
        shard_id: str | None,
        receipt: Receipt,
        traceparent: str | None = None,
    ) -> None:
        with self._lock:
            message = Message(kind_rank, priority, next(self._arrivals), shard_id, receipt, traceparent)
            heapq.heappush(self._heap, message)

    def put_back(self, messages: Iterable[Message]) -> None:
        with self._lock:
            for message in messages:
                heapq.heappush(self._heap, message)

    def has(self, kind_rank: int) -> bool:
        with self._lock:
            return any(message.kind_rank == kind_rank for message in self._heap)

    def pop(self, kind_rank: int, count: int | None = None) -> list[Message]:
        """Takes the best of one kind; without a count, all of them."""
        with self._lock:
            wanted = sorted(message for message in self._heap if message.kind_rank == kind_rank)[:count]
            taken = {message.arrival for message in wanted}
            self._heap = [message for message in self._heap if message.arrival not in taken]
            heapq.heapify(self._heap)
        return wanted


class Subscription(Protocol):
    """A subscription of one connection. Both calls return at once."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class BulkSubscription:
    """Lasts across connections to Redis. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscription: Subscription | None = None
        self._is_wanted = True

    def attach(self, subscription: Subscription) -> None:
        """Called at every connection to Redis."""
        with self._lock:
            self._subscription = subscription
            if not self._is_wanted:
                subscription.pause()

    def want(self, is_wanted: bool) -> None:
        """Resumes or pauses it; ignored before the first connection."""
        with self._lock:
            if self._subscription is None or is_wanted == self._is_wanted:
                return
            self._is_wanted = is_wanted
            self._subscription.resume() if is_wanted else self._subscription.pause()
