"""Places of an upstream that bulk rows have while interactive requests come."""

import math
from typing import Final

RECENT_S: Final = 60.0  # interactive requests are expected for so long after the last
SLOWER: Final = 2.0  # the time to the first token may be so much longer than without bulk rows
SMOOTHING: Final = 0.25
DECREASE: Final = 0.7
INCREASE: Final = 0.05
CHANGE_S: Final = 2.0  # between two changes: rows in flight have to end first
SHARE_MIN: Final = 0.1


class BulkRoom:
    """Bulk rows' share of the limit, by AIMD on the time to an interactive request's first token.

    The time without bulk rows is the lowest that its moving average had. With the least share, what is seen is that
    time: prompts became longer, or the upstream slower, and bulk rows are not the cause.
    """

    def __init__(self) -> None:
        self.share = 1.0
        self._last_sent_s = -math.inf
        self._changed_s = -math.inf
        self._first_token_s: float | None = None  # moving average
        self._lowest_s = math.inf

    def places(self, now_s: float, limit: int) -> float:
        """The most bulk rows in flight; one place is left for the next interactive request. Infinite while no
        interactive requests come.
        """
        if now_s >= self._last_sent_s + RECENT_S:
            return math.inf
        return max(1, min(limit - 1, int(limit * self.share)))

    def on_sent(self, now_s: float) -> None:
        """An interactive request."""
        self._last_sent_s = now_s

    def on_first_token(self, now_s: float, first_token_s: float) -> None:
        """Seconds until an interactive request's first token."""
        before_s = first_token_s if self._first_token_s is None else self._first_token_s
        self._first_token_s = before_s + SMOOTHING * (first_token_s - before_s)
        self._lowest_s = min(self._lowest_s, self._first_token_s)
        if now_s < self._changed_s + CHANGE_S:
            return
        self._changed_s = now_s
        if self._first_token_s <= SLOWER * self._lowest_s:
            self.share = min(1.0, self.share + INCREASE)
        elif self.share > SHARE_MIN:
            self.share = max(SHARE_MIN, self.share * DECREASE)
        else:
            self._lowest_s = self._first_token_s
