"""Requests and tokens a minute that an upstream allows, as the operator and its answers tell.

The budget is spent evenly, by the generic cell rate algorithm (ITU-T I.371): bulk rows do not use up a
minute's requests in its first seconds, while chats wait for the next.
"""

import math
import re
from collections.abc import Mapping
from typing import Final

MINUTE_S: Final = 60.0
BURST_S: Final = 1.0  # of the budget may be spent later than its time
RESET_S_MAX: Final = 86_400.0  # longer ones are dates, which are not read
REQUESTS: Final = ("-requests", "-requests-minute", "-requests-per-minute", "-req-minute", "")
TOKENS: Final = ("-tokens", "-tokens-minute", "-tokens-per-minute")
"""Ends of the headers' names, as OpenAI and other vendors send them. Limits of a day are not read."""
_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"
_PERIOD = re.compile("".join(f"(?:{_NUMBER}{unit})?" for unit in _UNITS_S), re.ASCII)


class RateBudget:
    """No 60 s have more requests than the operator says, nor more tokens but for the last request's."""

    def __init__(self, requests_per_minute: int | None = None, tokens_per_minute: int | None = None) -> None:
        self._requests = _Rate(requests_per_minute)
        self._tokens = _Rate(tokens_per_minute)

    def wait_s(self, now_s: float) -> float:
        """Seconds until a request may be sent."""
        return max(0.0, self._requests.free_s - now_s, self._tokens.free_s - now_s)

    def spend(self, now_s: float, tokens: int) -> None:
        """A request is sent that will read and make about so many tokens."""
        self._requests.spend(now_s, 1)
        self._tokens.spend(now_s, tokens)

    def settle(self, sent_s: float, tokens: int, actual_tokens: int) -> None:
        """Corrects what was spent for the request sent then."""
        self._tokens.correct(sent_s, actual_tokens - tokens)

    def on_headers(self, now_s: float, headers: Mapping[str, str]) -> None:
        """Has what remains spent evenly until its reset. `headers` have names in lower case, or know no case;
        malformed ones are ignored.
        """
        for rate, ends in ((self._requests, REQUESTS), (self._tokens, TOKENS)):
            for end in ends:
                if (said := headers.get(f"x-ratelimit-remaining{end}")) is None:
                    continue
                remaining, reset_s = said.strip(), period_s(headers.get(f"x-ratelimit-reset{end}", ""))
                if remaining.isdecimal() and reset_s is not None:
                    rate.on_remaining(now_s, float(remaining), reset_s)
                    break


class _Rate:
    """Requests or tokens a minute. Whatever they have taken, a minute without a request has paid for it."""

    def __init__(self, per_minute: int | None) -> None:
        assert per_minute is None or per_minute > 0, f"{per_minute} a minute"
        # The burst belongs to the minute: N - 1 spacings fit into less than a minute and a burst.
        self._spacing_s = (MINUTE_S + BURST_S) / per_minute if per_minute else 0.0
        self._paid_s = self._last_s = -math.inf  # all that was spent is paid for; the last request
        self._forgiven_s = -math.inf  # what was spent before weighs no more
        self._told_spacing_s = 0.0
        self._told_free_s = self._told_until_s = -math.inf

    @property
    def free_s(self) -> float:
        """The time from which on the next request may be sent."""
        return max(self._told_free_s, min(self._paid_s, self._last_s + MINUTE_S))

    def spend(self, now_s: float, amount: int) -> None:
        if min(self._paid_s + BURST_S, self._last_s + MINUTE_S) <= now_s:
            self._paid_s, self._forgiven_s = now_s - BURST_S, now_s
        self._paid_s += amount * self._spacing_s
        self._last_s = now_s
        told_s = max(self._told_free_s, now_s) + amount * self._told_spacing_s
        self._told_free_s = min(told_s, self._told_until_s)

    def correct(self, sent_s: float, amount: int) -> None:
        if amount > 0 or sent_s >= self._forgiven_s:
            self._paid_s += amount * self._spacing_s

    def on_remaining(self, now_s: float, remaining: float, reset_s: float) -> None:
        self._told_until_s = now_s + reset_s
        if remaining >= 1:
            self._told_spacing_s = (reset_s + BURST_S) / remaining
        else:
            self._told_free_s = self._told_until_s


def period_s(text: str) -> float | None:
    """Seconds of "1s", "6m0s", "20ms", "2m59.56s" or a number of seconds; None for anything else."""
    text = text.strip()
    match = _PERIOD.fullmatch(text if text[-1:].isalpha() else f"{text}s")
    if match is None:
        return None
    seconds = sum(float(part) * s for part, s in zip(match.groups("0"), _UNITS_S.values(), strict=True))
    return seconds if seconds <= RESET_S_MAX else None
