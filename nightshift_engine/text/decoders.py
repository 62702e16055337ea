"""Tokens to text, one at a time: a character appears as soon as it is whole, and never changes.

Three decoders, by what a tokenizer's tokens are: bytes, pieces of text that may join the one before them, and
such pieces with a token per byte for characters that are in no piece. All give what decoding prompt and
output in one go gives beyond the prompt; a character that begins in the prompt is the prompt's.
"""

import codecs
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Protocol

REPLACEMENT_CHARACTER = "\ufffd"

CHARACTER_BYTES_MAX = 4
PARTIAL_BYTES_MAX = 3
"""Bytes of a character in UTF-8 whose last byte is missing."""
WINDOW_TOKENS_MAX = 16
"""Tokens that a window may hold while it ends in half a character."""

Decode = Callable[[Sequence[int]], str]
"""Text of tokens in one go, silent ones left out."""


class TextDecoder(Protocol):
    """Turns tokens into text as they come."""

    def push(self, token_id: int) -> str:
        """Text that is certain now that this token is known."""

    def finish(self) -> str:
        """The text that is left, once no more tokens will come: half a character becomes U+FFFD."""


class ByteTextDecoder:
    """Decodes tokens that are bytes (byte-level BPE): a table look-up and a UTF-8 decoder."""

    __slots__ = ("_num_prompt_characters", "_partial", "_token_bytes")

    def __init__(self, token_bytes: Callable[[int], bytes], prompt: Sequence[int]) -> None:
        """`token_bytes` is empty for what leaves no text."""
        self._token_bytes = token_bytes
        self._partial = self._partial_of(prompt)
        self._num_prompt_characters = int(self._partial != b"")

    def push(self, token_id: int) -> str:
        buffer = self._partial + self._token_bytes(token_id)
        text, num_bytes = codecs.utf_8_decode(buffer, "replace", False)
        self._partial = buffer[num_bytes:]
        return self._without_prompt(text) if self._num_prompt_characters else text

    def finish(self) -> str:
        text, self._partial = self._partial.decode(errors="replace"), b""
        return self._without_prompt(text)

    def _partial_of(self, prompt: Sequence[int]) -> bytes:
        """The bytes at the end of a prompt that are no whole character yet."""
        tail = b""
        for token in reversed(prompt):
            tail = self._token_bytes(token) + tail
            if len(tail) >= PARTIAL_BYTES_MAX:  # the one that begins the character is among them
                break
        _, num_bytes = codecs.utf_8_decode(tail, "replace", False)
        return tail[num_bytes:]

    def _without_prompt(self, text: str) -> str:
        num_skipped = min(self._num_prompt_characters, len(text))
        self._num_prompt_characters -= num_skipped
        return text[num_skipped:]


class WindowTextDecoder:
    """Decodes tokens that are pieces of text, each in the company of the one before, and cuts that off.

        ids      ... emitted ...| context, whose text is known | pending ...
                                |                              |  ends in half a character

    A token may join the one before it (spaces), which is why it needs company. The window is kept as short as
    that allows. (The library's own `DecodeStream` is faster still, but raises on broken characters.)
    """

    __slots__ = ("_decode", "_ends_in_halves", "_is_silent", "_num_context", "_num_emitted", "_window")

    _num_emitted: int
    """Characters of the window's text that have been emitted, or are the prompt's."""

    def __init__(
        self,
        decode: Decode,
        is_silent: Callable[[int], bool],
        prompt: Sequence[int] = (),
        *,
        ends_in_halves: bool = False,
    ) -> None:
        """`is_silent` tells tokens that leave no text.

        `ends_in_halves`: a token may end in half a character, which decodes to one U+FFFD.
        """
        self._decode = decode
        self._is_silent = is_silent
        self._ends_in_halves = ends_in_halves
        num_context = CHARACTER_BYTES_MAX + PARTIAL_BYTES_MAX if ends_in_halves else 1
        visible = (token for token in reversed(prompt) if not is_silent(token))
        self.replace_context([*islice(visible, num_context)][::-1])

    def push(self, token_id: int) -> str:
        return "" if self._is_silent(token_id) else self.push_together([token_id])

    def push_together(self, token_ids: Sequence[int]) -> str:
        """Text that is certain now that these tokens, none of them silent, are known."""
        self._window += token_ids
        decoded = self._decode(self._window)
        is_half = self._ends_in_halves and decoded.endswith(REPLACEMENT_CHARACTER)
        end = len(decoded) - is_half
        text = decoded[self._num_emitted : end]
        if not is_half:
            self.replace_context(self._window[self._num_context :])
            return text
        self._num_emitted = max(self._num_emitted, end)
        if len(self._window) > WINDOW_TOKENS_MAX:  # only the end of so many can still change
            num_pending = len(decoded) - self._num_emitted
            self.replace_context(self._window[-CHARACTER_BYTES_MAX:])
            self._num_emitted -= num_pending
        return text

    def finish(self) -> str:
        return self._decode(self._window)[self._num_emitted :]

    def replace_context(self, token_ids: list[int]) -> None:
        """Goes on after these tokens, whose text has been emitted, or is the prompt's."""
        self._window = token_ids
        self._num_context = len(token_ids)
        self._num_emitted = len(self._decode(token_ids)) if token_ids else 0


