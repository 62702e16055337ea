"""The first tokens of texts that may be far longer, by reading only so much of them.

A text is tokenised up to a bit beyond a boundary: a place before a space, or before a mark between parts of
a sentence in Chinese or Japanese. What comes before it has the tokens that it has in the whole text, since
the tokenizer splits texts there, or has no token across it. Where no boundary comes in time, twice as much is
read: never more than three times the whole text.

                    size          reach
    text  |----------|--------------|-------------------------- not read
    tokens  right   ^ boundary  may be others
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidRequest

CHARS_PER_TOKEN = 8
"""Read at first for each token that is wanted: English has four or five to one."""
LEAST_CHARS = 64

_MARKS = "\u3001\u3002\uff0c\uff01\uff1f\uff1b\uff1a"
"""Comma, full stop and the like, as wide as a letter of Chinese."""

_SPACE = re.compile(r"(?<=\S)(?= )")
_SPACE_OR_MARK = re.compile(rf"(?<=\S)(?= )|(?<=\w)(?=[{_MARKS}])")
_ACROSS_A_SPACE = re.compile(r"[^\s▁Ġ][ ▁Ġ]")


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """The first tokens of a text, without special tokens."""

    encoded: Any
    """A `tokenizers.Encoding` of the whole text, or of a part of it."""
    num_right: int
    """Tokens that are the first of the whole text."""

    def is_cut_at(self, limit: int) -> bool:
        """Whether the text has more tokens than that."""
        return self.num_right > limit

    def up_to(self, limit: int) -> Any:
        """An encoding of the first `limit` tokens, or of all if there are fewer."""
        if len(self.encoded) <= limit:
            return self.encoded
        cut = type(self.encoded).merge([self.encoded])  # a copy: several inputs may have the same text
        cut.truncate(limit)
        return cut


class FirstTokensReader:
    """A `tokenizers.Tokenizer` that reads no more of a text than it must. Any thread may use it."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        added = backend.get_added_tokens_decoder().values()
        self._reach = 2 + max((len(token.content) for token in added), default=0)
        self._boundary = _boundary_of(backend)

    @property
    def reads_parts(self) -> bool:
        """Whether a text can be read in parts. False: the model may put any characters together."""
        return self._boundary is not None

    def read(self, texts: Sequence[str], limits: Sequence[int | None]) -> list[FirstTokens]:
        """Reads at least the first so many tokens of each text; None: all. Raises `InvalidRequest`."""
        sizes = [self._first_size(text, limit) for text, limit in zip(texts, limits, strict=True)]
        heads = self._encode([self._head(text, size) for text, size in zip(texts, sizes, strict=True)])
        return [self._enough(*text_limits) for text_limits in zip(texts, limits, sizes, heads, strict=True)]

    def _first_size(self, text: str, limit: int | None) -> int:
        if limit is None or self._boundary is None:
            return len(text)
        return min(len(text), max(LEAST_CHARS, CHARS_PER_TOKEN * limit))

    def _head(self, text: str, size: int) -> str:
        return text[: size + self._reach]

    def _enough(self, text: str, limit: int | None, size: int, encoded: Any) -> FirstTokens:
        while True:
            if size + self._reach >= len(text):
                return FirstTokens(encoded, len(encoded))
            assert limit is not None, "a text without a limit is read whole"
            num_right = self._num_right(text, size, encoded)
            if num_right > limit:  # one more, so that it is known to be cut
                return FirstTokens(encoded, num_right)
            size *= 2
            [encoded] = self._encode([self._head(text, size)])

    def _num_right(self, text: str, size: int, encoded: Any) -> int:
        """Tokens that end before the last boundary."""
        assert self._boundary is not None, "texts are read in parts"
        end = max((match.start() for match in self._boundary.finditer(text, 0, size + 1)), default=0)
        return next((index for index, (_, last) in enumerate(encoded.offsets) if last > end), len(encoded))

    def _encode(self, texts: Sequence[str]) -> list[Any]:
        try:
            return self._backend.encode_batch(texts, add_special_tokens=False)  # type: ignore[no-any-return]
        except (TypeError, UnicodeEncodeError) as error:
            raise InvalidRequest(f"the text is none that UTF-8 can hold: {error}") from error


def _boundary_of(backend: Any) -> re.Pattern[str] | None:
    """A pattern of places whose two sides have independent tokens. None: such places are not known."""
    if all(_splits(backend, before, " cd") for before in ("ab", "12", "?!")):
        has_marks = all(_splits(backend, "\u5b57", f"{mark}\u5b57") for mark in _MARKS)
        return _SPACE_OR_MARK if has_marks else _SPACE
    # A whole text is one word: nothing is put together that no token of its has.
    is_apart = not any(_ACROSS_A_SPACE.search(token) for token in backend.get_vocab(with_added_tokens=False))
    return _SPACE if is_apart else None


def _splits(backend: Any, before: str, after: str) -> bool:
    """Whether it makes words of a text before it looks for tokens, and different ones of these two."""
    encoded = backend.encode(before + after, add_special_tokens=False)
    starts: dict[int | None, int] = {}
    for word, (start, end) in zip(encoded.word_ids, encoded.offsets, strict=True):
        if starts.setdefault(word, start) < len(before) < end:
            return False
    return len(starts) > 1
