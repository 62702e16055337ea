"""The number of requests that an upstream has at once, found while it works. Two rules move the limit:

1. An upstream that refuses a request (429, 503) holds what else is in flight and no more: that is the limit.
   One that refuses all says nothing of how many it holds: it gets one request at a time (the breaker says
   when), and the first answer brings back 0.7 of the limit before. A timeout multiplies the limit by 0.7,
   once for all that were sent before (multiplicative decrease: Chiu and Jain, 1989).
2. Otherwise a direct search (Hooke and Jeeves, 1961) tries another limit for a round, and keeps it where it
   is better. A trial that paid doubles the step, one that did not halves it and turns round. It begins with
   doublings, as TCP's slow start does; downwards a step is half a doubling at most.

By Little's law, throughput is requests in flight * tokens / latency. In a continuously batching server,
latency grows with the batch, but so does throughput; what exceeds its slots only waits. A limit is better if
throughput grew by more than (limit / limit before) ** 0.1: a doubling has to bring 7 %. Rows differ in
length, so latencies are compared at one number of tokens, on the line through a round's requests.
"""

import math
from statistics import fmean, linear_regression
from typing import Final

DECREASE: Final = 0.7
ELASTICITY: Final = 0.1  # of throughput to concurrency, from which more requests are worth it
STEP_MAX: Final = 1.0  # steps of the search, in doublings
STEP_DOWN_MAX: Final = 1 / 2  # too few requests cost more than too many
STEP_MIN: Final = 1 / 8
ROUND_REQUESTS_MIN: Final = 32  # of a round, but for doublings
ROUND_S_MIN: Final = 1.5  # likewise: machines stall for shorter
ROUNDS_BETWEEN_TRIALS_MAX: Final = 16
SMOOTHING: Final = 1 / 8  # of the tokens at which latencies are compared
CHANGE: Final = math.log(1.25)  # of the throughput at one limit: the upstream, or its work, is another
FULL: Final = 0.9  # of the limit in use; a round with less tells nothing of it (RFC 7661)
RETRY_AFTER_S_MAX: Final = 300.0


