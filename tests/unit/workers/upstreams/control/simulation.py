"""A discrete-event simulation of upstreams: continuous batching, queues, refusals, storms, limits a minute.

The same seed gives the same run.
"""

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from workers.upstreams.control import Breaker, ConcurrencyLimit, RateBudget, UpstreamPlaces

PREFILL_STEPS = 5
NETWORK_S = 0.005
REFUSED_S = 0.01


@dataclass(eq=False)
class Request:
    tokens: int
    is_interactive: bool
    waiting_since_s: float
    sent_s: float = 0.0
    first_token_s: float | None = None


@dataclass(frozen=True)
class Storm:
    """A time in which every request is refused."""

    start_s: float
    end_s: float
    retry_after_s: float | None = None


class Server:
    """`slots` requests run at once. Each gets a token a step, and a step takes `step_s(batch)`. Others
    queue, or are refused above `accepted_max`.
    """

    def __init__(
        self,
        slots: int,
        step_s: Callable[[int], float] = lambda batch: 0.01,
        *,
        accepted_max: float = math.inf,
        storms: Sequence[Storm] = (),
        requests_per_minute: int | None = None,
        sends_headers: bool = False,
    ) -> None:
        self.slots = slots
        self.step_s = step_s
        self.accepted_max = accepted_max
        self.storms = storms
        self.sends_headers = sends_headers
        self.most_held = self.refused = 0
        self._per_minute = requests_per_minute
        self._allowance = float(requests_per_minute or 0)
        self._queue: deque[Request] = deque()
        self._milestones: list[tuple[float, int, bool, Request]] = []  # (steps, number, is the end, request)
        self._numbers = itertools.count()
        self._batch = 0
        self._steps = 0.0
        self._now_s = 0.0

    @property
    def held(self) -> int:
        return self._batch + len(self._queue)

    def advance(self, now_s: float) -> None:
        if self._batch:
            self._steps += (now_s - self._now_s) / self.step_s(self._batch)
        if self._per_minute:
            refilled = self._allowance + (now_s - self._now_s) * self._per_minute / 60
            self._allowance = min(refilled, self._per_minute)
        self._now_s = now_s

    def next_event_s(self) -> float:
        if not self._milestones:
            return math.inf
        return self._now_s + max(0.0, self._milestones[0][0] - self._steps) * self.step_s(self._batch)

    def offer(self, request: Request) -> float | None:
        """Takes the request, or returns the Retry-After of its refusal: 0 where there is none."""
        for storm in self.storms:
            if storm.start_s <= self._now_s < storm.end_s:
                return storm.retry_after_s or 0.0
        if self.held >= self.accepted_max:
            return 0.0
        if self._per_minute:
            if self._allowance < 1:
                return 60 / self._per_minute
            self._allowance -= 1
        self._queue.append(request)
        self.most_held = max(self.most_held, self.held)
        self._admit()
        return None

    def take_event(self) -> tuple[bool, Request]:
        """The request at its milestone, and whether it is its end."""
        steps, _, is_end, request = heapq.heappop(self._milestones)
        self._steps = max(self._steps, steps)
        if is_end:
            self._batch -= 1
            self._admit()
        return is_end, request

    def headers(self) -> dict[str, str]:
        if not self.sends_headers or self._per_minute is None:
            return {}
        reset_s = (self._per_minute - self._allowance) * 60 / self._per_minute
        return {
            "x-ratelimit-remaining-requests": str(int(self._allowance)),
            "x-ratelimit-reset-requests": f"{reset_s:.3f}s",
        }

    def _admit(self) -> None:
        while self._queue and self._batch < self.slots:
            request = self._queue.popleft()
            self._batch += 1
            for steps, is_end in ((PREFILL_STEPS, False), (PREFILL_STEPS + request.tokens, True)):
                heapq.heappush(self._milestones, (self._steps + steps, next(self._numbers), is_end, request))


class FixedLimit(ConcurrencyLimit):
    """A limit that an operator found by hand."""

    def on_done(self, now_s: float, sent_s: float, tokens: int) -> None:
        self.in_flight -= 1

    def on_overload(self, now_s: float, retry_after_s: float | None = None) -> None:
        self.in_flight -= 1
        self.paused_until_s = now_s + (retry_after_s or 0.1)


