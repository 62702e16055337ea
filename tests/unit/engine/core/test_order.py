"""A heap whose members leave from its middle, and the first of several flows, against plain lists."""

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift_engine.core.order.turns import DEPARTED_MAX, STALE_MAX, FlowOrder, RankedHeap


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


def test_what_leaves_is_not_held_for_long_however_often_it_comes_back() -> None:
    there = {-1}
    heap = RankedHeap[int](there.__contains__)
    heap.push(0, -1, -1)

    def come_and_go(number: int) -> None:
        there.add(number)
        heap.push(1, number, number)
        there.discard(number)

    for number in range(5 * DEPARTED_MAX):
        come_and_go(number)
    assert len(heap) <= DEPARTED_MAX + 2
    for _ in range(5 * DEPARTED_MAX):
        come_and_go(1)
    there.add(1)
    for _ in range(5 * DEPARTED_MAX):
        heap.push(1, 1, 1)

    assert heap.first() == (0, -1)
    assert len(heap) <= DEPARTED_MAX + 4


Steps = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "rise", "fall", "hold", "release"]), st.sampled_from("abcd")),
    max_size=80,
)


@settings(max_examples=200, deadline=None)
@given(steps=Steps)
def test_the_first_is_the_lowest_that_is_not_held_and_of_equal_ones_the_one_that_waited_longest(
    steps: list[tuple[str, str]],
) -> None:
    ranks, waiting, began, held = Counter[str](), Counter[str](), dict[str, int](), set[str]()
    order = FlowOrder(ranks.__getitem__)
    for now, (step, flow) in enumerate(steps):
        if step == "add":
            if not waiting[flow]:
                began[flow] = now
            waiting[flow] += 1
            order.add(flow)
        elif step == "remove" and waiting[flow]:
            waiting[flow] -= 1
            order.remove(flow)
        elif step == "rise":
            ranks[flow] += 2
        elif step == "fall" and waiting[flow]:
            ranks[flow] -= 1
            order.fell(flow)
        elif step == "hold":
            held.add(flow)
            order.hold(flow)
        elif step == "release":
            held.discard(flow)
            order.release(flow)
        may_be = [flow for flow in began if waiting[flow] and flow not in held]
        expected = min(may_be, key=lambda flow: (ranks[flow], began[flow]), default=None)
        assert order.first() == expected


def test_flows_that_come_and_go_behind_one_that_stays_are_not_kept() -> None:
    order = FlowOrder({"first": 0, "other": 1}.__getitem__)
    order.add("first")
    for _ in range(10 * STALE_MAX):
        order.add("other")
        order.hold("other")
        order.release("other")
        order.remove("other")

    assert order.first() == "first"
    assert len(order) <= STALE_MAX + 4
