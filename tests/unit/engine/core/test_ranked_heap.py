"""A heap whose members leave from its middle, against a sorted list."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from nightshift_engine.core.order import DEPARTED_MAX, RankedHeap


@given(st.lists(st.one_of(st.integers(0, 9), st.none()), max_size=60), st.randoms(use_true_random=False))
def test_the_first_is_the_lowest_of_those_that_are_there(ranks: list[int | None], random: Random) -> None:
    there: dict[int, int] = {}
    heap = RankedHeap[int](there.__contains__)
    for number, rank in enumerate(ranks):
        if rank is not None:
            there[number] = rank
            heap.push(rank, number, number)
        elif there:
            del there[random.choice(sorted(there))]
        lowest = min(((rank, number) for number, rank in there.items()), default=None)
        assert heap.first() == lowest


def test_what_has_left_is_not_held_for_long() -> None:
    there = {-1}
    heap = RankedHeap[int](there.__contains__)
    heap.push(0, -1, -1)
    for number in range(5 * DEPARTED_MAX):
        there.add(number)
        heap.push(1, number, number)
        there.discard(number)

    assert heap.first() == (0, -1)
    assert len(heap) <= DEPARTED_MAX + 2


def test_what_leaves_and_comes_back_again_and_again_is_held_a_few_times() -> None:
    there = {-1}
    heap = RankedHeap[int](there.__contains__)
    heap.push(0, -1, -1)
    for _ in range(5 * DEPARTED_MAX):
        there.add(1)
        heap.push(1, 1, 1)
        there.discard(1)
    there.add(1)
    for _ in range(5 * DEPARTED_MAX):
        heap.push(1, 1, 1)

    assert heap.first() == (0, -1)
    assert len(heap) <= DEPARTED_MAX + 4
