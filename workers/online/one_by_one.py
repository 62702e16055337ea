"""Online requests that workers died with: one after the other, each with the worker to itself."""

import threading
from collections.abc import Callable, Hashable
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar

from workers.shard.suspicion import Isolation

Request = TypeVar("Request", bound=Hashable)


class OneByOne(Generic[Request]):
    """A line of requests before a worker that must be empty first. For any thread."""

    def __init__(
        self,
        isolation: Isolation,
        begin: Callable[[Request], bool],
        is_wanted: Callable[[Request], bool],
    ) -> None:
        """`begin` is called with a request that is alone inside, and from then on sees to its leaving; False:
        it does not, the request is not wanted any more. `is_wanted` says so of one that waits; call
        `Isolation.notice`, or give its right up, when that has changed.
        """
        self._isolation = isolation
        self._begin = begin
        self._is_wanted = is_wanted
        self._line: SimpleQueue[Request | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="one-by-one", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs that lets them in."""
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End: who is in the line is not wanted any more. Returns at once; one that has begun goes on."""
        self._line.put(None)
        self._isolation.notice()

    def put(self, request: Request) -> None:
        self._line.put(request)

    def _run(self) -> None:
        while (request := self._line.get()) is not None:
            is_alone = self._isolation.wait_to_enter_alone(request, partial(self._is_gone, request))
            if is_alone and self._begin(request):
                continue
            if is_alone:
                self._isolation.leave(request)
            self._isolation.give_up(request)

    def _is_gone(self, request: Request) -> bool:
        return not self._is_wanted(request)
