"""Anything may happen in any order, in a memory of a few blocks: the batcher's books always agree."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from nightshift_engine.core import batcher
from nightshift_engine.core.order import aside, queue
from nightshift_engine.core.request import PriorityClass, Request
from nightshift_engine.core.sequence import Sequence
from nightshift_engine.core.steps import step_shape
from tests.unit.engine.core.test_batcher import CLASSES, FakeModel

STEPS_TO_DRAIN = 4000


class BatcherMachine(RuleBasedStateMachine):
    """Every step is checked inside FakeModel.step: budget, blocks, integrity before and after."""

    @initialize(
        blocks=st.integers(4, 14),
        block_size=st.integers(1, 4),
        slots=st.integers(1, 5),
        budget=st.integers(1, 24),
        is_crowded=st.booleans(),
        is_impatient=st.booleans(),
        admits_in_groups=st.booleans(),
    )
    def start(
        self,
        blocks: int,
        block_size: int,
        slots: int,
        budget: int,
        is_crowded: bool,
        is_impatient: bool,
        admits_in_groups: bool,
    ) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(batcher, "ADMISSION_GROUP_SHARE", 1)  # all slots but one may be held
        if is_impatient:  # so that few requests reach every limit
            self.patch.setattr(aside, "SET_ASIDE_MAX", 2)
            self.patch.setattr(aside, "TRIED_MAX", 2)
            self.patch.setattr(aside, "PASSES_ASIDE_MAX", 2)
            self.patch.setattr(queue, "PASSES_BEFORE_DUE", 3)
            self.patch.setattr(queue, "DUE_EVERY", 2)
            self.patch.setattr(queue, "PASSES_BEFORE_OVERDUE", 4)
        self.model = FakeModel(
            blocks=blocks,
            block_size=block_size,
            slots=slots,
            budget=budget,
            is_crowded=is_crowded,
            step_budget_ms=5.0,
            admits_in_groups=admits_in_groups,
        )
        self.capacity = blocks * block_size
        self.alive: list[Sequence] = []
        self.num_steps = 0

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=40),
        new=st.integers(1, 8),
        priority=st.sampled_from(CLASSES),
        group=st.sampled_from([None, "a", "b"]),
        flow=st.sampled_from(["", "x", "y", "z"]),
    )
    def add(self, prompt: list[int], new: int, priority: PriorityClass, group: str | None, flow: str) -> None:
        """Prompts of two tokens: they share beginnings all the time."""
        prompt = prompt[: self.capacity - 1]
        arrival = self.model.arrivals
        sequence = Sequence(
            Request(str(arrival), prompt, priority=priority, group=group, flow=flow),
            arrival=arrival,
            num_tokens_max=min(self.capacity, len(prompt) + new),
        )
        self.model.arrivals += 1
        self.model.batcher.add(sequence)
        self.alive.append(sequence)

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.model.batcher.has_work:
                assert self.model.step(), "work is left, but nothing was planned"
        self._drop_finished()

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.alive))
        self.model.batcher.remove(sequence)
        self.alive.remove(sequence)
        self.model.batcher.check_integrity()

    @precondition(lambda self: self.model.batcher.has_work)
    @rule()
    def run_out_of_memory(self) -> None:
        chunks = self.model.batcher.plan()
        too_large = self.model.batcher.out_of_memory(chunks)
        if too_large is not None:
            self.model.batcher.remove(too_large)
            self.alive.remove(too_large)
        self.model.batcher.check_integrity()

    @precondition(lambda self: self.model.batcher.has_work)
    @rule(seconds=st.floats(0.0001, 1.0))
    def measure(self, seconds: float) -> None:
        self.model.batcher.observe(step_shape(self.model.batcher.plan()), seconds)

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return
        try:
            self.model.run(STEPS_TO_DRAIN)
        finally:
            self.patch.undo()
        self._drop_finished()
        assert not self.alive, "a sequence starved"
        assert self.model.pool.num_free == self.model.pool.num_blocks

    def _drop_finished(self) -> None:
        self.alive = [sequence for sequence in self.alive if sequence.id not in self.model.finished]


TestBatcherMachine = BatcherMachine.TestCase
TestBatcherMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_two_that_are_set_aside_wait_for_each_other_and_for_an_overdue_class_before_each() -> None:
    machine = BatcherMachine()
    machine.start(
        blocks=4, block_size=1, slots=3, budget=3, is_crowded=False, is_impatient=True, admits_in_groups=False
    )

    def add(priority: PriorityClass, prompt: int, flow: str = "") -> None:
        machine.add([0] * prompt, new=1, priority=priority, group=None, flow=flow)

    add("standard", 1)
    add("background", 2)
    add("background", 1)
    add("background", 2, flow="x")
    for _ in range(20):
        add("interactive", 1)
    add("standard", 1)
    add("standard", 1)
    machine.teardown()
