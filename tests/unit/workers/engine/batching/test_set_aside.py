"""What lacks memory when it is its turn holds up few others, and is held up by few."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.workers.engine.batching.test_batcher import CLASSES, FakeModel, ids
from workers.engine.batching import batcher
from workers.engine.batching.queue import PASSES_BEFORE_OVERDUE, WaitingQueue
from workers.engine.batching.sequence import Sequence
from workers.engine.batching.set_aside import PASSES_ASIDE_MAX, SET_ASIDE_MAX


def half_full(**options: int) -> FakeModel:
    """60 of 100 blocks are taken for long, and what is short ends soon."""
    model = FakeModel(blocks=100, slots=64, budget=512, **options)
    model.add("running", 200, new=39)
    model.step()
    return model


@pytest.mark.parametrize("group", [None, "job"])
@pytest.mark.parametrize("num_large", [1, SET_ASIDE_MAX])
def test_short_ones_pass_those_for_which_too_little_memory_is_free(num_large: int, group: str | None) -> None:
    model = half_full()
    for number in range(num_large):
        model.add(f"large-{number}", 200, new=39, group=group, flow="a")
    for number in range(5):
        model.add(f"short-{number}", 8, new=2, group=group, flow="b")

    found = ids(model.step())

    assert sorted(found) == ["running", *(f"short-{number}" for number in range(5))]
    model.run()
    assert len(model.finished) == 1 + num_large + 5


def test_beyond_a_few_large_ones_those_behind_wait() -> None:
    model = half_full()
    for number in range(SET_ASIDE_MAX + 1):
        model.add(f"large-{number}", 200, new=39)
    model.add("short", 8, new=2)

    assert ids(model.step()) == ["running"]
    model.run()


def test_a_large_one_of_another_flow_holds_up_no_flow() -> None:
    model = half_full()
    model.add("large", 200, new=39, flow="a")
    for number, flow in enumerate("abc"):
        model.add(f"short-{number}", 8, new=2, flow=flow)

    assert sorted(ids(model.step())) == ["running", "short-0", "short-1", "short-2"]
    model.run()


@pytest.mark.parametrize("group", [None, "job"])
def test_a_large_one_is_admitted_however_many_short_ones_keep_coming(group: str | None) -> None:
    model = half_full()
    model.add("large", 300, new=4, group=group, flow="a")
    numbers, begun = count(), 0
    while "large" not in {sequence.id for sequence in model.batcher.running}:
        for _ in range(4):
            model.add(f"short-{next(numbers)}", 12, new=6, group=group, flow="b")
        before = {sequence.id for sequence in model.batcher.running}
        model.step()
        begun += len({sequence.id for sequence in model.batcher.running} - before - {"large"})
        assert next(numbers) < 2_000, "it starves"

    assert 4 <= begun <= PASSES_ASIDE_MAX + 64, "as many as pass it, and those that began in its step"


def test_rows_of_one_flow_alone_keep_their_order() -> None:
    model = half_full()
    model.add("large", 200, new=39, group="job")
    model.add("short", 8, new=2, group="job")

    assert ids(model.step()) == ["running"]
    model.run()


def test_one_that_was_preempted_keeps_its_turn() -> None:
    """To admit others instead would take blocks from those that run."""
    model = FakeModel(blocks=12, block_size=4, slots=8, budget=64, is_crowded=True)
    model.add("first", 20, new=26)
    model.add("second", 20, new=20)
    while not model.batcher.num_preemptions:
        model.step()
    model.add("short", 1, new=1)

    while "second" not in (step := ids(model.step())):
        assert "short" not in step
    model.run()


def test_a_large_one_that_is_overdue_is_passed_by_few_urgent_ones() -> None:
    model = FakeModel(blocks=100, slots=64, budget=512)
    model.add("running", 200, new=199, priority="interactive")
    model.step()
    model.add("large", 300, new=4, priority="background")

    begun = [0]
    for number in range(300):
        model.add(f"urgent-{number}", 4, new=1, priority="interactive")
        step = ids(model.step())
        if "large" in step:
            break
        begun.append(sum(id.startswith("urgent") for id in step))

    assert "large" in step, "it starves"
    assert sum(begun) == PASSES_BEFORE_OVERDUE + PASSES_ASIDE_MAX


SIZES = st.tuples(st.integers(1, 60), st.integers(1, 20))


@settings(max_examples=80, deadline=None)
@given(
    arrivals=st.lists(
        st.tuples(SIZES, st.sampled_from(CLASSES), st.sampled_from([None, "a"]), st.sampled_from("xy")),
        max_size=150,
    ),
    per_step=st.integers(1, 12),
    blocks=st.integers(20, 40),
)
def test_of_its_class_few_are_admitted_before_one_that_was_set_aside(
    arrivals: list[tuple[tuple[int, int], str, str | None, str]], per_step: int, blocks: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batcher, "WaitingQueue", WatchedQueue)
        model = FakeModel(blocks=blocks, budget=64, slots=8)
    left = list(enumerate(arrivals))
    while left or model.batcher.has_work:
        for number, ((prompt, new), priority, group, flow) in left[:per_step]:
            model.add(str(number), prompt, new, priority, group=group, flow=flow)  # type: ignore[arg-type]
        del left[:per_step]
        if model.batcher.has_work:
            assert model.step(), "work is left, but nothing was planned"

    assert len(model.finished) == len(arrivals)


class WatchedQueue(WaitingQueue):
    """Asserts how many of its class are admitted before each sequence that was set aside."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.passed: dict[Sequence, int] = {}

    def set_aside(self, sequence: Sequence, missing: int) -> None:
        super().set_aside(sequence, missing)
        if self.missing(sequence) is not None:
            self.passed.setdefault(sequence, 0)

    def take(self, sequence: Sequence) -> None:
        self.passed.pop(sequence, None)
        for other in self.passed:
            if other.rank == sequence.rank:
                self.passed[other] += 1
                assert self.passed[other] <= PASSES_ASIDE_MAX + SET_ASIDE_MAX - 1
        super().take(sequence)
