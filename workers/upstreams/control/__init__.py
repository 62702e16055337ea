"""Which upstream gets the next request, and when. Pure: no clock and no I/O; times are monotonic seconds.

concurrency    how many requests an upstream has at once
budgets        requests and tokens a minute
breaker        whether an upstream that failed is asked again
room           how many places bulk rows have beside interactive requests
places         all of these for one upstream, and the choice among several
"""

from workers.upstreams.control.breaker import Breaker
from workers.upstreams.control.budgets import RateBudget
from workers.upstreams.control.concurrency import ConcurrencyLimit
from workers.upstreams.control.places import UpstreamPlaces, UpstreamTurns
from workers.upstreams.control.room import BulkRoom

__all__ = ["Breaker", "BulkRoom", "ConcurrencyLimit", "RateBudget", "UpstreamPlaces", "UpstreamTurns"]
