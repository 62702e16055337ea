"""A model at one of the upstreams that have it: whether it can be used there. On the loop's thread."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

from nightshift.jobs import Usage
from workers.upstreams.control import Breaker
from workers.upstreams.faults import KeyRefused, Overloaded, RowRefused, UpstreamFault
from workers.upstreams.probe import Probe
from workers.upstreams.running.upstream import Outcome, RunningUpstream
from workers.upstreams.running.waiting import Pending
from workers.upstreams.served import ServedModel


@dataclass(eq=False)
class Place:
    """A model at one upstream."""

    upstream: RunningUpstream
    model: ServedModel
    breaker: Breaker = field(default_factory=Breaker)
    trouble: tuple[datetime, str] | None = None  # the last fault, and since when it has not answered

    def __post_init__(self) -> None:
        self.upstream.breakers.append(self.breaker)

    def may_get(self, now_s: float, *, is_interactive: bool) -> bool:
        """Whether a request may be sent now."""
        is_due = self.breaker.wait_s(now_s) == 0
        return is_due and self.upstream.places.wait_s(now_s, is_interactive=is_interactive) == 0

    async def check_same(self) -> None:
        """Raises UpstreamChanged, or an UpstreamFault."""
        await Probe(self.upstream.config, self.upstream.connection).check_same(self.model)

    def sent(self, pending: Pending) -> None:
        is_interactive = not pending.is_bulk
        self.upstream.places.on_sent(pending.sent_s, pending.tokens_expected, is_interactive=is_interactive)
        self.breaker.on_sent(pending.sent_s)

    def ended(self, pending: Pending, outcome: Outcome) -> None:
        """Notes how a request ended."""
        self.upstream.ended(pending, outcome)
        if isinstance(outcome, Usage | RowRefused):
            self.trouble = None
            self.breaker.on_success()
        elif isinstance(outcome, UpstreamFault):
            since = datetime.now(UTC) if self.trouble is None else self.trouble[0]
            self.trouble = (since, outcome.reason)
            if isinstance(outcome, KeyRefused):
                self.breaker.on_key_refused()
            elif not isinstance(outcome, Overloaded) or not self.upstream.places.limit.in_flight:
                self.breaker.on_fault(time.monotonic())
