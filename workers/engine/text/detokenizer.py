"""Tokens back to text, one at a time: text appears as soon as its characters are whole.

What comes out is a function of the tokens alone, however they arrive. Stop strings are found wherever token
boundaries fall. Knows no sequences and no tensors.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

REPLACEMENT_CHARACTER = "\ufffd"


class TextDecoder(Protocol):
    """Turns tokens into text as they come."""

    def push(self, token_id: int) -> str:
        """Text that is certain now that this token is known."""

    def finish(self) -> str:
        """What is left, once no more tokens will come: half a character becomes U+FFFD."""


class ByteTextDecoder:
    """For tokenizers whose tokens are bytes (byte-level BPE): a table look-up and a UTF-8 decoder.

    Gives what `Tokenizer.decode` gives of all tokens at once, because joining bytes is all that does.
    """

    __slots__ = ("_partial", "_prompts", "_token_bytes")

    def __init__(self, token_bytes: Callable[[int], bytes], prompt_tail: Sequence[int]) -> None:
        """`token_bytes` is empty for what leaves no text."""
        self._token_bytes = token_bytes
        self._partial = b""
        self._prompts = 0
        for token in prompt_tail:
            self.push(token)
        self._prompts = int(self._partial != b"")  # a character that began in the prompt is the prompt's

    def push(self, token_id: int) -> str:
        buffer = self._partial + self._token_bytes(token_id)
        text, num_bytes = codecs.utf_8_decode(buffer, "replace", False)
        self._partial = buffer[num_bytes:]
        return self._without_prompt(text) if self._prompts else text

    def finish(self) -> str:
        text, self._partial = self._partial.decode(errors="replace"), b""
        return self._without_prompt(text)

    def _without_prompt(self, text: str) -> str:
        num_skipped = min(self._prompts, len(text))
        self._prompts -= num_skipped
        return text[num_skipped:]


class WindowTextDecoder:
    """For all other tokenizers: decodes the last few tokens again with each new one, and cuts off what was.

    ids      ... emitted ...| context, whose text is known | pending ...
                            |                              |  not yet whole characters
    A token may join the one before it (spaces, half characters), which is why it needs company. The context
    is kept as short as that allows: two decodes of a token or two cost less than one of a dozen. (The
    library's own `DecodeStream` is faster still, but raises on broken characters.)
    """

    __slots__ = ("_context", "_context_text", "_decode", "_pending")

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt_tail: Sequence[int]) -> None:
        self._decode = decode
        self._context = list(prompt_tail)
        self._context_text = decode(self._context)
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        self._pending.append(token_id)
        decoded = self._decode(self._context + self._pending)
        if decoded.endswith(REPLACEMENT_CHARACTER) or len(decoded) <= len(self._context_text):
            return ""
        return self._advance(decoded)

    def finish(self) -> str:
        return self._advance(self._decode(self._context + self._pending))

    def _advance(self, decoded: str) -> str:
        text = decoded[len(self._context_text) :]
        if self._pending:
            self._context, self._pending = self._pending, []
            self._context_text = self._decode(self._context)
        return text


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
