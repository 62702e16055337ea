"""The order of admission: shared prefixes, long rows, and that no sequence starves."""

import random
from itertools import count

import pytest

from nightshift_engine.core.order import queue, rows
from nightshift_engine.core.order.queue import PASSES_BEFORE_OVERDUE
from nightshift_engine.core.order.turns import DEPARTED_MAX
from nightshift_engine.core.request import Request
from nightshift_engine.core.sequence import Sequence
from tests.unit.engine.core.test_batcher import FakeModel, ids


def num_tokens_computed(model: FakeModel) -> int:
    total = 0
    while model.batcher.has_work:
        total += sum(chunk.num_tokens for chunk in model.step())
    return total


def test_requests_with_one_prefix_that_arrive_together_compute_it_once() -> None:
    model = FakeModel(blocks=200, slots=8, budget=16)
    for number in range(8):
        model.add(str(number), [*range(40), 100 + number], new=3)

    # The prefix once; of each its own last prompt token, and two of the three tokens generated.
    assert num_tokens_computed(model) == 40 + 8 * (1 + 2)
    assert model.batcher.num_deferrals == 7


def test_an_urgent_request_does_not_wait_for_a_prefix_that_bulk_is_computing() -> None:
    model = FakeModel(blocks=200, budget=8)
    model.add("bulk", [*range(40), 100], priority="background")
    model.step()
    model.add("urgent", [*range(40), 200], priority="interactive")

    assert ids(model.step()) == ["urgent"]
    model.run()


def test_rows_of_a_job_with_a_common_prefix_follow_one_another() -> None:
    model = FakeModel(blocks=200, slots=1, budget=64)
    for number in range(12):  # three documents, asked four questions each, in turn
        model.add(f"{number % 3}-{number // 3}", [*[number % 3] * 20, 100 + number], group="job")
    model.run()

    assert [id[0] for id in model.finished] == ["0"] * 4 + ["1"] * 4 + ["2"] * 4
    assert model.batcher.num_tokens_reused == 3 * 3 * 20


@pytest.mark.parametrize("is_aborted", ["first", "second"])
def test_either_of_two_that_share_a_prefix_can_be_aborted_while_it_is_computed(is_aborted: str) -> None:
    model = FakeModel(blocks=200, budget=8)
    sequences = {id: model.add(id, [*range(40), last]) for id, last in (("first", 100), ("second", 200))}
    model.step()
    assert model.waiting == ["second"]
    model.batcher.remove(sequences.pop(is_aborted))

    assert ids(model.step()) == [*sequences]
    model.run()
    assert model.pool.num_free == 200


@pytest.mark.parametrize("num_others", [0, 300])
def test_rows_that_share_nothing_go_longest_first_however_many_they_are(num_others: int) -> None:
    model = FakeModel(blocks=4000, slots=8, budget=64)
    for number in range(num_others):
        model.add(f"other-{number}", [50_000 + number] * 5, new=3, group="job")
    for number in range(8):
        model.add(f"long-{number}", [1000 * number, 1], new=9, group="job")

    assert {id.split("-")[0] for id in ids(model.step())} == {"long"}


def test_of_documents_the_one_with_the_longest_answer_comes_first_and_whole() -> None:
    model = FakeModel(blocks=200, slots=1, budget=64)
    for number in range(9):  # three documents below one beginning, asked three questions each, in turn
        new = 30 if number == 4 else 2 + number // 3
        model.add(
            f"{number % 3}-{number // 3}",
            [*range(8), *[number % 3] * 12, number],
            new=new,
            group="job",
        )
    model.run()

    assert model.finished == ["1-1", "1-2", "1-0", "0-2", "0-1", "0-0", "2-2", "2-1", "2-0"]


def test_rows_that_waited_for_a_prefix_come_next_when_it_is_computed() -> None:
    model = FakeModel(blocks=200, slots=2, budget=24)
    for number in range(3):
        model.add(f"document-{number}", [*[7] * 40, number], new=9, group="job")
    for number in range(6):
        model.add(f"other-{number}", [number] * 6, new=8, group="job")
    model.run()

    assert {"document-0", "document-1", "document-2"} < set(model.finished[:4]), model.finished


