"""The text of one growing sequence, up to its first stop string, wherever token boundaries fall.

What comes out is a function of the tokens alone, however they arrive. How tokens become text is decided in
`decoders.py`. Knows no sequences and no tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .decoders import TextDecoder


class TextStream:
    """Text of one growing sequence, up to its first stop string."""

    __slots__ = ("_decoder", "_stop")

    def __init__(self, decoder: TextDecoder, stop: Sequence[str] = ()) -> None:
        self._decoder = decoder
        self._stop = StopMatcher(stop) if stop else None

    @property
    def is_stopped(self) -> bool:
        """A stop string has appeared; nothing will be emitted any more."""
        return self._stop is not None and self._stop.is_hit

    def push(self, token_id: int, *, look_for_stop: bool = True) -> str:
        """Text that is certain now that this token is known. May be empty, may be that of earlier tokens."""
        text = self._decoder.push(token_id)
        # Before it may stop a stop string cannot begin either: the text passes unexamined.
        return self._stop.push(text) if self._stop is not None and look_for_stop else text

    def finish(self) -> str:
        """Text still held back, once no more tokens will come."""
        text = self._decoder.finish()
        return text if self._stop is None else self._stop.push(text) + self._stop.flush()


class StopMatcher:
    """Passes text through until a stop string is complete, holding back what might become one.

    Of several stop strings the one that is complete first wins, so the result does not depend on how the text
    was cut into pieces.
    """

    __slots__ = ("_held", "_stops", "is_hit")

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.is_hit = False

    def push(self, text: str) -> str:
        """Text that can no longer be part of a stop string; once one is hit, nothing."""
        if self.is_hit or not text:
            return ""
        buffer = self._held + text
        match = self._first_complete(buffer)
        if match is not None:
            self.is_hit, self._held = True, ""
            return buffer[:match]
        safe = len(buffer) - self._longest_possible_start(buffer)
        self._held = buffer[safe:]
        return buffer[:safe]

    def flush(self) -> str:
        """Text held back, once no more will come."""
        held, self._held = self._held, ""
        return held

    def _first_complete(self, buffer: str) -> int | None:
        """Where the stop string begins that ends first (of those, the longest)."""
        found = [(buffer.find(stop), stop) for stop in self._stops]
        ends = [(start + len(stop), start) for start, stop in found if start >= 0]
        return min(ends)[1] if ends else None

    def _longest_possible_start(self, buffer: str) -> int:
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(buffer)), longest, -1):
                if buffer.endswith(stop[:length]):
                    longest = length
                    break
        return longest
