"""How often each token has occurred in one sequence, as columns that grow with it.

Kept up by one append per sampled token, so that a step can lay the columns of many sequences end to end
without looking at a single token in Python.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

CAPACITY_MIN = 32


class TokenCounts:
    """Distinct tokens and their counts: `ids[i]` has occurred `counts[i]` times in the output.

    Tokens of the prompt are listed with a count of 0 as long as the output does not repeat them.
    """

    __slots__ = ("_counts", "_ids", "_place")

    def __init__(self, prompt: Iterable[int], output: Iterable[int]) -> None:
        self._place = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        capacity = max(CAPACITY_MIN, 2 * len(self._place))
        self._ids = np.zeros(capacity, dtype=np.int64)
        self._counts = np.zeros(capacity, dtype=np.float32)
        self._ids[: len(self._place)] = list(self._place)
        for token in output:
            self.add(token)

    @property
    def ids(self) -> NDArray[np.int64]:
        """`[distinct tokens]`; a view that the next `add` may leave behind."""
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """`[distinct tokens]`, in the order of `ids`; a view that the next `add` may change."""
        return self._counts[: len(self._place)]

    def look_up(self, token: int) -> tuple[int, float]:
        """Where a listed token stands in `ids`, and its count."""
        place = self._place[token]
        return place, float(self._counts[place])

    def add(self, token: int) -> None:
        place = self._place.get(token)
        if place is None:
            place = self._place[token] = len(self._place)
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token
        self._counts[place] += 1
