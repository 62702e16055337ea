"""Drafts from a sequence's own tokens: what followed the same run of tokens before (prompt lookup)."""

from __future__ import annotations

from array import array
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

RUN = 3
"""Tokens that have to stand elsewhere alike."""
AT_ONCE_MAX = 128
"""Tokens that are taken in one by one; more are sorted together, which is faster."""
RECENT_MAX = 512
"""Tokens, at 140 bytes each, after which all are sorted, at 8 bytes each."""
MATCH_MAX = 12
"""Equal tokens that are counted at most."""
WINDOW = 8
EQUAL_MIN = 5
"""Tokens of the last `WINDOW` that have to be those of a text copied so far, to go on after a change."""

_POSITION_BITS = 24
_POSITIONS = (1 << _POSITION_BITS) - 1
_KEYS = (1 << 39) - 1
_FACTORS = (0x5851F42D4D, 0x9E3779B97F, 0xC2B2AE3D27)  # below 2^40: their products with token ids fit int64


class OwnTokens:
    """The last place of each run of `RUN` tokens. `extend` brings it up to date before `follow`."""

    __slots__ = ("_distance", "_next", "_recent", "_sorted")

    def __init__(self) -> None:
        self._next = RUN  # the end of the next run to take in
        self._sorted = np.empty(0, dtype=np.int64).data  # key, then the place after the run
        self._recent: dict[int, int] = {}
        self._distance = 0  # from the text copied last to the end; 0: none was

    @property
    def num_taken(self) -> int:
        """Tokens that have been taken in; the first `RUN` count from the beginning."""
        return self._next

    def extend(self, tokens: array[int]) -> None:
        """Takes in the runs that have a token after them."""
        num_new = len(tokens) - self._next
        if num_new > AT_ONCE_MAX or num_new + len(self._recent) > RECENT_MAX:
            self._sorted = _sorted_places(np.frombuffer(tokens, dtype=np.int64)).data
            self._recent.clear()
        else:
            for end in range(self._next, len(tokens)):
                self._recent[_key(tokens, end)] = end
        self._next = max(self._next, len(tokens))

    def follow(self, tokens: array[int], most: int) -> tuple[int, list[int]] | None:
        """Number of equal tokens before, up to `MATCH_MAX`, and up to `most` tokens that followed them.

        0 equal tokens: a text that was copied so far goes on after a change. None: the last `RUN` tokens
        stand nowhere else.
        """
        if len(tokens) <= RUN or most <= 0:
            return None
        place = self._place(_key(tokens, len(tokens)))
        length = 0 if place is None else _num_equal_before(tokens, place)
        if place is None or length < RUN:  # shorter where only the keys are equal
            place, length = len(tokens) - self._distance, 0
            if not self._distance or _num_equal_in_window(tokens, place) < EQUAL_MIN:
                self._distance = 0
                return None
        self._distance = len(tokens) - place
        followed = tokens[place : place + most].tolist()
        repeats = -(-most // len(followed))  # a run that overlaps the end repeats itself
        return length, (followed * repeats)[:most]

    def _place(self, key: int) -> int | None:
        place = self._recent.get(key)
        if place is not None:
            return place
        index = bisect_right(self._sorted, key << _POSITION_BITS | _POSITIONS) - 1
        if index < 0 or self._sorted[index] >> _POSITION_BITS != key:
            return None
        return self._sorted[index] & _POSITIONS


def _key(tokens: array[int], end: int) -> int:
    first, second, third = _FACTORS
    return (tokens[end - 3] * first + tokens[end - 2] * second + tokens[end - 1] * third) & _KEYS


def _sorted_places(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Keys of all runs with a token after them, each with its place, ascending."""
    first, second, third = _FACTORS
    keys = (tokens[:-3] * first + tokens[1:-2] * second + tokens[2:-1] * third) & _KEYS
    places = keys << _POSITION_BITS | np.arange(RUN, len(tokens))
    places.sort()
    return places


def _num_equal_before(tokens: array[int], place: int) -> int:
    """Number of tokens before `place` that stand at the end too, up to `MATCH_MAX`."""
    most = min(MATCH_MAX, place)
    for back in range(1, most + 1):
        if tokens[place - back] != tokens[-back]:
            return back - 1
    return most


def _num_equal_in_window(tokens: array[int], place: int) -> int:
    """Number of the last `WINDOW` tokens that are those before `place`."""
    return sum(tokens[place - back] == tokens[-back] for back in range(1, min(WINDOW, place) + 1))
