"""A part that this process has leased: renewed by a thread, trusted on the monotonic clock."""

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from nightshift.errors import DatabaseUnavailable
from nightshift.jobs.part import PartLease
from nightshift.store import Store

log = logging.getLogger(__name__)

TTL_S: Final = 30.0
TRUST_S: Final = 25.0  # after a renewal was sent
RENEWAL_S: Final = 8.0


class PartLost(Exception):
    """Another process may have the part: nothing more may be written of it."""


class HeldPart:
    """A context, in which the lease is renewed."""

    def __init__(
        self,
        store: Store,
        lease: PartLease,
        claimed_at_s: float,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`claimed_at_s`: by the clock, before the claim was sent."""
        self._store = store
        self._lease = lease
        self._clock_s = clock_s
        self._trusted_until_s = claimed_at_s + TRUST_S
        self._is_lost = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="part-lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def check(self) -> None:
        """Raises PartLost."""
        if self._is_lost or self._clock_s() >= self._trusted_until_s:
            raise PartLost

    def renew(self) -> None:
        """One renewal. Raises DatabaseUnavailable."""
        began_s = self._clock_s()
        renewed = self._store.run(lambda tx: tx.parts.renew([self._lease], tx.now(), TTL_S))
        if renewed:
            self._trusted_until_s = began_s + TRUST_S
        else:
            self._is_lost = True

    def _run(self) -> None:
        while not self._is_lost and not self._over.wait(RENEWAL_S):
            try:
                self.renew()
            except DatabaseUnavailable as error:
                log.warning("part not renewed", extra={"action": "part_not_renewed", "reason": error.message})
            except Exception:  # the lease runs out
                log.exception("part not renewed", extra={"action": "part_not_renewed"})