def test_online_requests_are_taken_in_order_and_before_rows_of_jobs() -> None:
    model = FakeModel(blocks=200, slots=1)
    model.add("row", [1, 2], group="job")
    model.add("b", [9, 9])
    model.add("a", [1, 1], new=20)
    model.run()

    assert model.finished == ["b", "a", "row"]


def test_a_short_row_is_admitted_however_many_long_ones_keep_coming(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "PASSES_BEFORE_DUE", 64)
    model = FakeModel(blocks=200, slots=2, budget=64)
    model.add("short", [99], new=1, group="job")
    for number in count():
        if "short" in model.finished:
            break
        model.add(f"long-{number}", [1, 2], new=5, group="job")
        model.add(f"longer-{number}", [1, 3], new=5, group="job")
        model.step()
        assert len(model.finished) < 4 * 64, "passed without end"


def test_a_long_row_is_admitted_however_many_short_ones_keep_coming(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "PASSES_BEFORE_DUE", 64)
    model = FakeModel(blocks=12, slots=4, budget=64)
    for number in range(4):
        model.add(f"early-{number}", [5, number], new=4, group="job")
    model.step()
    model.add("long", [99] * 30, new=10, group="job")
    for number in count():
        if "long" in model.finished:
            break
        model.add(f"short-{number}", [5, 100 + number], new=4, group="job")
        model.step()
        assert len(model.finished) < 4 * 64, "passed without end"


def test_bulk_advances_however_many_interactive_requests_keep_coming() -> None:
    """More interactive requests than there are slots for, so that by class alone bulk would never run."""
    model = FakeModel(blocks=40, slots=2, budget=16)
    bulk = model.add("bulk", [1, 2, 3], new=40, priority="background")
    standard = model.add("standard", [1, 2, 4], new=40, group="job")
    for number in count():
        if {"bulk", "standard"} <= set(model.finished):
            break
        for twin in "ab":
            model.add(f"{number}{twin}", [7, number], new=3, priority="interactive")
        model.step()
        assert len(model.finished) < 20 * PASSES_BEFORE_OVERDUE, (bulk.num_tokens, standard.num_tokens)


def test_running_bulk_advances_beside_endless_interactive_prompts() -> None:
    model = FakeModel(blocks=100, slots=8, budget=16)
    model.add("bulk", [1, 2, 3], new=10, priority="background")
    model.step()
    for number in range(60):  # each fills a step
        model.add(str(number), [number] * 16, new=1, priority="interactive")
        model.step()

    assert "bulk" in model.finished


def test_the_order_of_ten_thousand_waiting_rows_costs_no_pass_over_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted, not timed: one step looks at a few of those waiting only."""
    model = FakeModel(blocks=64, slots=4, budget=64)
    rng = random.Random(7)
    for number in range(10_000):
        model.add(str(number), [rng.randrange(50) for _ in range(8)], new=50, group="job")
    looked_at: list[str] = []
    tokens_to_come = rows._tokens_to_come
    monkeypatch.setattr(
        rows, "_tokens_to_come", lambda sequence: looked_at.append("") or tokens_to_come(sequence)
    )

    for _ in range(3):
        for chunk in model.batcher.plan():
            model.batcher.advance(chunk)

    assert len(looked_at) < 1000


def test_rows_that_were_taken_are_not_held_while_others_wait() -> None:
    order = rows.RowOrder(block_size=4)
    waits = [waiting_row(number) for number in range(3)]
    for number in range(3, 10 * DEPARTED_MAX):
        taken = waiting_row(number)
        order.add(taken)
        if number < 6:
            order.add(waits[number - 3])
        assert order.first() is not None
        order.remove(taken)

    assert len(order._longest) <= DEPARTED_MAX + 2 * len(waits)


def waiting_row(number: int) -> Sequence:
    """All of them begin alike."""
    tokens = [*range(8), number]
    return Sequence(Request(str(number), tokens, group="job"), arrival=number, num_tokens_max=len(tokens) + 4)
