"""Tells which webhook destinations answer: how many attempts one may have, and when it gets none.

A destination has one slot until it has answered. After several failures in a row its circuit opens: nothing
is sent until the cool-down is over, then one attempt decides whether it closes. The cool-down doubles with
each failure. Not stored, so a new scheduler knows no destination. Pure.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple


class WebhookDestination(NamedTuple):
    tenant_id: str
    url: str


@dataclass(frozen=True)
class CircuitConfig:
    failures_max: int = 5  # in a row; then the circuit opens
    cool_down_s: float = 5.0  # the first one
    cool_down_max_s: float = 300.0  # after a repair, an event waits this long at most
    destinations_max: int = 10_000  # remembered; beyond it, the longest unused one counts as new

    def cool_down(self, failures: int) -> timedelta:
        """The time for which nothing is sent after this many failures in a row; zero while the circuit is
        closed.
        """
        beyond = failures - self.failures_max
        if beyond < 0:
            return timedelta(0)
        return timedelta(seconds=min(self.cool_down_s * 2 ** min(beyond, 32), self.cool_down_max_s))


@dataclass(frozen=True)
class _Circuit:
    failures: int = 0  # in a row
    open_until: datetime | None = None


class Circuits:
    """The circuits of destinations. Not thread-safe."""

    def __init__(self, config: CircuitConfig) -> None:
        self._config = config
        self._known: OrderedDict[WebhookDestination, _Circuit] = OrderedDict()

    def answers(self, destination: WebhookDestination) -> bool:
        """Whether its last attempt was answered. False for a new one."""
        known = self._known.get(destination)
        return known is not None and known.failures == 0

    def open_until(self, destination: WebhookDestination, now: datetime) -> datetime | None:
        """The time when the destination may be tried again; None: now."""
        known = self._known.get(destination)
        if known is None or known.open_until is None or known.open_until <= now:
            return None
        return known.open_until

    def record(self, destination: WebhookDestination, now: datetime, *, answered: bool) -> None:
        """Takes note of an attempt that has ended."""
        known = self._known.pop(destination, _Circuit())
        if answered:
            known = _Circuit()
        else:
            failures = known.failures + 1
            cool_down = self._config.cool_down(failures)
            known = replace(known, failures=failures, open_until=now + cool_down if cool_down else None)
        self._known[destination] = known
        if len(self._known) > self._config.destinations_max:
            self._known.popitem(last=False)
