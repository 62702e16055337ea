"""Sequences of a class whose turn it was and for which too little memory was free, in that order.

A few later ones that need less may pass each; then the memory that becomes free is its own.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Final

from .sequence import Sequence

SET_ASIDE_MAX: Final = 4
"""Of a class. A further one that does not fit keeps those behind it waiting."""
PASSES_ASIDE_MAX: Final = 32
"""Admissions of later sequences of its class, after which none of them goes before it."""


@dataclass(slots=True)
class _Place:
    missing: int
    num_passes: int = 0

    @property
    def is_closed(self) -> bool:
        return self.num_passes >= PASSES_ASIDE_MAX


class SetAside:
    def __init__(self) -> None:
        self._places: dict[Sequence, _Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._places)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._places

    @property
    def is_full(self) -> bool:
        return len(self._places) == SET_ASIDE_MAX

    @property
    def is_closed(self) -> bool:
        """One has been passed as often as any may be."""
        return any(place.is_closed for place in self._places.values())

    def missing(self, sequence: Sequence) -> int:
        """Blocks that it lacked when it was tried last."""
        return self._places[sequence].missing

    def put(self, sequence: Sequence, missing: int) -> None:
        """Also one that is here already, with what it lacks now."""
        if (place := self._places.get(sequence)) is not None:
            place.missing = missing
        else:
            self._places[sequence] = _Place(missing)

    def discard(self, sequence: Sequence) -> None:
        del self._places[sequence]

    def next(self, tried: Container[Sequence]) -> Sequence | None:
        """The first that has not been tried; None after one that has been passed as often as any may be."""
        for sequence, place in self._places.items():
            if sequence not in tried:
                return sequence
            if place.is_closed:
                return None
        return None

    def passed_by(self, admitted: Sequence | None) -> None:
        """A sequence is admitted, past those before it; None: one of another class."""
        for sequence, place in self._places.items():
            if sequence is admitted:
                return
            place.num_passes += 1
