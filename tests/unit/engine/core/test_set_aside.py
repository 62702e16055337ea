"""A request that lacks memory at its turn holds up few others, and few hold it up."""

from itertools import count
from string import ascii_lowercase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift_engine.core import batcher
from nightshift_engine.core.order import FairTurns, WaitingQueue, queue
from nightshift_engine.core.order.aside import PASSES_ASIDE_MAX, SET_ASIDE_MAX, TRIED_MAX
from nightshift_engine.core.order.queue import PASSES_BEFORE_OVERDUE, ClassQueue
from nightshift_engine.core.request import Request
from nightshift_engine.core.sequence import Sequence
from tests.unit.engine.core.test_batcher import CLASSES, FakeModel, ids

MANY_FLOWS = ascii_lowercase[: TRIED_MAX + 3]


def half_full(**options: int) -> FakeModel:
    """60 of 100 blocks are taken for long, and what is short ends soon."""
    model = FakeModel(blocks=100, slots=64, budget=512, **options)
    model.add("running", 200, new=39)
    model.step()
    return model


@pytest.mark.parametrize(
    ("large", "short", "group", "passes"),
    [
        *((large, "bbbbb", group, True) for large in ("a", "a" * SET_ASIDE_MAX) for group in (None, "job")),
        *(("a" * large, "b", group, True) for large in (SET_ASIDE_MAX + 1, 20) for group in (None, "job")),
        pytest.param("a" * SET_ASIDE_MAX, "a", None, False, id="of one flow a few may be passed"),
        pytest.param(MANY_FLOWS, f"{MANY_FLOWS[0]}{MANY_FLOWS[-1]}z", None, True, id="of many flows"),
        pytest.param("a", "abc", None, True, id="of one flow among several"),
        pytest.param(" ", " ", "job", False, id="rows of one flow alone keep their order"),
    ],
)
def test_short_ones_pass_large_ones_for_which_too_little_memory_is_free(
    large: str, short: str, group: str | None, passes: bool
) -> None:
    """Each letter is the flow of a request; the space stands for that of the one that runs."""
    model = half_full()
    for number, flow in enumerate(large):
        model.add(f"large-{number}", 200, new=39, group=group, flow=flow.strip())
    for number, flow in enumerate(short):
        model.add(f"short-{number}", 8, new=2, group=group, flow=flow.strip())

    begun = [f"short-{number}" for number in range(len(short)) if passes]
    assert sorted(ids(model.step())) == ["running", *begun]
    model.run()
    assert len(model.finished) == 1 + len(large) + len(short)


def test_a_flow_does_not_claim_memory_by_letting_its_own_pass() -> None:
    model = half_full()
    model.add("large", 200, new=39, flow="a")
    for number in range(2 * PASSES_ASIDE_MAX):
        model.add(f"own-{number}", 8, new=2, flow="a")
    begun: dict[str, None] = {}
    while len(begun) < 1 + PASSES_ASIDE_MAX:
        begun |= dict.fromkeys(ids(model.step()))
    model.add("other", 8, new=2, flow="b")
    while "large" not in begun:
        begun |= dict.fromkeys(ids(model.step()))

    assert list(begun)[1 + PASSES_ASIDE_MAX :][:2] == ["other", "large"]
    model.run()


@pytest.mark.parametrize("cancels", [False, True])
def test_a_flow_that_always_waits_with_large_ones_has_no_more_than_another(cancels: bool) -> None:
    """A request that is cancelled as soon as others wait for it counts as much as a computed one."""
    model = half_full()
    model.step()
    had, numbers = {"large": 0, "short": 0}, count()
    large: list[Sequence] = []
    for _ in range(250):
        while len(large) < 6:
            large.append(model.add(f"large-{next(numbers)}", 300, new=4, flow="a"))
        while sum(sequence.flow == "b" for sequence in model.batcher.waiting) < 80:
            model.add(f"short-{next(numbers)}", 4, new=2, flow="b")
        step = model.step()
        for chunk in step:
            kind = chunk.sequence.id.split("-")[0]
            if kind in had:
                had[kind] += chunk.num_tokens
        claiming = [sequence for sequence in large if model.batcher._queue.is_claiming(sequence)]
        if cancels and claiming:
            model.batcher.remove(claiming[0])
            large.remove(claiming[0])
            had["large"] += 300
        large = [sequence for sequence in large if sequence.id not in model.finished]

    assert had["large"] > 3 * 300, "it starves"
    assert had["short"] >= had["large"] - 2 * 300


def test_one_behind_another_is_admitted_when_what_it_lacked_is_free() -> None:
    model = half_full()
    model.add("ends-soon", 40, new=3, flow="b")
    model.step()
    model.add("large", 300, new=4, flow="a")
    model.add("smaller", 150, new=4, flow="a")
    begun: list[str] = []
    while "smaller" not in begun:
        begun += ids(model.step())
        assert model.batcher.has_work

    assert "ends-soon" in model.finished
    assert "large" not in begun
    model.run()


def test_when_one_is_cancelled_the_next_of_its_flow_has_a_place() -> None:
    model = half_full()
    large = [model.add(f"large-{number}", 200, new=39, flow="a") for number in range(SET_ASIDE_MAX)]
    model.add("short", 8, new=2, flow="a")
    assert ids(model.step()) == ["running"]
    model.batcher.remove(large[0])

    assert sorted(ids(model.step())) == ["running", "short"]
    model.run()
    assert [id for id in model.finished if id.startswith("large")] == ["large-1", "large-2", "large-3"]


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


