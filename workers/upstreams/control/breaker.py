"""A circuit breaker: an upstream that fails again and again is left alone, and tried with one request."""

import math
import random
from typing import Final

FAULTS_IN_A_ROW: Final = 5
RETRY_S_MIN: Final = 1.0
RETRY_S_MAX: Final = 5.0


class Breaker:
    """Closed: requests pass. Open: none do until a time; then one does, and its fate decides.

    The time between trials doubles from 1 to 5 s. Up to a quarter of it is taken off at random, so that
    workers do not all try at once.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._faults = 0  # in a row; while it is open, those of trials count
        self._is_on_trial = False
        self._until_s = -math.inf

    def wait_s(self, now_s: float) -> float:
        """Seconds until a request may be sent; infinite once the upstream refused its key."""
        return max(0.0, self._until_s - now_s)

    def on_sent(self, now_s: float) -> None:
        """A request. While open it is a trial, and another follows a back-off later, should this get lost."""
        if self.is_open:
            self._is_on_trial = True
            self._wait(now_s)

    def on_success(self) -> None:
        """An answer. A refused key stays refused."""
        if self._until_s < math.inf:
            self.is_open, self._until_s = False, -math.inf
            self._faults, self._is_on_trial = 0, False

    def on_fault(self, now_s: float) -> None:
        """A fault of the upstream, not of a row; a refusal for its load where it has nothing else to do."""
        if self.is_open and not self._is_on_trial:
            return  # of a request that was sent before it opened
        self._faults, self._is_on_trial = self._faults + 1, False
        if self._faults >= FAULTS_IN_A_ROW:
            self.is_open = True
            self._wait(now_s)

    def on_key_refused(self) -> None:
        """Opens for good."""
        self.is_open, self._until_s = True, math.inf

    def _wait(self, now_s: float) -> None:
        back_off_s = min(RETRY_S_MIN * 2.0 ** min(self._faults - FAULTS_IN_A_ROW, 10), RETRY_S_MAX)
        self._until_s = max(self._until_s, now_s + max(RETRY_S_MIN, back_off_s * random.uniform(0.75, 1.0)))
