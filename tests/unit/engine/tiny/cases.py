"""Chooses cases for parametrised tests: all pairs of values, or a few by default and the others on demand."""

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import Any

import pytest
from _pytest.mark import ParameterSet

Case = tuple[Any, ...]


def mostly_exhaustive(values: Iterable[Any], default: Container[Any]) -> list[ParameterSet]:
    """Parameters of a test, of which `make test` runs those in `default`, and `make test-all` every one."""
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=() if value in default else pytest.mark.exhaustive,
        )
        for value in values
    ]


def pairwise(*parameters: Sequence[Any]) -> list[Case]:
    """Cases in which all values of any two `parameters` are combined; the same ones on every call.

    Greedy: each case is the one of the full product that has most pairs not combined yet.
    """
    candidates = [*product(*(range(len(values)) for values in parameters))]
    missing = {pair for candidate in candidates for pair in _pairs(candidate)}
    chosen: list[Case] = []
    while missing:
        best = max(candidates, key=lambda candidate: _num_in(missing, candidate))
        missing.difference_update(_pairs(best))
        chosen.append(tuple(values[index] for values, index in zip(parameters, best, strict=True)))
    return chosen


def _pairs(candidate: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Every two (parameter, value) of a candidate."""
    yield from combinations(enumerate(candidate), 2)


def _num_in(missing: Collection[object], candidate: tuple[int, ...]) -> int:
    return sum(pair in missing for pair in _pairs(candidate))
