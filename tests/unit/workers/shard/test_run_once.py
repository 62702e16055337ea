"""One of the rows with the same digest runs; the others have its result, or the next one runs."""

from sys import getsizeof

from nightshift.bulk.results.row_results import RowResult
from nightshift.jobs import Usage
from tests.helpers.fakes import a_row_result
from workers.shard.run_once import ENTRY_BYTES, RunOnce, Turn

KEY = ("job", b"d")


class Row:
    def __init__(self, once: RunOnce, key=KEY) -> None:
        self.told: list[RowResult | None] = []
        begun = once.begin(key, 0, lambda row, result: self.told.append(result))
        self.known = begun if isinstance(begun, RowResult) else None
        self.turn = begun if isinstance(begun, Turn) else None

    @property
    def runs(self) -> bool:
        return self.turn is not None and self.turn.runs


def result(row: int = 0) -> RowResult:
    return a_row_result(row, f"r{row}", usage=Usage())


def test_the_first_runs_and_its_result_is_told_to_those_that_wait() -> None:
    once = RunOnce()
    first, second, third = (Row(once) for _ in range(3))
    assert [row.runs for row in (first, second, third)] == [True, False, False]

    once.ended(first.turn, answer := result())

    assert (second.told, third.told, first.told) == ([answer], [answer], [])
    assert Row(once).known == answer
    once.leave(third.turn)  # it was told already


def test_others_are_not_kept_waiting() -> None:
    once = RunOnce()
    assert Row(once).runs
    assert Row(once, ("job", b"other")).runs
    assert Row(once, ("other job", b"d")).runs


def test_one_that_leaves_makes_the_next_one_run() -> None:
    once = RunOnce()
    first, second, third = (Row(once) for _ in range(3))

    once.leave(first.turn)
    assert (second.told, second.runs, third.told) == ([None], True, [])

    once.leave(second.turn)
    assert (third.told, third.runs) == ([None], True)

    once.leave(third.turn)
    assert Row(once).runs


def test_all_run_where_the_first_has_no_good_result() -> None:
    """Else they would time out one after the other."""
    once = RunOnce()
    first, second, third = (Row(once) for _ in range(3))
    once.failed(first.turn)

    assert (second.told, third.told) == ([None], [None])
    assert not second.runs, "none waits for it"
    assert Row(once).runs


def test_one_that_leaves_while_it_waits_is_not_told() -> None:
    once = RunOnce()
    first, second, third = (Row(once) for _ in range(3))
    once.leave(second.turn)
    once.ended(first.turn, answer := result())

    assert (second.told, third.told) == ([], [answer])


def test_the_oldest_results_are_forgotten() -> None:
    once = RunOnce(known_bytes_max=3 * (ENTRY_BYTES + getsizeof(result().body_text)))
    for number in range(5):
        once.ended(Row(once, ("job", bytes([number]))).turn, result(number))

    known = [Row(once, ("job", bytes([number]))).known for number in range(5)]
    assert [answer is not None for answer in known] == [False, False, True, True, True]
