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
        timed_s = max(
            self.limit.paused_until_s - now_s, self.budget.wait_s(now_s), self.breaker.wait_s(now_s), 0.0
        )
        return timed_s if self._has_room(now_s, is_interactive=is_interactive) else math.inf

    def on_sent(self, now_s: float, tokens: int, *, is_interactive: bool) -> None:
        """`tokens`: those that the request will about read and make."""
        self.limit.on_sent()
        self.budget.spend(now_s, tokens)
        self.breaker.on_sent(now_s)
        if is_interactive:
            self.room.on_sent(now_s)
        else:
            self.bulk_in_flight += 1

    def on_ended(self, *, is_interactive: bool) -> None:
        """A request's end, beside what `limit` is told of it."""
        self.bulk_in_flight -= not is_interactive

    def _has_room(self, now_s: float, *, is_interactive: bool) -> bool:
        places = self.limit.limit - self.limit.in_flight
        if is_interactive or self.limit.in_flight == 0:
            return places > 0
        bulk_places = self.room.places(now_s, self.limit.limit)
        return places > (bulk_places < math.inf) and self.bulk_in_flight < bulk_places


class UpstreamTurns:
    """The choice among a model's upstreams: requests in proportion to their paces.

    By start-time fair queueing (Goyal, Vin and Cheng, 1996): a request takes 1 / pace of an upstream's virtual time,
    and the next goes to the one whose virtual time is lowest. An upstream that could not be chosen for a while catches
    nothing up.
    """

    def __init__(self) -> None:
        self._virtual = 0.0
        self._next: dict[str, float] = {}  # virtual times by upstream

    def choose(
        self, upstreams: Sequence[UpstreamPlaces], now_s: float, *, is_interactive: bool
    ) -> UpstreamPlaces | None:
        """The upstream that gets the next request, or None where none may be sent one now."""
        ready = [place for place in upstreams if place.wait_s(now_s, is_interactive=is_interactive) <= 0]
        if not ready:
            return None
        chosen = min(ready, key=self._start)
        self._virtual = self._start(chosen)
        # One that was not measured yet is taken for the fastest, and so measured soon.
        paces = [place.limit.pace for place in upstreams]
        pace = chosen.limit.pace or max((pace for pace in paces if pace), default=1.0)
        self._next[chosen.name] = self._virtual + 1 / pace
        return chosen

    def _start(self, upstream: UpstreamPlaces) -> float:
        return max(self._virtual, self._next.get(upstream.name, 0.0))
