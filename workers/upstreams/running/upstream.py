"""One upstream at run time: its connection, how much it takes, and its figures. On the loop's thread."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from nightshift.jobs import Usage
from nightshift.process.upstreams import Upstream
from nightshift_engine import Histogram
from workers.online.times import FIRST_TOKEN_BUCKETS_S
from workers.upstreams.connection import Connection
from workers.upstreams.control import Breaker, ConcurrencyLimit, RateBudget, UpstreamPlaces
from workers.upstreams.faults import Overloaded, RowRefused, TimedOut, UpstreamFault
from workers.upstreams.running.waiting import Pending


@dataclass
class UpstreamCounts:
    """Counters since the start, for metrics."""

    rows: int = 0  # requests that ended with an answer
    prompt_tokens: int = 0
    completion_tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)  # by kind
    first_token_s: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_BUCKETS_S))


Outcome = Usage | UpstreamFault | RowRefused | asyncio.CancelledError
"""A request's end: with an answer that used so much, or the reason why not."""


class RunningUpstream:
    """An upstream that requests are sent to."""

    def __init__(self, config: Upstream, connection: Connection) -> None:
        self.config = config
        self.connection = connection
        self.places = UpstreamPlaces(
            ConcurrencyLimit(most=config.max_concurrency),
            RateBudget(config.requests_per_minute, config.tokens_per_minute),
        )
        self.breakers: list[Breaker] = []  # one for each of its models that is served
        self.counts = UpstreamCounts()
        connection.on_headers = self._told

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def is_away(self) -> bool:
        """Whether a model there failed again and again, and is left alone but for trials."""
        return any(breaker.is_open for breaker in self.breakers)

    @property
    def cost(self) -> float:
        """The price of the tokens counted."""
        read = self.counts.prompt_tokens * self.config.price_per_million_input_tokens
        return (read + self.counts.completion_tokens * self.config.price_per_million_output_tokens) / 1e6

    def ended(self, pending: Pending, outcome: Outcome) -> None:
        """Notes how a request ended."""
        now_s = time.monotonic()
        places, limit, expected = self.places, self.places.limit, pending.tokens_expected
        places.bulk_in_flight -= pending.is_bulk
        if not isinstance(outcome, Usage | RowRefused):
            self.counts.errors[type(outcome).__name__] += 1
        match outcome:
            case Usage():
                limit.on_done(now_s, pending.sent_s, outcome.completion_tokens or outcome.prompt_tokens)
                places.budget.settle(pending.sent_s, expected, outcome.total_tokens or expected)
                self.counts.rows += 1
                self.counts.prompt_tokens += outcome.prompt_tokens
                self.counts.completion_tokens += outcome.completion_tokens
            case Overloaded(retry_after_s=retry_after_s):
                limit.on_overload(now_s, retry_after_s)
            case TimedOut():
                limit.on_timeout(now_s, pending.sent_s)
            case _:
                limit.on_lost()
        if isinstance(outcome, Overloaded | RowRefused):  # others may have used what they were to
            places.budget.settle(pending.sent_s, expected, 0)

    def first_token(self, pending: Pending, now_s: float) -> None:
        """A client's first token has come."""
        self.places.room.on_first_token(now_s, now_s - pending.sent_s)
        self.counts.first_token_s.observe(now_s - pending.sent_s)

    def _told(self, headers: Mapping[str, str]) -> None:
        self.places.budget.on_headers(time.monotonic(), headers)