class FallbackTextDecoder:
    """Decodes pieces of text with byte fallback (sentencepiece): bytes are joined here, character by
    character.

    The library decodes a run of byte tokens as a whole, and gives U+FFFD for each byte if any part of the run
    is no UTF-8. What is emitted cannot be taken back, so here, as in sentencepiece itself, a byte that
    belongs to no character is one U+FFFD, and whole characters beside it stay what they are.
    """

    __slots__ = ("_byte_by_token", "_held", "_is_after_broken", "_is_silent", "_num_prompt_bytes", "_window")

    def __init__(
        self,
        decode: Decode,
        is_silent: Callable[[int], bool],
        byte_by_token: Mapping[int, int],
        prompt: Sequence[int] = (),
    ) -> None:
        """`is_silent` tells tokens that leave no text, `byte_by_token` those that are one byte."""
        self._is_silent = is_silent
        self._byte_by_token = byte_by_token
        self._window = WindowTextDecoder(decode, is_silent)
        self._held: list[int] = []  # the beginning of a character
        self._is_after_broken = False
        self._num_prompt_bytes = 0  # of those held
        for token in self._tail_of(prompt):
            self.push(token)
        self._num_prompt_bytes = len(self._held)

    def push(self, token_id: int) -> str:
        if token_id in self._byte_by_token:
            return self._push_byte(token_id)
        if self._is_silent(token_id):
            return ""
        broken = self._break()
        self._is_after_broken = False
        return broken + self._window.push_together([token_id])

    def finish(self) -> str:
        return self._break()

    def _push_byte(self, token: int) -> str:
        character = bytes(self._byte_by_token[token_id] for token_id in [*self._held, token])
        try:
            text, num_bytes = codecs.utf_8_decode(character, "strict", False)
        except UnicodeDecodeError:
            if self._held:  # they are broken; this byte may begin a character
                return self._break() + self._push_byte(token)
            self._held = [token]
            return self._break()
        self._held.append(token)
        return self._emit_character(text) if num_bytes else ""

    def _emit_character(self, character: str) -> str:
        """The bytes held are a whole character. One that begins in the prompt is the prompt's."""
        tokens, self._held = self._held, []
        if self._is_after_broken:  # the library would not tell these bytes from the broken ones
            text = character
            self._window.replace_context(tokens)
            self._is_after_broken = False
        else:
            text = self._window.push_together(tokens)
        is_prompts, self._num_prompt_bytes = self._num_prompt_bytes > 0, 0
        return "" if is_prompts else text

    def _break(self) -> str:
        """The bytes held become no character: U+FFFD for each that is not the prompt's."""
        if not self._held:
            return ""
        num_broken = len(self._held) - self._num_prompt_bytes
        self._window.replace_context(self._held[-1:])
        self._is_after_broken = True
        self._held, self._num_prompt_bytes = [], 0
        return REPLACEMENT_CHARACTER * num_broken

    def _tail_of(self, prompt: Sequence[int]) -> list[int]:
        """Tokens at the end of a prompt that decide how what follows is decoded.

        The last piece of text and what comes after it, or as many bytes as a character, and half of the next.
        """
        tail: list[int] = []
        for token in reversed(prompt):
            if self._is_silent(token):
                continue
            tail.append(token)
            if token not in self._byte_by_token or len(tail) == CHARACTER_BYTES_MAX + PARTIAL_BYTES_MAX:
                break
        return tail[::-1]


class TrimmedTextDecoder:
    """The text of another decoder without the line ends at its beginning, and at its end if asked."""

    __slots__ = ("_decoder", "_has_begun", "_held", "_trims_end")

    def __init__(self, decoder: TextDecoder, *, trims_end: bool = False) -> None:
        self._decoder = decoder
        self._trims_end = trims_end
        self._has_begun = False
        self._held = ""  # line ends, which may be the last ones

    def push(self, token_id: int) -> str:
        return self._trim(self._decoder.push(token_id))

    def finish(self) -> str:
        return self._trim(self._decoder.finish())

    def _trim(self, text: str) -> str:
        if not self._has_begun:
            text = text.lstrip("\n")
            self._has_begun = bool(text)
        if not self._trims_end:
            return text
        text = self._held + text
        shown = text.rstrip("\n")
        self._held = text[len(shown) :]
        return shown


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
    """Passes text through until a stop string is complete, holding back what might become one."""

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
        """The start of the stop string that ends first (of those, the longest)."""
        starts = [(buffer.find(stop), stop) for stop in self._stops]
        ends = [(start + len(stop), start) for start, stop in starts if start >= 0]
        return min(ends)[1] if ends else None

    def _longest_possible_start(self, buffer: str) -> int:
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(buffer)), longest, -1):
                if buffer.endswith(stop[:length]):
                    longest = length
                    break
        return longest
