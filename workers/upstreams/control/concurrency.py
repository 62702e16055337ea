"""The number of requests that an upstream has at once, found while it works.

Two rules move the limit:

1. An upstream that refuses a request (429, 503) holds what else is in flight, and no more: that is the limit. A
   refusal of all says nothing of how many there may be: requests are then tried one at a time, and the first
   success brings back 0.7 of the limit before. A timeout multiplies it by 0.7, once for the requests sent before
   it (AIMD: Chiu and Jain, 1989).
2. Otherwise a direct search (Hooke and Jeeves, 1961) finds the most throughput for the least concurrency: it tries
   a higher or lower limit for a round, keeps it if it is better, doubles its step in the direction that paid,
   and halves it and turns round where none did. It begins with doubling, as TCP's slow start does.

By Little's law, throughput is requests in flight * tokens / latency. A continuously batching server's latency grows
with its batch while its throughput grows too; requests beyond its slots only wait, and throughput stays. So a limit
is better if ln(throughput) - 0.1 * ln(in flight) is higher: a doubling has to bring 7 % more.
"""

import math
from typing import Final

DECREASE: Final = 0.7
PRICE: Final = 0.1  # of concurrency: the elasticity of throughput from which more requests are worth it
STEP_MAX: Final = 1.0  # steps of the search, in doublings
STEP_MIN: Final = 1 / 8
ROUND_REQUESTS_MIN: Final = 32  # of a round with steps below a doubling: lengths of rows vary
ROUNDS_BETWEEN_TRIALS_MAX: Final = 16
CHANGE: Final = math.log(1.25)  # of the throughput at one limit: the upstream or its work is another
FULL: Final = 0.9  # of the limit in use: a round with less tells nothing of it (RFC 7661)
RETRY_S_MIN: Final = 0.125  # doubles with each refusal in a row of all
RETRY_S_MAX: Final = 4.0
RETRY_AFTER_S_MAX: Final = 300.0  # an upstream's word is taken for so long


class ConcurrencyLimit:
    """A limit between 1 and `most`, and the requests in flight."""

    def __init__(self, initial: int = 8, most: int = 1024) -> None:
        assert initial >= 1 and most >= 1, f"{initial} of {most} requests"
        self.limit = min(initial, most)
        self.in_flight = 0
        self.paused_until_s = -math.inf
        self.seconds_per_token: float | None = None  # of a request; None: not measured yet
        self._most = most
        self._base = self.limit  # the best limit so far; `limit` differs from it during a trial
        self._base_score = -math.inf
        self._direction = 1
        self._step = STEP_MAX
        self._rest = 0  # rounds between trials
        self._rounds_left = 0  # until the next trial
        self._refused_s = self._cut_s = -math.inf
        self._limit_after: int | None = None  # a refusal, from the next success on
        self._retry_s = RETRY_S_MIN
        self._begin_round(-math.inf)

    def free(self, now_s: float) -> int:
        """Number of requests that may be sent now."""
        return 0 if now_s < self.paused_until_s else max(0, self.limit - self.in_flight)

    @property
    def pace(self) -> float | None:
        """Tokens a second at this limit, or None before the first round's end."""
        return self.seconds_per_token and self.limit / self.seconds_per_token

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
            self._recover(now_s, self._limit_after)
        if sent_s < self._round_began_s:
            return  # it ran under another limit
        self._requests += 1
        if (
            self._requests > self.limit - self._base
        ):  # those before came at once, and queued less than later ones
            self._measured += 1
            self._in_flight_sum += in_flight
            self._tokens += max(1, tokens)
            self._latency_s += now_s - sent_s
        if self._requests >= (self.limit if self._step == STEP_MAX else max(self.limit, ROUND_REQUESTS_MIN)):
            self._end_round(now_s)

    def on_overload(self, now_s: float, retry_after_s: float | None = None) -> None:
        """A refusal: 429 or 503."""
        self.in_flight -= 1
        if self._limit_after is None:
            self._limit_after = max(1, int(self._base * DECREASE))
        if self.limit > self._base:
            self._turn()
        self._settle(now_s, min(self.limit, self.in_flight))
        self._refused_s = now_s
        pause_s = min(retry_after_s or 0.0, RETRY_AFTER_S_MAX)
        if self.in_flight == 0:
            pause_s = max(pause_s, self._retry_s)
            self._retry_s = min(2 * self._retry_s, RETRY_S_MAX)
        self.paused_until_s = max(self.paused_until_s, now_s + pause_s)

    def on_timeout(self, now_s: float, sent_s: float) -> None:
        """A request that the worker gave up on."""
        self.in_flight -= 1
        if sent_s >= self._cut_s:
            self._cut_s = now_s
            self._settle(now_s, int(self.limit * DECREASE))

    def _recover(self, now_s: float, limit: int) -> None:
        self._limit_after, self._retry_s = None, RETRY_S_MIN
        if limit > self.limit:  # it refused all, and is soon back at what it had
            self._settle(now_s, limit)
            self._search(1, STEP_MAX / 2)

    def _settle(self, now_s: float, limit: int) -> None:
        self.limit = self._base = min(max(1, limit), self._most)
        self._begin_round(now_s)

    def _begin_round(self, now_s: float) -> None:
        """Counts requests sent from now on."""
        self._round_began_s = now_s
        self._requests = self._measured = self._in_flight_sum = self._tokens = 0
        self._latency_s = 0.0

    def _end_round(self, now_s: float) -> None:
        in_flight = self._in_flight_sum / self._measured
        self.seconds_per_token = max(self._latency_s, 1e-9) / self._tokens
        if in_flight >= FULL * self.limit:
            self._judge(math.log(in_flight / self.seconds_per_token) - PRICE * math.log(in_flight))
        self._begin_round(now_s)

    def _judge(self, score: float) -> None:
        """Ends a trial, or counts a round between trials."""
        if self.limit == self._base:
            if abs(score - self._base_score) > CHANGE:
                self._search(self._direction, max(self._step, STEP_MAX / 2))
            self._base_score = score
            self._rounds_left -= 1
            if self._rounds_left < 0:
                self._try()
        elif score > self._base_score:
            self._base, self._base_score = self.limit, score
            self._search(self._direction, min(2 * self._step, STEP_MAX))
            self._try()
        else:
            self._turn()

    def _search(self, direction: int, step: float) -> None:
        self._direction, self._step = direction, step
        self._rest = self._rounds_left = 0

    def _try(self) -> None:
        change = round(self._base * 2 ** (self._direction * self._step)) - self._base
        limit = self._base + (change or self._direction)
        self.limit = min(max(1, limit), self._most)
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