def test_one_that_was_preempted_keeps_its_turn() -> None:
    """Admitting others instead would take blocks from those that run."""
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


def waiting(flow: str, arrival: int, group: str | None = None) -> Sequence:
    request = Request(f"{flow}-{arrival}", [arrival], flow=flow, group=group)
    return Sequence(request, arrival=arrival, num_tokens_max=9)


def class_queue(*sequences: Sequence) -> ClassQueue:
    turns = FairTurns()
    made = ClassQueue(4, turns)
    for sequence in sequences:
        turns.join(sequence.flow)
        made.add(sequence)
    return made


def test_one_that_is_preempted_keeps_the_turn_of_its_flow_though_that_is_held() -> None:
    *large, preempted = (waiting("a", number) for number in range(SET_ASIDE_MAX + 1))
    under_test = class_queue(*large, preempted)
    under_test.take(preempted)
    preempted.num_computed_tokens_max = 1
    for sequence in large:
        under_test.set_aside(sequence, 5)
    assert under_test.next(large) is None

    under_test.add(preempted)
    under_test.check_integrity()

    for sequence in large[1:]:
        under_test.discard(sequence)
    assert under_test.next(large[:1]) is preempted


def test_one_that_is_preempted_keeps_the_turn_of_its_flow_though_others_of_it_may_pass_no_more() -> None:
    large, *small = (waiting("a", number) for number in range(2 + PASSES_ASIDE_MAX))
    under_test = class_queue(large, *small)
    under_test.set_aside(large, 5)
    for sequence in small[:-1]:
        assert under_test.next([large]) is sequence
        under_test.take(sequence)
    assert under_test.next([large]) is None
    small[0].num_computed_tokens_max = 1

    under_test.add(small[0])
    under_test.check_integrity()

    assert under_test.next([large]) is small[0]
    under_test.take(small[0])
    assert under_test.next([large]) is None


def test_a_row_that_comes_back_is_due_before_a_younger_one_of_another_flow() -> None:
    first, second, third = waiting("a", 0, "job"), waiting("b", 1, "job"), waiting("a", 2, "job")
    for due, sequence in zip((-2, -1, 0), (first, second, third), strict=True):
        sequence.admission_due = due
    under_test = class_queue(second, third, first)
    under_test.discard(first)
    assert under_test.next(()) is second

    under_test.add(first)

    assert under_test.next(()) is first


def test_a_row_that_is_due_of_a_held_flow_keeps_no_other_row_from_being_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "PASSES_BEFORE_DUE", 0)
    large = [waiting("a", number, "job") for number in range(SET_ASIDE_MAX)]
    older, row, online = waiting("a", 10, "job"), waiting("b", 11, "job"), waiting("c", 12)
    under_test = class_queue(*large, older, row, online)
    assert under_test.next(()) is large[0], "the oldest"
    for sequence in large:
        under_test.set_aside(sequence, 5)

    assert under_test.next(large) is row
    under_test.discard(large[0])
    assert under_test.next(()) in large


def test_a_class_whose_large_one_is_cancelled_is_overdue_after_as_many_passes_as_before() -> None:
    """Else its tenant could stop the more urgent classes again after a few."""
    model = FakeModel(blocks=130, slots=64, budget=512)
    model.add("running", 200, new=199, priority="interactive")
    model.step()
    numbers = count()

    def admitted_until_they_wait() -> int:
        large = model.add("large", 500, new=4, priority="background")
        for admitted in count():
            model.add(f"urgent-{next(numbers)}", 4, new=1, priority="interactive")
            if ids(model.step()) == ["running"]:
                model.batcher.remove(large)
                return admitted
        raise AssertionError("unreachable")

    first = admitted_until_they_wait()
    model.step()

    assert first == PASSES_BEFORE_OVERDUE + PASSES_ASIDE_MAX
    assert admitted_until_they_wait() == first


SIZES = st.tuples(st.integers(1, 60), st.integers(1, 20))


@settings(max_examples=80, deadline=None)
@given(
    arrivals=st.lists(
        st.tuples(SIZES, st.sampled_from(CLASSES), st.sampled_from([None, "a"]), st.sampled_from("tuvwxyz")),
        max_size=150,
    ),
    per_step=st.integers(1, 12),
    blocks=st.integers(20, 40),
)
def test_of_its_class_few_are_admitted_before_the_first_of_a_flow_that_was_set_aside(
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
    """Asserts how many of its class are admitted before the first of each flow that was set aside."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.passed: dict[Sequence, int] = {}

    def set_aside(self, sequence: Sequence, missing: int) -> None:
        super().set_aside(sequence, missing)
        if (sequence.rank, sequence.flow) not in {(other.rank, other.flow) for other in self.passed}:
            self.passed[sequence] = 0

    def take(self, sequence: Sequence) -> None:
        turns = self.classes[sequence.rank]._turns
        self.passed.pop(sequence, None)
        in_class = [other for other in self.passed if other.rank == sequence.rank]
        for other in in_class[:TRIED_MAX]:
            is_its_turn = turns.start(sequence.flow) < turns.start(other.flow)
            if other.flow == sequence.flow or not is_its_turn:
                self.passed[other] += 1
                # By its own flow, and by others.
                assert self.passed[other] <= 2 * PASSES_ASIDE_MAX
        super().take(sequence)