class ConcurrencyLimit:
    """A limit between 1 and `most`, and the requests in flight."""

    def __init__(self, initial: int = 8, most: int = 1024) -> None:
        assert min(initial, most) >= 1, f"{initial} of {most} requests"
        self.in_flight = 0
        self.paused_until_s = -math.inf
        self.pace: float | None = None  # tokens a second with all places taken; None: not measured yet
        self._most = most
        self._base_throughput = 1e-9  # tokens a second at the best limit so far
        self._usual_tokens = 0.0  # of a request
        self._refused_s = self._cut_s = -math.inf
        self._limit_after: int | None = None  # refusals, from the next answer on
        self._settle(-math.inf, initial)
        self._search(1, STEP_MAX)

    def on_sent(self) -> None:
        self.in_flight += 1

    def on_lost(self) -> None:
        """A request that ended without telling anything of the load: cancelled, or its connection broke."""
        self.in_flight -= 1

    def on_done(self, now_s: float, sent_s: float, tokens: int) -> None:
        """An answer. `tokens` are those made, or those read where none are made."""
        in_flight = self.in_flight
        self.in_flight -= 1
        if self._limit_after is not None and sent_s >= self._refused_s:
            if self._limit_after > self.limit:  # it refused all, and is soon back at what it had
                self._settle(now_s, self._limit_after)
                self._search(1, STEP_MAX / 2)
            self._limit_after = None
        if sent_s < self._round_began_s:
            return  # it ran under another limit
        self._requests += 1
        if self._requests > self.limit - self._base:  # others were sent at once, and queued less
            self._in_flight_sum += in_flight
            self._samples.append((max(1, tokens), now_s - sent_s))
        requests_min, s_min = (ROUND_REQUESTS_MIN, ROUND_S_MIN) if self._step < STEP_MAX else (1, 0.0)
        if self._requests >= max(self.limit, requests_min) and now_s - self._round_began_s >= s_min:
            self._end_round(now_s)

    def on_overload(self, now_s: float, retry_after_s: float | None = None) -> None:
        """A refusal: 429 or 503."""
        self.in_flight -= 1
        if self._limit_after is None:
            self._limit_after = max(1, int(self._base * DECREASE))
        accepted = min(self.limit, self.in_flight)
        if self.limit > self._base:
            self._turn()
        self._settle(now_s, accepted)
        self._refused_s = now_s
        if retry_after_s is not None:
            self.paused_until_s = max(self.paused_until_s, now_s + min(retry_after_s, RETRY_AFTER_S_MAX))

    def on_timeout(self, now_s: float, sent_s: float) -> None:
        """A request that the worker gave up on."""
        self.in_flight -= 1
        if sent_s >= self._cut_s:
            self._cut_s = now_s
            self._settle(now_s, int(self.limit * DECREASE))

    def _settle(self, now_s: float, limit: int) -> None:
        """Makes this the best limit; while a trial lasts, `limit` is another."""
        self.limit = self._base = min(max(1, limit), self._most)
        self._begin_round(now_s)

    def _begin_round(self, now_s: float) -> None:
        self._round_began_s = now_s  # requests sent from now on are counted
        self._requests = self._in_flight_sum = 0
        self._samples: list[tuple[int, float]] = []  # tokens and seconds

    def _end_round(self, now_s: float) -> None:
        tokens, latencies_s = zip(*self._samples, strict=True)
        in_flight = self._in_flight_sum / len(tokens)
        mean_tokens, latency_s = fmean(tokens), fmean(latencies_s)
        self._usual_tokens += (mean_tokens - self._usual_tokens) * (SMOOTHING if self._usual_tokens else 1)
        if min(tokens) < max(tokens):
            slope, intercept = linear_regression(tokens, latencies_s)
            latency_s = max(intercept + slope * self._usual_tokens, min(latencies_s))
        tokens_per_s = self._usual_tokens / max(latency_s, 1e-6)  # of one request
        self.pace = self.limit * tokens_per_s
        if in_flight >= FULL * self.limit:
            self._judge(in_flight * tokens_per_s)
        elif self.limit != self._base:
            self._turn()
        self._begin_round(now_s)

    def _judge(self, throughput: float) -> None:
        """Ends a trial, or counts a round between trials."""
        gain = throughput / self._base_throughput
        if self.limit == self._base:
            if abs(math.log(gain)) > CHANGE:
                self._search(self._direction, max(self._step, STEP_MAX / 2))
            self._base_throughput = throughput
            self._rounds_left -= 1
            if self._rounds_left < 0:
                self._try()
        elif gain > (self.limit / self._base) ** ELASTICITY:
            self._base, self._base_throughput = self.limit, throughput
            self._search(self._direction, min(2 * self._step, STEP_MAX))
            self._try()
        else:
            self._turn()

    def _search(self, direction: int, step: float) -> None:
        self._direction, self._step = direction, step
        self._rest = self._rounds_left = 0  # rounds between trials, and until the next

    def _try(self) -> None:
        step = self._step if self._direction > 0 else min(self._step, STEP_DOWN_MAX)
        change = round(self._base * 2 ** (self._direction * step)) - self._base
        self.limit = min(max(1, self._base + (change or self._direction)), self._most)
        if self.limit == self._base:
            self._turn()

    def _turn(self) -> None:
        """Goes back to the best limit; the next trial is a smaller one in the other direction."""
        self.limit = self._base
        self._direction = -self._direction
        if self._step > STEP_MIN:
            self._step /= 2
        else:
            self._rest = min(max(1, 2 * self._rest), ROUNDS_BETWEEN_TRIALS_MAX)
        self._rounds_left = self._rest
