"""How long the answers of a group are, learned from those that have ended.

A row of a job is like the job's other rows: the lengths of those done say what the next will need, where
`max_tokens` only says what it may.
"""

from __future__ import annotations

from collections import OrderedDict

QUANTILE = 0.65
"""Share of answers that are no longer than what is expected. Higher admits fewer, and preempts fewer; many
answers together come close to their mean, which for heavy tails lies about here."""
DEFAULT_OUTPUT_TOKENS = 64
"""Expected of the first answers, of which nothing is known. Low: a preemption costs less than idle memory."""
ANSWERS_UNTIL_TRUSTED = 8
"""Answers of a group seen before they say more than those of all groups."""
ANSWERS_REMEMBERED = 1024
"""When so many are counted, all counts are halved: recent answers matter more."""
GROUPS_REMEMBERED = 256
EXPECTED_REMEMBERED = 4096
"""Estimates kept until another answer changes them: the same one is asked for with every admission."""

_SUB_BUCKETS_BITS = 2  # four buckets per power of two: lengths are kept to within a fifth


class LengthHistogram:
    """Counts of lengths, in buckets that widen with length."""

    def __init__(self) -> None:
        self.total = 0.0
        self._counts: dict[int, float] = {}

    def add(self, length: int) -> None:
        bucket = _bucket(length)
        self._counts[bucket] = self._counts.get(bucket, 0.0) + 1
        self.total += 1
        if self.total >= ANSWERS_REMEMBERED:
            self._counts = {bucket: count / 2 for bucket, count in self._counts.items()}
            self.total /= 2

    def quantile(self, share: float, *, beyond: int = 0) -> int | None:
        """Length that `share` of those longer than `beyond` do not exceed; None if none was longer."""
        longer = [(bucket, count) for bucket, count in self._counts.items() if _upper_end(bucket) > beyond]
        left = share * sum(count for _, count in longer)
        for bucket, count in sorted(longer):
            left -= count
            if left <= 0:
                return _upper_end(bucket)
        return None


class OutputLengths:
    """Expected output lengths, per group where its own answers suffice, else over all."""

    def __init__(self) -> None:
        self._all = LengthHistogram()
        self._by_group: OrderedDict[str, LengthHistogram] = OrderedDict()
        self._expected: dict[tuple[str | None, int], int] = {}  # since the last answer

    def add(self, group: str | None, num_output_tokens: int) -> None:
        """Note the length of an answer that has ended by itself or at its limit."""
        self._expected.clear()
        self._all.add(num_output_tokens)
        if group is None:
            return
        self._by_group.setdefault(group, LengthHistogram()).add(num_output_tokens)
        self._by_group.move_to_end(group)
        if len(self._by_group) > GROUPS_REMEMBERED:
            self._by_group.popitem(last=False)

    def expect(self, group: str | None, num_output_tokens: int) -> int:
        """Expected length in tokens of an answer of which `num_output_tokens` are there, always more."""
        known = self._expected.get((group, num_output_tokens))
        if known is None:
            if len(self._expected) >= EXPECTED_REMEMBERED:
                self._expected.clear()
            known = self._expected[group, num_output_tokens] = self._estimate(group, num_output_tokens)
        return known

    def _estimate(self, group: str | None, num_output_tokens: int) -> int:
        histogram = self._by_group.get(group) if group is not None else None
        if histogram is None or histogram.total < ANSWERS_UNTIL_TRUSTED:
            histogram = self._all
        expected = None
        if histogram.total >= ANSWERS_UNTIL_TRUSTED:
            expected = histogram.quantile(QUANTILE, beyond=num_output_tokens)
        elif num_output_tokens < DEFAULT_OUTPUT_TOKENS:
            expected = DEFAULT_OUTPUT_TOKENS
        # Longer than any seen: half as much again is as good a guess as another.
        return expected or num_output_tokens + max(1, num_output_tokens // 2)


def _bucket(length: int) -> int:
    """Exact below 8; then the leading three bits of the length."""
    shift = max(0, length.bit_length() - _SUB_BUCKETS_BITS - 1)
    return (shift << _SUB_BUCKETS_BITS) + (length >> shift)


def _upper_end(bucket: int) -> int:
    """Largest length in a bucket."""
    base = 1 << _SUB_BUCKETS_BITS
    if bucket < 2 * base:
        return bucket
    shift = (bucket >> _SUB_BUCKETS_BITS) - 1
    return ((bucket - (shift << _SUB_BUCKETS_BITS) + 1) << shift) - 1
