"""Requests of one flow do not hold up those of another of their class, however many or long they are."""

from collections import Counter
from itertools import takewhile

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nightshift_engine.core.batcher import NEW_TOKENS_BETWEEN_LOSSES
from nightshift_engine.core.order.turns import FairTurns, FlowOrder
from tests.unit.engine.core.test_batcher import FakeModel, ids
from tests.unit.engine.tiny.cases import pairwise


def test_a_short_prompt_is_computed_in_the_next_step_beside_the_longest_of_another_flow() -> None:
    model = FakeModel(blocks=4_000, slots=8, budget=64)
    for number in range(3):
        model.add(f"long-{number}", 1_000, flow="long")
    for _ in range(3):
        model.step()

    model.add("short", 10, flow="short")
    chunks = {chunk.sequence.id: chunk.num_tokens for chunk in model.step()}

    assert chunks == {"short": 10, "long-0": 54}, "and nothing of the step is left empty"


def test_prompts_of_two_flows_share_the_steps() -> None:
    model = FakeModel(blocks=4_000, slots=8, budget=64)
    for number in range(4):
        model.add(f"a-{number}", 640, flow="a")
    model.add("b-0", 640, flow="b")

    computed = Counter(chunk.sequence.flow for _ in range(16) for chunk in model.step())

    assert computed == {"a": 8, "b": 8}


def test_a_flow_that_has_long_answers_has_fewer_requests_admitted() -> None:
    """All slots are always taken: those of 50 answers of 10 tokens are those of 5 or 6 of 90."""
    model = FakeModel(blocks=400, slots=4, budget=64)
    for number in range(100):
        model.add(f"long-{number}", 10, new=90, flow="long")
        model.add(f"short-{number}", 10, new=10, flow="short")
    while sum(id.startswith("short") for id in model.finished) < 50:
        model.step()

    assert sum(id.startswith("long") for id in model.finished) == pytest.approx(5.5, abs=2)


LONG = 500  # tokens of an answer that holds a slot for as long as a test takes


def fill(model: FakeModel, how: str, flow: str = "many") -> None:
    """Takes all slots for long, with one request of many choices or with many requests of one."""
    for number in range(3 * model.slots if how == "many requests" else model.slots):
        group = "job" if how == "rows" else None
        model.add(f"{flow}-{number}", 6, new=LONG, group=group, flow=flow)
    for _ in range(20):
        model.step()
    assert model.batcher.num_running == model.slots


def steps_until(model: FakeModel, id: str) -> int:
    """Steps that are begun before one that computes some of a sequence."""
    for step in range(10 * LONG):
        if any(chunk.sequence.id == id for chunk in model.step()):
            return step
    raise AssertionError(f"{id} has not begun")


@pytest.mark.parametrize(
    ("how", "prompt", "slots"), pairwise(["choices", "many requests", "rows"], [1, 60, 200], [2, 8])
)
def test_each_of_a_tenants_requests_begins_at_once_where_another_has_taken_all_slots(
    how: str, prompt: int, slots: int
) -> None:
    """One after the other, however many tokens those before it had."""
    model = FakeModel(blocks=4_000, slots=slots, budget=64)
    fill(model, how)
    for number in range(8):
        model.add(f"one-{number}", prompt, new=3, group="job" if how == "rows" else None, flow="one")
        # What its own last prompt had beyond the others' part of those steps is waited for.
        assert steps_until(model, f"one-{number}") <= 2 + prompt // model.budget
        while f"one-{number}" not in model.finished:
            model.step()

    assert model.batcher.num_tokens_recomputed == 0, (
        "who yields a slot keeps its memory while there is enough"
    )


