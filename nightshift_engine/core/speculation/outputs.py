"""Drafts from the outputs of a job: its rows resemble one another, so what mostly followed may follow again.

The place of a suffix tree is taken by its two depths that matter: the token that mostly followed the last
`LONG` tokens, and the last `SHORT`. Majority by Boyer and Moore (1981) keeps one candidate and one number.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

LONG = 6
SHORT = 2
WEIGHT_BITS = 6
_WEIGHTS = (1 << WEIGHT_BITS) - 1


class JobOutputs:
    """Tokens that mostly followed others in the outputs of one job."""

    def __init__(self) -> None:
        self._next: dict[
            int, int
        ] = {}  # hash of the tokens before: the candidate, and its lead in the low bits

    def __len__(self) -> int:
        """Contexts that are kept, at about 150 bytes each."""
        return len(self._next)

    def learn(self, tokens: array[int], start: int, *, is_full: bool) -> None:
        """Takes in the tokens from the `start`-th on. With `is_full`, no new contexts are kept."""
        kept = self._next
        for place in range(max(start, LONG), len(tokens)):
            token = tokens[place]
            for length in (LONG, SHORT):
                context = hash(tokens[place - length : place].tobytes())
                entry = kept.get(context)
                if entry is not None:
                    kept[context] = _voted(entry, token)
                elif not is_full:
                    kept[context] = token << WEIGHT_BITS | 1

    def follow(self, tokens: array[int]) -> Iterator[tuple[int, bool, int]]:
        """Tokens likely to follow, one after another: token, whether the longer context knew it, and its lead
        over other tokens.
        """
        context = tokens[-LONG:]
        if len(context) < LONG:
            return
        while True:
            entry = self._next.get(hash(context.tobytes()))
            is_long = entry is not None
            if entry is None:
                entry = self._next.get(hash(context[-SHORT:].tobytes()))
            if entry is None:
                return
            token = entry >> WEIGHT_BITS
            yield token, is_long, entry & _WEIGHTS
            del context[0]
            context.append(token)


def _voted(entry: int, token: int) -> int:
    """The candidate and its lead after one more token has come."""
    lead = entry & _WEIGHTS
    if entry >> WEIGHT_BITS == token:
        return entry + (lead < _WEIGHTS)
    return entry - 1 if lead > 1 else token << WEIGHT_BITS | 1
