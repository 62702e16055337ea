"""Which inputs share a forward pass: those of similar length, so that little of it is padding."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence, Sized
from dataclasses import dataclass

LENGTH_RATIO_MAX = 1.5
"""Within a forward pass the longest input is at most this many times the shortest, which bounds padding..."""

SHORT_INPUT_TOKENS = 32
"""...except that inputs up to this length go together: another pass would cost more than their padding."""


@dataclass(frozen=True, slots=True)
class PassLimits:
    """What one forward pass may hold. A single input always may be a pass."""

    max_num_batched_tokens: int
    """Padding counted."""
    max_batch_size: int | None = None
    """Inputs; None: as many as the tokens allow."""
    bounds: tuple[int, ...] | None = None
    """As `EncoderConfig.length_buckets`."""

    def allow(self, count: int, shortest: int, longest: int) -> bool:
        """Whether so many inputs between these lengths may be one pass."""
        if count * longest > self.max_num_batched_tokens:
            return False
        if self.max_batch_size is not None and count > self.max_batch_size:
            return False
        if self.bounds is None:
            return longest <= max(SHORT_INPUT_TOKENS, LENGTH_RATIO_MAX * shortest)
        return bisect_left(self.bounds, shortest) == bisect_left(self.bounds, longest) or not self.bounds


@dataclass(frozen=True, slots=True)
class Window:
    """Inputs of one pass, as `[first, last)` of an ascending list of lengths, with others chosen before."""

    first: int
    last: int
    count: int
    """Of the pass, those chosen before included; so are the lengths."""
    shortest: int
    longest: int


def length_buckets(inputs: Sequence[Sized], max_num_batched_tokens: int) -> list[list[int]]:
    """Divide inputs into forward passes by their lengths: lists of indices, longest inputs first.

    A pass pads to at most `max_num_batched_tokens`; only an input longer than that exceeds it, alone.
    """
    limits = PassLimits(max_num_batched_tokens)
    order = sorted(range(len(inputs)), key=lambda index: len(inputs[index]))
    lengths = [len(inputs[index]) for index in order]
    buckets = []
    while order:
        window = window_around(len(order) - 1, lengths, limits)
        buckets.append(order[window.first : window.last])
        del order[window.first : window.last], lengths[window.first : window.last]
    return buckets


def window_around(position: int, lengths: Sequence[int], limits: PassLimits) -> Window:
    """The input at `position` and the nearest to it in length, while they may be one pass."""
    length = lengths[position]
    return widened(Window(position, position + 1, 1, length, length), lengths, limits)


def window_beside(chosen: Window, lengths: Sequence[int], limits: PassLimits) -> Window:
    """Of another ascending list, those that may go with a pass of inputs chosen before."""
    position = bisect_left(lengths, chosen.longest)
    beside = Window(position, position, chosen.count, chosen.shortest, chosen.longest)
    return widened(beside, lengths, limits)


def widened(window: Window, lengths: Sequence[int], limits: PassLimits) -> Window:
    """The window with its neighbours, the nearest in length first, while they may be one pass."""
    first, last, count = window.first, window.last, window.count
    shortest, longest = window.shortest, window.longest
    while True:
        below = min(lengths[first - 1], shortest) if first > 0 else None
        above = max(lengths[last], longest) if last < len(lengths) else None
        if below is not None and not limits.allow(count + 1, below, longest):
            below = None
        if above is not None and not limits.allow(count + 1, shortest, above):
            above = None
        if below is not None and (above is None or longest - below <= above - shortest):
            first, shortest = first - 1, below
        elif above is not None:
            last, longest = last + 1, above
        else:
            return Window(first, last, count, shortest, longest)
        count += 1