def test_slots_are_shared_and_no_swap_is_undone() -> None:
    """Each flow yields once for each slot beyond its part, and then all run to their end."""
    model = FakeModel(blocks=4_000, slots=8, budget=64)
    fill(model, "choices", "a")
    for flow in "bcd":
        for number in range(4):
            model.add(f"{flow}-{number}", 6, new=LONG, flow=flow)
    for _ in range(60):
        model.step()
    running = Counter(sequence.flow for sequence in model.batcher.running)
    yielded = model.batcher.num_preemptions

    for _ in range(LONG // 4):
        model.step()

    assert running == dict.fromkeys("abcd", 2)
    assert Counter(sequence.flow for sequence in model.batcher.running) == running
    assert yielded == model.batcher.num_preemptions <= 8


def test_memory_is_yielded_with_the_slots_and_every_sequence_still_ends() -> None:
    """One flow holds most blocks. Each request of another takes its own from it, and no more is lost."""
    model = FakeModel(blocks=256, slots=4, budget=64)
    for number in range(4):
        model.add(f"many-{number}", 200, new=56, flow="many")
    for _ in range(14):
        model.step()
    for number in range(6):
        model.add(f"one-{number}", 300, new=1, flow="one")
        # All may have lost some for the one before.
        assert steps_until(model, f"one-{number}") <= NEW_TOKENS_BETWEEN_LOSSES + 2 + 300 // model.budget
    model.run()

    assert len(model.finished) == 10
    assert 0 < model.batcher.num_tokens_recomputed <= 6 * (300 + 4)


def test_rows_of_two_flows_share_their_beginnings_as_if_each_were_alone() -> None:
    model = FakeModel(blocks=400, slots=2, budget=64)
    for number in range(24):  # of each flow three documents, asked four questions each, in turn
        document = number % 6
        tokens = [*[document] * 20, 100 + number]
        model.add(str(number), tokens, group="job", flow="ab"[document % 2])
    model.run()

    assert model.batcher.num_tokens_reused == 6 * 3 * 20


def test_a_preempted_sequence_goes_on_before_those_of_its_flow_that_came_later() -> None:
    model = FakeModel(blocks=100, slots=1, budget=64)
    model.add("first", 8, new=20, flow="a", priority="background")
    model.step()
    model.add("second", 8, flow="a", priority="background")
    model.add("urgent", 8, flow="b", priority="interactive")
    model.run()

    assert model.finished == ["urgent", "first", "second"]


def test_a_more_urgent_class_comes_first_whatever_its_flow_has_had() -> None:
    model = FakeModel(blocks=400, slots=1, budget=64)
    for number in range(3):
        model.add(f"urgent-{number}", 40, flow="a", priority="interactive")
    model.add("other", 1, flow="b", priority="standard")
    model.run()

    assert model.finished[-1] == "other"


def test_a_flow_that_comes_and_goes_has_no_more_than_one_that_stays() -> None:
    """It fills all slots for one step, and comes back when they are free, so that none of it waits then."""
    model = FakeModel(blocks=400, slots=4, budget=64)
    for number in range(400):
        model.add(f"stays-{number}", 5, new=1, flow="stays")
    for _ in range(100):
        if not any(sequence.flow == "comes" for sequence in model.batcher.waiting):
            for _ in range(4):
                model.add(f"comes-{model.arrivals}", 5, new=1, flow="comes")
        model.step()

    assert sum(id.startswith("stays") for id in model.finished) == pytest.approx(200, abs=8)


def test_flows_that_left_are_forgotten() -> None:
    turns = FairTurns()
    order = FlowOrder(turns.start)
    turns.join("stays")
    for number in range(1_000):
        turns.join(str(number))
        order.add(str(number))
        turns.took(turns.start("stays"))
        for flow in (str(number), "stays"):
            turns.serve(flow, 100)
        order.remove(str(number))
        turns.remove(str(number))

    assert order.first() is None
    assert turns.num_flows == 1
    assert turns.num_remembered <= 3
    turns.remove("stays")
    assert turns.num_remembered == 0


Lengths = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)), min_size=1, max_size=5)


@settings(max_examples=15, deadline=None)
@given(
    flows=st.lists(Lengths, min_size=2, max_size=4),
    slots=st.integers(2, 6),
    budget=st.integers(8, 48),
    group=st.sampled_from([None, "job"]),
)
def test_flows_that_always_wait_have_as_much_each(
    flows: list[list[tuple[int, int]]], slots: int, budget: int, group: str | None
) -> None:
    """Whatever the lengths of their prompts and answers, for as long as all have more to do: of tokens, and
    of slots where all are taken, each as its part of a step's tokens.
    """
    model = FakeModel(blocks=2_000, slots=slots, budget=budget)
    computed, begun = [0] * len(flows), set[str]()
    for flow, lengths in enumerate(flows):
        for number in range(slots):
            model.add(f"{flow}/{number}", *lengths[number % len(lengths)], group=group, flow=str(flow))
    for _ in range(60):
        least = budget // slots if model.batcher.num_running == slots else 1
        for chunk in model.step():
            flow = int(chunk.sequence.flow)
            computed[flow] += max(chunk.num_tokens, least)
            if chunk.sequence.id not in begun:  # the next one waits in its place
                begun.add(chunk.sequence.id)
                length = flows[flow][model.arrivals % len(flows[flow])]
                model.add(f"{flow}/{model.arrivals}", *length, group=group, flow=str(flow))
        # The prompt whose turn it is may fill a step, and what runs is computed to its end: where there are
        # fewer slots than flows, one waits for that.
        assert max(computed) - min(computed) <= 2 * budget + 60 + 12 * budget, computed


@settings(max_examples=20, deadline=None)
@example(others=[[(1, 1)]], prompt=1, slots=4, budget=4, group=None)
@given(
    others=st.lists(Lengths, min_size=1, max_size=4),
    prompt=st.integers(1, 60),
    slots=st.integers(1, 5),
    budget=st.integers(4, 40),
    group=st.sampled_from([None, "job"]),
)
def test_a_lone_request_begins_after_at_most_one_turn_of_each_other_flow(
    others: list[list[tuple[int, int]]], prompt: int, slots: int, budget: int, group: str | None
) -> None:
    model = FakeModel(blocks=2_000, slots=slots, budget=budget)
    for flow, lengths in enumerate(others):
        for number in range(60):
            tokens, new = lengths[number % len(lengths)]
            model.add(f"{flow}/{number}", tokens, new=new, group=group, flow=str(flow))
    for _ in range(7):
        model.step()
    model.add("lone", prompt, group=group, flow="lone")
    admitted_after: list[str] = []
    running = {sequence.id for sequence in model.batcher.running}
    while "lone" not in running:
        started = [id for id in ids(model.step()) if id not in running]
        admitted_after += takewhile(lambda id: id != "lone", started)
        running |= set(started)

    assert len(admitted_after) <= len(others) + 1, admitted_after
