"""A job's history: numbered without gaps, also by writers at the same moment."""

from nightshift.store import Store
from tests.helpers.fakes import FakeClock, submit
from tests.integration.store.racing import at_once, both_databases


def test_a_stream_goes_on_after_the_last_event_it_has_seen(store: Store, clock: FakeClock) -> None:
    job = submit(store)
    with store.transaction() as tx:
        for n in range(5):
            tx.events.append(job.id, "job.progress", {"n": n}, clock.advance(seconds=1))

    with store.snapshot() as tx:
        after = tx.events.after("default", job.id, 2, limit=3)
        assert [(event.seq, event.data) for event in after] == [(3, {"n": 1}), (4, {"n": 2}), (5, {"n": 3})]
        assert tx.events.after("default", job.id, 6, limit=3) == []


@both_databases
def test_numbers_have_no_gaps_and_no_repeats_when_many_write_at_once(store: Store) -> None:
    job = submit(store)

    def append_some() -> list[int]:
        numbers = []
        for _ in range(10):
            with store.transaction() as tx:
                numbers.append(tx.events.append(job.id, "job.progress", {}, tx.now()))
        return numbers

    given = at_once(append_some, append_some, append_some, append_some)

    assert sorted(number for numbers in given for number in numbers) == list(range(2, 42))
    with store.snapshot() as tx:
        assert [event.seq for event in tx.events.after("default", job.id, 0, 100)] == list(range(1, 42))


@both_databases
def test_a_reader_never_sees_a_number_before_the_ones_below_it(store: Store) -> None:
    """A number that is taken and not yet committed must hold up the next one, or a stream would skip it."""
    job = submit(store)

    def append_some() -> list[list[int]]:
        for _ in range(10):
            with store.transaction() as tx:
                tx.events.append(job.id, "job.progress", {}, tx.now())
        return []

    def follow() -> list[list[int]]:
        seen: list[list[int]] = [[]]
        while len(seen[-1]) < 31:
            with store.snapshot() as tx:
                seen.append([event.seq for event in tx.events.after("default", job.id, 0, limit=100)])
        return seen

    seen = at_once(follow, append_some, append_some, append_some)[0]

    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in seen)


def test_a_number_that_was_rolled_back_is_given_again(store: Store) -> None:
    job = submit(store)

    class Interrupted(Exception):
        pass

    try:
        with store.transaction() as tx:
            assert tx.events.append(job.id, "job.progress", {}, tx.now()) == 2
            raise Interrupted
    except Interrupted:
        pass

    with store.transaction() as tx:
        assert tx.events.append(job.id, "job.progress", {}, tx.now()) == 2
