"""The place that the next request gets: at which upstream of its model, and from when on."""

import math
from collections.abc import Sequence

from workers.upstreams.control.breaker import Breaker
from workers.upstreams.control.budgets import RateBudget
from workers.upstreams.control.concurrency import ConcurrencyLimit
from workers.upstreams.control.room import BulkRoom


class UpstreamPlaces:
    """Everything that decides whether one upstream may be sent a request."""

    def __init__(self, name: str, limit: ConcurrencyLimit, budget: RateBudget, breaker: Breaker) -> None:
        self.name = name
        self.limit = limit
        self.budget = budget
        self.breaker = breaker
        self.room = BulkRoom()
        self.bulk_in_flight = 0

    def wait_s(self, now_s: float, *, is_interactive: bool) -> float:
        """Seconds until a request may be sent, 0: now; infinite where only the end of another makes room."""
        free: float = self.limit.limit - self.limit.in_flight
        if not is_interactive and self.limit.in_flight > 0:
            bulk_places = self.room.places(now_s, self.limit.limit)
            free = min(free - (bulk_places < math.inf), bulk_places - self.bulk_in_flight)
        paused_s = max(0.0, self.limit.paused_until_s - now_s)
        return max(paused_s, self.budget.wait_s(now_s), self.breaker.wait_s(now_s)) if free > 0 else math.inf

    def on_sent(self, now_s: float, tokens: int, *, is_interactive: bool) -> None:
        """`tokens`: those that the request will about read and make."""
        self.limit.on_sent()
        self.budget.spend(now_s, tokens)
        self.breaker.on_sent(now_s)
        self.bulk_in_flight += not is_interactive
        if is_interactive:
            self.room.on_sent(now_s)

    def on_ended(self, *, is_interactive: bool) -> None:
        """A request's end, beside what `limit` is told of it."""
        self.bulk_in_flight -= not is_interactive


class UpstreamTurns:
    """The choice among a model's upstreams: requests in proportion to their paces.

    By start-time fair queueing (Goyal, Vin and Cheng, 1996), a request takes 1 / pace of an upstream's
    virtual time, and the next goes to the lowest. What could not be chosen for a while catches nothing up.
    """

    def __init__(self) -> None:
        self._virtual = 0.0
        self._next: dict[str, float] = {}  # virtual times by upstream

    def choose(
        self, upstreams: Sequence[UpstreamPlaces], now_s: float, *, is_interactive: bool
    ) -> UpstreamPlaces | None:
        """The upstream that gets the next request, or None where none may be sent one now."""
        ready = (place for place in upstreams if place.wait_s(now_s, is_interactive=is_interactive) <= 0)
        chosen = min(ready, key=self._start, default=None)
        if chosen is None:
            return None
        self._virtual = self._start(chosen)
        # One that was not measured yet is taken for the fastest, and so measured soon.
        pace = chosen.limit.pace or max(place.limit.pace or 1.0 for place in upstreams)
        self._next[chosen.name] = self._virtual + 1 / pace
        return chosen

    def _start(self, upstream: UpstreamPlaces) -> float:
        return max(self._virtual, self._next.get(upstream.name, 0.0))
