"""The order of the rows of one flow's jobs: equal beginnings together, long answers first."""

from bisect import bisect_left, insort
from typing import Final

import numpy as np

from ..sequence import Sequence
from .turns import RankedHeap

LENGTH_WINDOW: Final = 128
"""Rows with one beginning among which the longest goes first: the nearest to the last one in prefix order."""
PREFIX_TOKENS: Final = 1024
"""Tokens that are compared to find equal beginnings."""
TOKEN_BYTES: Final = 4

_PrefixEntry = tuple[bytes, int, Sequence]
"""The beginning of a sequence's tokens, its arrival, and the sequence."""


class RowOrder:
    """Waiting rows of one flow's jobs: next is the longest of those that share most whole blocks with the
    last one.

    So equal beginnings come together, and where nothing is shared a job does not end with one long answer.
    """

    def __init__(self, block_size: int) -> None:
        self._block_bytes = block_size * TOKEN_BYTES
        self._sorted: list[_PrefixEntry] = []
        self._entries: dict[Sequence, _PrefixEntry] = {}
        self._longest = RankedHeap[Sequence](self._entries.__contains__)
        self._last_prefix = b""  # of the row taken last
        self._first: Sequence | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, sequence: Sequence) -> None:
        entry = self._entries[sequence] = _prefix_entry(sequence)
        insort(self._sorted, entry)
        self._longest.push(-_tokens_to_come(sequence), sequence.urgency[1], sequence)
        self._first = None

    def follow(self, sequence: Sequence) -> None:
        """Makes rows that begin as this one, which waits here, the next."""
        self._last_prefix = self._entries[sequence][0]
        self._first = None

    def remove(self, sequence: Sequence) -> None:
        index = bisect_left(self._sorted, self._entries.pop(sequence))
        assert self._sorted[index][2] is sequence, f"{sequence.id} is not where its tokens say"
        del self._sorted[index]
        self._first = None

    def first(self) -> Sequence:
        """The row to admit next, where at least one waits."""
        if self._first is None:
            self._first = self._find_first()
            self._last_prefix = self._entries[self._first][0]
        return self._first

    def _find_first(self) -> Sequence:
        related = self._related()
        if related:
            return max((sequence for _, _, sequence in related), key=_tokens_to_come)
        longest = self._longest.first()
        assert longest is not None, "no row waits"
        return longest[1]

    def _related(self) -> list[_PrefixEntry]:
        """Rows near the one taken last that share the most blocks with it; none if none shares one."""
        place = bisect_left(self._sorted, (self._last_prefix,))
        neighbours = self._sorted[max(0, place - 1) : place + 1]
        num_shared = max((self._num_shared_bytes(entry[0]) for entry in neighbours), default=0)
        if num_shared == 0:
            return []
        beginning = self._last_prefix[:num_shared]
        start = bisect_left(self._sorted, (beginning,))
        # Tokens have 31 bits, so this is above all that begin so.
        stop = bisect_left(self._sorted, (beginning + b"\xff",))
        near = LENGTH_WINDOW // 2
        return self._sorted[max(start, place - near) : min(stop, place + near)]

    def _num_shared_bytes(self, prefix: bytes) -> int:
        """Bytes of whole blocks that a row has in common with the row taken last."""
        last, size = self._last_prefix, self._block_bytes
        shared = 0
        while shared + size <= len(last) and last[shared : shared + size] == prefix[shared : shared + size]:
            shared += size
        return shared


def _prefix_entry(sequence: Sequence) -> _PrefixEntry:
    """Sorts as the tokens do. Compared as bytes, hence big-endian: far faster than number by number."""
    tokens = np.array(sequence.token_ids[: min(PREFIX_TOKENS, sequence.num_prompt_tokens)], dtype=">u4")
    return tokens.tobytes(), sequence.urgency[1], sequence


def _tokens_to_come(sequence: Sequence) -> int:
    """Tokens that may still come, at the most: exact for a request that ignores the end of its text."""
    return sequence.num_tokens_max - sequence.num_tokens
