"""Texts and pairs of texts to tokens, with a limit that cuts the last text only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import NoRoomForText
from ...text.first_tokens import FirstTokensReader

if TYPE_CHECKING:
    from ...text.tokenizer import Tokenizer  # which imports torch

_SAMPLE = "a"

_Key = tuple[str, int | None]
"""A text, and the tokens at which it is cut; None: it is not."""


@dataclass(frozen=True, slots=True)
class PairText:
    """A text, or two that are scored together."""

    text: str
    pair: str | None = None
    max_tokens: int | None = None
    """Cut the last text so that it all has at most so many tokens; None: never."""
    instruction: str | None = None
    """A sentence that says why the two belong together, for models that read it; None: their own."""
    pair_tokens_max: int | None = None
    """Cut `pair` to so many tokens of its own; None: never."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Tokens that a tokenizer puts around and between texts, and the text of each token."""

    around: tuple[tuple[int, ...], ...]
    """Token ids: before the first text, after each."""
    around_types: tuple[tuple[int, ...], ...]
    text_types: tuple[int, ...]

    @classmethod
    def read(cls, sample: Any, num_texts: int) -> Frame:
        """Reads an `Encoding` of so many texts. Raises ValueError where they do not follow one another."""
        of_text = [-1 if text is None else text for text in sample.sequence_ids]
        places = [[at for at, text in enumerate(of_text) if text == number] for number in range(num_texts)]
        if not all(places) or any(indices != [*range(indices[0], indices[-1] + 1)] for indices in places):
            raise ValueError(f"its tokenizer does not put {num_texts} texts after one another: {of_text}")
        starts, ends = [indices[0] for indices in places], [indices[-1] + 1 for indices in places]
        gaps = [slice(*bounds) for bounds in zip([0, *ends], [*starts, len(of_text)], strict=True)]
        return cls(
            around=tuple(tuple(sample.ids[gap]) for gap in gaps),
            around_types=tuple(tuple(sample.type_ids[gap]) for gap in gaps),
            text_types=tuple(sample.type_ids[start] for start in starts),
        )

    @property
    def num_special(self) -> int:
        return sum(map(len, self.around))


@dataclass(frozen=True, slots=True)
class FramedTokens:
    """Texts within their frame. They are put together only when they run: many may share one text."""

    frame: Frame
    texts: tuple[Sequence[int], ...]

    def __len__(self) -> int:
        return self.frame.num_special + sum(map(len, self.texts))

    @property
    def token_ids(self) -> list[int]:
        first, *around = self.frame.around
        return [
            *first,
            *(id for pair in zip(self.texts, around, strict=True) for part in pair for id in part),
        ]

    @property
    def type_ids(self) -> list[int]:
        first, *around = self.frame.around_types
        of_texts = ([type] * len(text) for type, text in zip(self.frame.text_types, self.texts, strict=True))
        return [*first, *(id for pair in zip(of_texts, around, strict=True) for part in pair for id in part)]


class PairTokenizer:
    """A model's tokenizer for one text or two. Any thread may use it.

    Each different text is tokenised once, as the query of many documents is one.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises ValueError where it does not put two texts after one another."""
        self._backend = tokenizer.plain_backend()
        self._reader = FirstTokensReader(self._backend)
        samples = self._backend.encode(_SAMPLE), self._backend.encode(_SAMPLE, _SAMPLE)
        self._frames = [Frame.read(sample, number) for number, sample in enumerate(samples, start=1)]

    @property
    def reads_parts(self) -> bool:
        """Whether a text that will be cut is read no further than it must be."""
        return self._reader.reads_parts

    @property
    def takes_pairs(self) -> bool:
        """Whether it puts something between two texts; else they would run into one another."""
        return bool(self._frames[1].around[1])

    @property
    def special_ids(self) -> frozenset[int]:
        """All that it puts around texts."""
        return frozenset(id for frame in self._frames for part in frame.around for id in part)

    @property
    def num_types(self) -> int:
        """The number of texts that the model tells apart."""
        return 1 + max(self._frames[1].text_types)

    def tokenize(self, inputs: Sequence[PairText]) -> list[FramedTokens]:
        """Raises `InvalidRequest` where a text is none, or nothing is left of one that is cut."""
        pieces = self._pieces(inputs)
        return [self._framed(input, pieces) for input in inputs]

    def _pieces(self, inputs: Sequence[PairText]) -> dict[_Key, Sequence[int]]:
        """The token ids of each text without special tokens, by the text and its limit."""
        wanted = [*dict.fromkeys(key for input in inputs for key in _keys(input))]
        beginnings = self._reader.read([text for text, _ in wanted], [limit for _, limit in wanted])
        return {key: first.encoded.ids[: key[1]] for key, first in zip(wanted, beginnings, strict=True)}

    def _framed(self, one: PairText, pieces: dict[_Key, Sequence[int]]) -> FramedTokens:
        frame = self._frames[one.pair is not None]
        *before, last = (pieces[key] for key in _keys(one))
        if one.max_tokens is not None:
            room = one.max_tokens - frame.num_special - sum(map(len, before))
            if room < 1:
                raise NoRoomForText(one.max_tokens)
            last = last[:room]
        return FramedTokens(frame, (*before, last))


def _keys(one: PairText) -> list[_Key]:
    """The texts of a pair, each with the number of tokens at which it is cut: only the last one is."""
    if one.pair is None:
        return [(one.text, one.max_tokens)]
    limits = [limit for limit in (one.max_tokens, one.pair_tokens_max) if limit is not None]
    return [(one.text, None), (one.pair, min(limits, default=None))]
