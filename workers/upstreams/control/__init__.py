"""The number of requests that an upstream gets, and when. Pure: times are monotonic seconds."""

from workers.upstreams.control.breaker import Breaker
from workers.upstreams.control.budgets import RateBudget
from workers.upstreams.control.concurrency import ConcurrencyLimit
from workers.upstreams.control.places import UpstreamPlaces
from workers.upstreams.control.room import BulkRoom

__all__ = ["Breaker", "BulkRoom", "ConcurrencyLimit", "RateBudget", "UpstreamPlaces"]
