"""The first of several flows, whatever their ranks become and whichever are held."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift_engine.core.order import STALE_MAX, FlowOrder

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
