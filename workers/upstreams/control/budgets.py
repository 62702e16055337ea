"""Requests and tokens a minute that an upstream allows, as the operator and its answers tell.

The budget is spent evenly, by the generic cell rate algorithm (ITU-T I.371), so that bulk rows do not use up a
minute's requests in its first seconds and leave chats waiting for the rest.
"""

import math
import re
from collections.abc import Mapping
from typing import Final

MINUTE_S: Final = 60.0
BURST_S: Final = 1.0  # of the budget may be spent later than its time
RESET_S_MAX: Final = 86_400.0  # longer ones are dates, which are not read

HEADERS: Final = {
    "requests": ("-requests", "-requests-minute", "-requests-per-minute", "-req-minute", ""),
    "tokens": ("-tokens", "-tokens-minute", "-tokens-per-minute"),
}
"""Ends of the names, as OpenAI, Azure, Groq, Cerebras, Mistral and others send them: limits by the day are not read."""
_PERIOD = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_UNITS_S = (3600.0, 60.0, 1.0, 0.001)


class RateBudget:
    """What may be sent when. In any 60 s, no more requests than the minute has, and no more tokens but for those of
    the last request.
    """

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
        """Spends what remains evenly until it is reset, whether all at once or bit by bit. `headers` have names in
        lower case, or know no case. Malformed ones are ignored.
        """
        for kind, rate in (("requests", self._requests), ("tokens", self._tokens)):
            for end in HEADERS[kind]:
                remaining = _number(headers.get(f"x-ratelimit-remaining{end}"))
                reset_s = period_s(headers.get(f"x-ratelimit-reset{end}"))
                if remaining is not None and reset_s is not None:
                    rate.on_remaining(now_s, remaining, reset_s)
                    break


class _Rate:
    """Requests or tokens a minute."""

    def __init__(self, per_minute: int | None) -> None:
        assert per_minute is None or per_minute > 0, f"{per_minute} a minute"
        # The burst belongs to the minute: N - 1 spacings fit into less than a minute and a burst.
        self._spacing_s = (MINUTE_S + BURST_S) / per_minute if per_minute else 0.0
        self._told_spacing_s = 0.0
        self._told_until_s = -math.inf
        self.free_s = -math.inf  # all that was spent is paid for
        self._forgiven_s = -math.inf  # what was spent before weighs no more

    def spend(self, now_s: float, amount: int) -> None:
        if self.free_s <= now_s - BURST_S:
            self.free_s, self._forgiven_s = now_s - BURST_S, now_s
        told_s = self._told_spacing_s if now_s < self._told_until_s else 0.0
        self.free_s += amount * max(self._spacing_s, told_s)

    def correct(self, sent_s: float, amount: int) -> None:
        if amount > 0 or sent_s >= self._forgiven_s:
            self.free_s += amount * self._spacing_s

    def on_remaining(self, now_s: float, remaining: float, reset_s: float) -> None:
        self._told_until_s = now_s + reset_s
        if remaining >= 1:
            self._told_spacing_s = reset_s / remaining
        else:
            self.free_s = max(self.free_s, self._told_until_s)


def period_s(text: str | None) -> float | None:
    """Seconds of "1s", "6m0s", "20ms", "2m59.56s" or a number of seconds; None for anything else."""
    if not text or len(text) > 32:
        return None
    seconds = _number(text)
    if seconds is None:
        match = _PERIOD.fullmatch(text.strip())
        if match is None:
            return None
        seconds = sum(float(part) * unit_s for part, unit_s in zip(match.groups("0"), _UNITS_S, strict=True))
    return seconds if seconds <= RESET_S_MAX else None


def _number(text: str | None) -> float | None:
    """A number that is not negative, else None."""
    if text and len(text) <= 32 and re.fullmatch(r"\d+(\.\d+)?", text.strip(), re.ASCII):
        return float(text)
    return None
