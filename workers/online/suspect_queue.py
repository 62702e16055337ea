"""Online requests that were in flight when workers were lost: run one at a time, each alone in the worker,
tenants in turn.
"""

from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

from nightshift.tenants.turns import TurnThreads
from workers.leases.isolation import Isolation

Request = TypeVar("Request", bound=Hashable)


class SuspectQueue(Generic[Request]):
    """Requests that wait for the worker to be empty, with a thread that begins them. Thread-safe."""

    def __init__(
        self,
        isolation: Isolation,
        begin: Callable[[Request], bool],
        is_wanted: Callable[[Request], bool],
    ) -> None:
        """`begin` gets a request that is alone inside, and from then on must let it leave; False: it was not
        begun and is not wanted any more. `is_wanted` is asked while one waits: call `Isolation.recheck` or
        release the isolation when its answer has changed.
        """
        self._isolation = isolation
        self._begin = begin
        self._is_wanted = is_wanted
        self._thread = TurnThreads("suspects", 1)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive

    def stop(self) -> None:
        """Begin no more; those queued must not be wanted any more. Returns at once; a begun one goes on."""
        self._thread.stop()
        self._isolation.recheck()

    def put(self, request: Request, tenant_id: str) -> None:
        self._thread.run(tenant_id, partial(self._run, request))

    def _run(self, request: Request) -> None:
        is_alone = self._isolation.wait_to_enter_alone(request, partial(self._is_unwanted, request))
        if is_alone and self._begin(request):
            return
        if is_alone:
            self._isolation.leave(request)
        self._isolation.release(request)

    def _is_unwanted(self, request: Request) -> bool:
        return not self._is_wanted(request)
