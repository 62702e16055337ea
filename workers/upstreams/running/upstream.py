"""One upstream at run time: its connection, how much it takes, and its last fault. On the loop's thread."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime

from nightshift.jobs import Usage
from nightshift.process.upstreams import Upstream
from nightshift_engine import Histogram
from workers.online.times import FIRST_TOKEN_BUCKETS_S
from workers.upstreams.connection import Connection
from workers.upstreams.control.breaker import Breaker
from workers.upstreams.control.budgets import RateBudget
from workers.upstreams.control.concurrency import ConcurrencyLimit
from workers.upstreams.control.places import UpstreamPlaces
from workers.upstreams.faults import (
    KeyRefused,
    Overloaded,
    RowFailed,
    RowRefused,
    TimedOut,
    Unavailable,
    UpstreamFault,
)


@dataclass(frozen=True)
class Trouble:
    """The fault that an upstream has had since it last answered."""

    reason: str  # completes "the upstream …"; no name or address of ours
    since: datetime

    def __str__(self) -> str:
        return f"{self.reason} since {self.since:%H:%M} UTC"


@dataclass
class UpstreamCounts:
    """Counters since the start, for metrics."""

    rows: int = 0  # requests that ended with an answer
    prompt_tokens: int = 0
    completion_tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)  # by kind
    cost: float = 0.0
    first_token_s: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_BUCKETS_S))


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that an upstream has."""

    at_s: float  # monotonic
    tokens_expected: int
    is_bulk: bool


Outcome = Usage | UpstreamFault | RowFailed | RowRefused | asyncio.CancelledError
"""A request's end: with an answer that used so much, or the reason why not."""


class RunningUpstream:
    """An upstream that requests are sent to."""

    def __init__(self, config: Upstream, connection: Connection, worker_id: str = "") -> None:
        """`worker_id`: so that workers do not try it again all at once."""
        self.config = config
        self.connection = connection
        self.places = UpstreamPlaces(
            config.name,
            ConcurrencyLimit(most=config.max_concurrency),
            RateBudget(config.requests_per_minute, config.tokens_per_minute),
            Breaker(f"{worker_id}/{config.name}"),
        )
        self.trouble: Trouble | None = None
        self.counts = UpstreamCounts()

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def is_open(self) -> bool:
        """Whether it failed again and again, and is left alone but for trials."""
        return self.places.breaker.opened_s is not None

    def may_be_tried(self, now_s: float) -> bool:
        """Whether requests may be sent to it, now or after a pause that it named."""
        return self.places.breaker.wait_s(now_s) == 0

    def sent(self, request: Sent) -> None:
        self.places.on_sent(request.at_s, request.tokens_expected, is_interactive=not request.is_bulk)

    def ended(self, request: Sent, outcome: Outcome) -> None:
        """Notes how a request ended."""
        now_s = time.monotonic()
        places, limit = self.places, self.places.limit
        places.on_ended(is_interactive=not request.is_bulk)
        if not isinstance(outcome, Usage | RowRefused):
            self.counts.errors[type(outcome).__name__] += 1
        match outcome:
            case Usage():
                self._answered(request, outcome, now_s)
            case Overloaded(retry_after_s=retry_after_s):
                limit.on_overload(now_s, retry_after_s)
            case TimedOut():
                limit.on_timeout(now_s, request.at_s)
            case _:
                limit.on_lost()
        match outcome:
            case Usage() | RowRefused():
                self.trouble = None
                places.breaker.on_success()
            case UpstreamFault():
                since = datetime.now(UTC) if self.trouble is None else self.trouble.since
                self.trouble = Trouble(outcome.reason, since)
                if isinstance(outcome, KeyRefused):
                    places.breaker.on_key_refused(now_s)
                elif isinstance(outcome, Unavailable):
                    places.breaker.on_fault(now_s)

    def first_token(self, request: Sent, now_s: float) -> None:
        """A client's first token has come."""
        self.places.room.on_first_token(now_s, now_s - request.at_s)
        self.counts.first_token_s.observe(now_s - request.at_s)

    def _answered(self, request: Sent, usage: Usage, now_s: float) -> None:
        places, counts, prices = self.places, self.counts, self.config
        places.limit.on_done(now_s, request.at_s, usage.completion_tokens or usage.prompt_tokens)
        places.budget.settle(request.at_s, request.tokens_expected, usage.total_tokens)
        counts.rows += 1
        counts.prompt_tokens += usage.prompt_tokens
        counts.completion_tokens += usage.completion_tokens
        counts.cost += (
            usage.prompt_tokens * prices.price_per_million_input_tokens
            + usage.completion_tokens * prices.price_per_million_output_tokens
        ) / 1e6
