"""An upstream's places: whether it may be sent a request, and from when on."""

import math
from typing import Final

from workers.upstreams.control.budgets import RateBudget
from workers.upstreams.control.concurrency import ConcurrencyLimit
from workers.upstreams.control.room import BulkRoom

NOT_MEASURED: Final = 1e12  # tokens a second: taken for the fastest, an upstream is soon measured


class UpstreamPlaces:
    """The limits of one upstream together, for all models that it has."""

    def __init__(self, limit: ConcurrencyLimit, budget: RateBudget) -> None:
        self.limit = limit
        self.budget = budget
        self.room = BulkRoom()
        self.bulk_in_flight = 0

    def wait_s(self, now_s: float, *, is_interactive: bool) -> float:
        """Seconds until a request may be sent, 0: now; infinite where only the end of another makes room."""
        free: float = self.limit.limit - self.limit.in_flight
        if not is_interactive and self.limit.in_flight > 0:
            bulk_places = self.room.places(now_s, self.limit.limit)
            free = min(free - (bulk_places < math.inf), bulk_places - self.bulk_in_flight)
        paused_s = max(0.0, self.limit.paused_until_s - now_s)
        return max(paused_s, self.budget.wait_s(now_s)) if free > 0 else math.inf

    @property
    def load(self) -> float:
        """Requests in flight and the next one for its pace: of a model's upstreams, the least loaded gets the
        next request, and so each its share.
        """
        return (self.limit.in_flight + 1) / (self.limit.pace or NOT_MEASURED)

    def on_sent(self, now_s: float, tokens: int, *, is_interactive: bool) -> None:
        """`tokens`: those that the request will about read and make."""
        self.limit.on_sent()
        self.budget.spend(now_s, tokens)
        self.bulk_in_flight += not is_interactive
        if is_interactive:
            self.room.last_sent_s = now_s
