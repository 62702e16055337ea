"""Slots of adapters: who has one, who loses it, and that no one waits for one for ever."""

from collections import Counter

import pytest

from nightshift_engine.core.adapter_slots import AdapterSlots
from nightshift_engine.core.batcher import Batcher
from nightshift_engine.core.order.aside import PASSES_ASIDE_MAX
from nightshift_engine.core.order.queue import PASSES_BEFORE_OVERDUE
from nightshift_engine.core.request import PriorityClass, Request
from nightshift_engine.core.sequence import Sequence
from nightshift_engine.errors import UnsupportedAdapter
from tests.unit.engine.core.test_batcher import FakeModel, ids


def load(slots: AdapterSlots) -> dict[str, int]:
    """The adapters that have got a slot, which are loaded now."""
    loaded: dict[str, int] = {}
    slots.load_new(lambda slot, name: loaded.update({name: slot}), lambda name, reason: None)
    return loaded


class AdaptedModel(FakeModel):
    """The same, with slots for adapters; asserts that only adapters with a slot of their own are computed."""

    def __init__(self, *, adapter_slots: int, slots: int = 8, budget: int = 32) -> None:
        super().__init__(blocks=400, slots=slots, budget=budget)
        self.batcher = Batcher(
            self.pool, max_num_seqs=slots, max_num_batched_tokens=budget, num_adapter_slots=adapter_slots
        )
        self.in_slot: dict[int, str] = {}

    def add_adapted(
        self,
        id: str,
        adapter: str | None,
        new: int = 4,
        priority: PriorityClass = "standard",
        flow: str = "",
        group: str | None = None,
    ) -> Sequence:
        prompt = [self.arrivals * 1000 + position for position in range(5)]
        request = Request(id, prompt, priority=priority, flow=flow, adapter=adapter, group=group)
        sequence = Sequence(request, arrival=self.arrivals, num_tokens_max=5 + new)
        self.arrivals += 1
        self.batcher.add(sequence)
        return sequence

    def step(self):
        plan = self.batcher.plan

        def checked():
            chunks = plan()
            self.in_slot |= {slot: name for name, slot in load(self.batcher.adapters).items()}
            for sequence in self.batcher.running:
                if sequence.adapter is not None:
                    assert self.in_slot[sequence.adapter_slot] == sequence.adapter, "another's numbers"
            return chunks

        self.batcher.plan = checked
        try:
            return super().step()
        finally:
            self.batcher.plan = plan


def test_the_least_recently_used_adapter_gives_up_its_slot() -> None:
    slots = AdapterSlots(2)
    for name in ("a", "b", "a"):
        slots.take(name)
        slots.give_back(name)
    assert load(slots) == {"a": 0, "b": 1}

    assert slots.take("c") == 1
    assert load(slots) == {"c": 1}
    slots.check_integrity(Counter({"c": 1}))


def test_an_adapter_in_use_keeps_its_slot() -> None:
    slots = AdapterSlots(1)
    slots.take("a")
    assert slots.may_take("a")
    assert not slots.may_take("b")
    slots.give_back("a")
    assert slots.may_take("b")


def test_one_that_could_not_be_loaded_frees_its_slot() -> None:
    def put(slot: int, name: str) -> None:
        raise UnsupportedAdapter(name, "it is gone")

    slots = AdapterSlots(1)
    slots.take("a")
    slots.load_new(put, lambda name, reason: slots.give_back(name))
    assert slots.take("b") == 0
    assert load(slots) == {"b": 0}


@pytest.mark.parametrize("group", [None, "job"])
def test_sequences_pass_one_whose_adapter_has_no_slot(group: str | None) -> None:
    model = AdaptedModel(adapter_slots=1)
    model.add_adapted("a", "a", new=50, group=group)
    model.step()
    model.add_adapted("b", "b", group=group)
    model.add_adapted("base", None, group=group)
    model.add_adapted("a again", "a", group=group)

    model.step()

    assert model.waiting == ["b"]


@pytest.mark.parametrize("flow", ["", "another"])
@pytest.mark.parametrize("group", [None, "job"])
def test_a_flood_of_one_adapter_passes_another_a_bounded_number_of_times(
    flow: str, group: str | None
) -> None:
    """Its flow has as many waiting as it likes; the one behind is of the same flow or of another."""
    model = AdaptedModel(adapter_slots=1, slots=4)
    for number in range(300):
        if number == 8:
            model.add_adapted("b", "b", flow=flow, group=group)
        model.add_adapted(f"flood {number}", "a", group=group)

    while "b" not in model.finished:
        model.step()

    assert len(model.finished) < PASSES_ASIDE_MAX + 12
    model.run()
    assert len(model.finished) == 301


def test_more_adapters_than_slots_all_end_whatever_their_classes_and_flows() -> None:
    model = AdaptedModel(adapter_slots=2, slots=6)
    classes: list[PriorityClass] = ["interactive", "standard", "background"]
    for number in range(120):
        adapter = None if number % 7 == 0 else f"adapter {number % 5}"
        priority = classes[number % 3]
        group = None if number % 2 else "job"
        model.add_adapted(f"{number}", adapter, 1 + number % 9, priority, f"flow {number % 4}", group)

    model.run()

    assert len(model.finished) == 120


def test_a_more_urgent_sequence_gets_a_slot_at_the_next_step() -> None:
    model = AdaptedModel(adapter_slots=2)
    for name in ("a", "b", "b"):
        model.add_adapted(f"bulk {model.arrivals}", name, new=50, priority="background")
    model.step()
    model.add_adapted("urgent", "c", priority="interactive")

    chunks = ids(model.step())

    assert chunks[0] == "urgent"
    assert set(chunks) == {"urgent", "bulk 0"}, "the adapter that came last has yielded, and it alone"
    model.run()


def test_an_adapter_that_one_as_urgent_uses_is_not_taken() -> None:
    model = AdaptedModel(adapter_slots=1)
    model.add_adapted("bulk", "a", new=50, priority="background")
    model.add_adapted("chat", "a", new=50, priority="interactive")
    model.step()
    model.add_adapted("urgent", "c", priority="interactive")

    model.step()

    assert model.waiting == ["urgent"]
    assert model.batcher.num_preemptions == 0


@pytest.mark.parametrize("chat_adapter", [None, "a"])
def test_an_overdue_row_that_waits_for_a_slot_holds_no_more_urgent_request(chat_adapter: str | None) -> None:
    model = AdaptedModel(adapter_slots=1, slots=4)
    model.add_adapted("long", "a", new=1000, priority="interactive")
    model.step()
    model.add_adapted("row", "b", priority="background", group="job")

    for number in range(PASSES_BEFORE_OVERDUE + PASSES_ASIDE_MAX + 20):  # the last ones find it overdue
        model.add_adapted(f"chat {number}", chat_adapter, new=1, priority="interactive")
        assert f"chat {number}" in ids(model.step()), "it waits for the row"
        model.step()

    assert model.waiting == ["row"]
    model.run()


def test_rows_without_adapters_pass_one_that_waits_for_a_slot_as_often_as_there_are_some() -> None:
    model = AdaptedModel(adapter_slots=1, slots=4)
    model.add_adapted("long", "a", new=1000, priority="interactive")
    model.step()
    model.add_adapted("row", "b", priority="background", flow="one")
    for number in range(3 * PASSES_ASIDE_MAX):
        model.add_adapted(f"base {number}", None, new=1, priority="background", flow="other")

    while len(model.finished) < 3 * PASSES_ASIDE_MAX:
        model.step()

    assert model.waiting == ["row"]
    assert "long" not in model.finished
    model.run()