@dataclass
class Simulation:
    servers: Sequence[Server]
    fixed: int | None = None  # concurrency
    budget: RateBudget | None = None
    interactive_every_s: float = math.inf
    has_bulk: bool = True
    seed: int = 0
    lengths: Callable[[random.Random], int] = lambda rng: rng.randint(20, 180)
    now_s: float = 0.0
    done: list[tuple[float, int, Request]] = field(default_factory=list)  # (time, server, request)
    limits: list[tuple[float, int]] = field(default_factory=list)  # of the first upstream, by time

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        limit = ConcurrencyLimit if self.fixed is None else lambda: FixedLimit(self.fixed, self.fixed)
        self.upstreams = [UpstreamPlaces(limit(), self.budget or RateBudget()) for _ in self.servers]
        self.breakers = [Breaker() for _ in self.servers]
        self._waiting: deque[Request] = deque()  # interactive ones
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._wake_s = math.inf
        if self.interactive_every_s < math.inf:
            self._at(self.interactive_every_s, self._arrive)

    def run(self, until_s: float) -> "Simulation":
        self._send_all()
        while True:
            event_s = self._events[0][0] if self._events else math.inf
            server_s, index = min((server.next_event_s(), index) for index, server in enumerate(self.servers))
            if min(event_s, server_s) > until_s:
                return self
            if event_s <= server_s:
                self.now_s, _, callback = heapq.heappop(self._events)
                callback()
            else:
                self.now_s = server_s
                self.servers[index].advance(server_s)
                is_end, request = self.servers[index].take_event()
                (self._end if is_end else self._first_token)(index, request)
            self._send_all()

    def tokens_per_s(self, start_s: float, end_s: float, server: int | None = None) -> float:
        tokens = sum(
            request.tokens
            for time_s, index, request in self.done
            if start_s <= time_s < end_s and server in (None, index)
        )
        return tokens / (end_s - start_s)

    def requests_per_s(self, start_s: float, end_s: float) -> float:
        return sum(start_s <= time_s < end_s for time_s, _, _ in self.done) / (end_s - start_s)

    def first_token_s(self, start_s: float) -> list[float]:
        """Sorted times to the first token of interactive requests since."""
        return sorted(
            request.first_token_s
            for time_s, _, request in self.done
            if request.is_interactive and time_s >= start_s and request.first_token_s is not None
        )

    def _at(self, time_s: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._numbers), callback))

    def _arrive(self) -> None:
        self._waiting.append(Request(50, True, self.now_s))
        self._at(self.now_s + self.rng.expovariate(1 / self.interactive_every_s), self._arrive)

    def _send_all(self) -> None:
        while self._waiting and self._send(self._waiting[0]):
            self._waiting.popleft()
        while self.has_bulk and not self._waiting and self._send(None):
            pass
        self.limits.append((self.now_s, self.upstreams[0].limit.limit))
        wait_s = min(self._waits_s(is_interactive=bool(self._waiting)))
        if (self.has_bulk or self._waiting) and 0 < wait_s < math.inf and self.now_s + wait_s < self._wake_s:
            self._wake_s = self.now_s + wait_s
            self._at(self._wake_s, self._wake)

    def _waits_s(self, *, is_interactive: bool) -> list[float]:
        return [
            max(breaker.wait_s(self.now_s), upstream.wait_s(self.now_s, is_interactive=is_interactive))
            for breaker, upstream in zip(self.breakers, self.upstreams, strict=True)
        ]

    def _wake(self) -> None:
        self._wake_s = math.inf

    def _send(self, interactive: Request | None) -> bool:
        waits_s = self._waits_s(is_interactive=interactive is not None)
        ready = [index for index, wait_s in enumerate(waits_s) if wait_s == 0]
        if not ready:
            return False
        index = min(ready, key=lambda index: self.upstreams[index].load)
        chosen = self.upstreams[index]
        request = interactive or Request(self.lengths(self.rng), False, self.now_s)
        request.sent_s = self.now_s
        chosen.on_sent(self.now_s, request.tokens, is_interactive=request.is_interactive)
        self.breakers[index].on_sent(self.now_s)
        server = self.servers[index]
        server.advance(self.now_s)
        retry_after_s = server.offer(request)
        if retry_after_s is not None:
            server.refused += 1
            self._at(self.now_s + REFUSED_S, lambda: self._refuse(index, request, retry_after_s))
        return True

    def _refuse(self, index: int, request: Request, retry_after_s: float) -> None:
        self.upstreams[index].bulk_in_flight -= not request.is_interactive
        self.upstreams[index].limit.on_overload(self.now_s, retry_after_s or None)
        if not self.upstreams[index].limit.in_flight:
            self.breakers[index].on_fault(self.now_s)
        if request.is_interactive:
            self._waiting.appendleft(request)

    def _first_token(self, index: int, request: Request) -> None:
        request.first_token_s = self.now_s + NETWORK_S - request.waiting_since_s
        if request.is_interactive:
            self.upstreams[index].room.on_first_token(self.now_s, self.now_s + NETWORK_S - request.sent_s)

    def _end(self, index: int, request: Request) -> None:
        self.done.append((self.now_s, index, request))
        upstream = self.upstreams[index]
        upstream.bulk_in_flight -= not request.is_interactive
        upstream.limit.on_done(self.now_s, request.sent_s, request.tokens)
        upstream.budget.settle(request.sent_s, request.tokens, request.tokens)
        upstream.budget.on_headers(self.now_s, self.servers[index].headers())
        self.breakers[index].on_success()
