"""Online requests that workers died with: one after the other, each with the worker to itself."""

import threading
from collections.abc import Callable, Hashable
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar

from workers.suspicion import Isolation

Request = TypeVar("Request", bound=Hashable)


class OneByOne(Generic[Request]):
    """A line of requests before a worker that must be empty first. For any thread."""

    def __init__(
        self,
        isolation: Isolation,
        begin: Callable[[Request], None],
        give_back: Callable[[Request], None],
    ) -> None:
        """`begin` is called with a request that is alone inside, `give_back` if its turn never came."""
        self._isolation = isolation
        self._begin = begin
        self._give_back = give_back
        self._lock = threading.Lock()
        self._waiting: set[Request] = set()
        self._line: SimpleQueue[Request | None] = SimpleQueue()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="one-by-one", daemon=True)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs that lets them in."""
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Give back whoever still waits."""
        self._is_stopping = True
        self._line.put(None)
        self._isolation.notice()
        if self._thread.is_alive():
            self._thread.join()

    def put(self, request: Request) -> None:
        with self._lock:
            self._waiting.add(request)
        self._line.put(request)

    def withdraw(self, request: Request) -> bool:
        """It is not to begin any more. False: it does not wait."""
        with self._lock:
            waited = request in self._waiting
            self._waiting.discard(request)
        self._isolation.notice()
        return waited

    def _run(self) -> None:
        while (request := self._line.get()) is not None:
            is_alone = self._isolation.wait_to_enter_alone(request, partial(self._is_over, request))
            waited = self.withdraw(request)
            if is_alone and waited:
                self._begin(request)
                continue
            if is_alone:
                self._isolation.leave(request)
            self._isolation.give_up(request)
            if waited:
                self._give_back(request)

    def _is_over(self, request: Request) -> bool:
        return self._is_stopping or request not in self._waiting
