"""Places of an upstream that bulk rows have while interactive requests come."""

import math
from statistics import median
from typing import Final

RECENT_S: Final = 60.0  # interactive requests are expected for so long after the last
SLOWER: Final = 1.6  # the first token may take so much longer than without bulk rows: 2 is promised
SAMPLES_MIN: Final = 4  # of a change
DECREASE: Final = 0.7
INCREASE: Final = 0.02
CHANGE_S: Final = 2.0  # between two changes: rows in flight have to end first
SHARE_MIN: Final = 0.1


class BulkRoom:
    """Bulk rows' share of the limit, by AIMD on the time to an interactive request's first token.

    The time without bulk rows is the lowest median of a few requests. At the least share, the median is that
    time: prompts became longer or the upstream slower, and bulk rows are not the cause.
    """

    def __init__(self) -> None:
        self.share = 1.0
        self.last_sent_s = -math.inf  # of interactive requests
        self._changed_s = -math.inf
        self._samples: list[float] = []  # times to first tokens since
        self._lowest_s = math.inf

    def places(self, now_s: float, limit: int) -> float:
        """The most bulk rows in flight; one place is left for the next interactive request. Infinite while no
        interactive requests come.
        """
        if now_s >= self.last_sent_s + RECENT_S:
            return math.inf
        return max(1, min(limit - 1, int(limit * self.share)))

    def on_first_token(self, now_s: float, first_token_s: float) -> None:
        """Seconds until an interactive request's first token."""
        self._samples.append(first_token_s)
        if len(self._samples) < SAMPLES_MIN or now_s < self._changed_s + CHANGE_S:
            return
        usual_s = median(self._samples)
        self._lowest_s = min(self._lowest_s, usual_s)
        target_s = SLOWER * self._lowest_s
        if usual_s <= target_s:
            self.share = min(1.0, self.share + INCREASE)
        elif self.share > SHARE_MIN:
            self.share = max(SHARE_MIN, self.share * max(DECREASE, target_s / usual_s))
        else:
            self._lowest_s = usual_s
        self._changed_s = now_s
        self._samples.clear()
