"""Of rows with the same digest one runs; the others have its result, or the next one runs."""

from dataclasses import replace
from sys import getsizeof

from nightshift.bulk.results.row_results import RowResult
from nightshift.jobs import Usage
from tests.helpers.fakes import a_row_result
from workers.shard.run_once import ENTRY_BYTES, RunOnce

KEY = ("job", b"d")


class Row:
    def __init__(self, once: RunOnce, key=KEY) -> None:
        self.told: list[RowResult | None] = []
        self.key = key
        said = once.lead(key)
        self.known = said if isinstance(said, RowResult) else None
        self.turn = once.wait(key, self.told.append) if said is False else None
        self.leads = said is True

    @property
    def runs(self) -> bool:
        return self.leads or (self.turn is not None and self.turn.leads)


def result(row: int = 0) -> RowResult:
    return a_row_result(row, f"r{row}", usage=Usage())


def test_the_first_runs_and_its_result_is_told_to_those_that_wait() -> None:
    once = RunOnce()
    first, second, third = (Row(once) for _ in range(3))
    assert [row.runs for row in (first, second, third)] == [True, False, False]

    once.ended(KEY, answer := result())

    assert (second.told, third.told, first.told) == ([answer], [answer], [])
    assert Row(once).known == replace(answer, custom_id="")


def test_others_are_not_kept_waiting() -> None:
    once = RunOnce()
    assert Row(once).runs
    assert Row(once, ("job", b"other")).runs
    assert Row(once, ("other job", b"d")).runs


def test_one_that_leaves_makes_the_next_one_run() -> None:
    once = RunOnce()
    _, second, third = (Row(once) for _ in range(3))

    once.leave_off(KEY)
    assert (second.told, second.runs, third.told) == ([None], True, [])

    once.leave(second.turn)
    assert (third.told, third.runs) == ([None], True)

    once.leave(third.turn)
    assert Row(once).runs


def test_all_run_where_the_first_has_no_good_result() -> None:
    """Else they would time out one after the other."""
    once = RunOnce()
    _, second, third = (Row(once) for _ in range(3))
    once.failed(KEY)

    assert (second.told, third.told) == ([None], [None])
    assert not second.runs, "none waits for it"
    assert Row(once).leads


def test_what_is_kept_of_a_row_is_not_remembered() -> None:
    once = RunOnce()
    assert once.lead(KEY) is True
    once.ended(KEY, replace(result(), kept="x" * 100_000))

    assert Row(once).known.kept is None


def test_one_that_leaves_while_it_waits_is_not_told() -> None:
    once = RunOnce()
    _, second, third = (Row(once) for _ in range(3))
    once.leave(second.turn)
    once.ended(KEY, answer := result())

    assert (second.told, third.told) == ([], [answer])
    once.leave(third.turn)  # it was told already


def test_one_that_comes_as_the_other_ends_asks_again() -> None:
    once = RunOnce()
    assert once.lead(KEY) is True
    assert once.lead(KEY) is False
    once.ended(KEY, answer := result())

    assert once.wait(KEY, [].append) is None
    assert once.lead(KEY) == replace(answer, custom_id="")


def test_the_oldest_results_are_forgotten() -> None:
    once = RunOnce(known_bytes_max=3 * (ENTRY_BYTES + getsizeof(result().body_text)))
    for number in range(5):
        row = Row(once, ("job", bytes([number])))
        once.ended(row.key, result(number))

    known = [Row(once, ("job", bytes([number]))).known for number in range(5)]
    assert [each is not None for each in known] == [False, False, True, True, True]
