"""Which inputs share a forward pass: those of similar length, so that little of it is padding."""

from __future__ import annotations

from collections.abc import Sequence, Sized

LENGTH_RATIO_MAX = 1.5
"""Within a forward pass the longest input is at most this many times the shortest, which bounds padding..."""

SHORT_INPUT_TOKENS = 32
"""...except that inputs up to this length go together: another pass would cost more than their padding."""


def length_buckets(inputs: Sequence[Sized], max_num_batched_tokens: int) -> list[list[int]]:
    """Divide inputs into forward passes by their lengths: lists of indices, longest inputs first.

    A pass pads to at most `max_num_batched_tokens`; only an input longer than that exceeds it, alone.
    """
    order = sorted(range(len(inputs)), key=lambda index: len(inputs[index]))
    lengths = [len(inputs[index]) for index in order]
    buckets = []
    while order:
        window = bucket_around(len(order) - 1, lengths, max_num_batched_tokens)
        buckets.append(order[window])
        del order[window], lengths[window]
    return buckets


def bucket_around(position: int, lengths: Sequence[int], max_num_batched_tokens: int) -> slice:
    """Inputs that share a pass with the one at `position`: the nearest in length, while they fit.

    `lengths` ascend. The slice always holds `position`, even where that alone exceeds the budget.
    """

    def fits(first: int, last: int) -> bool:
        if first < 0 or last >= len(lengths):
            return False
        longest, shortest = lengths[last], lengths[first]
        is_alike = longest <= max(SHORT_INPUT_TOKENS, LENGTH_RATIO_MAX * shortest)
        return is_alike and (last - first + 1) * longest <= max_num_batched_tokens

    first = last = position
    while wider := [window for window in ((first - 1, last), (first, last + 1)) if fits(*window)]:
        first, last = min(wider, key=lambda window: lengths[window[1]] - lengths[window[0]])
    return slice(first, last + 1)
