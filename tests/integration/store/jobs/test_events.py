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
def test_numbers_have_no_gaps_for_any_reader_when_many_write_at_once(store: Store) -> None:
    """A number that is taken and not yet committed must hold up the next one, or a stream would skip it."""
    job = submit(store)

    def numbers() -> list[int]:
        with store.snapshot() as tx:
            return [event.seq for event in tx.events.after("default", job.id, 0, limit=100)]

    def append_some() -> list[list[int]]:
        given = []
        for _ in range(10):
            with store.transaction() as tx:
                given.append(tx.events.append(job.id, "job.progress", {}, tx.now()))
        return [given]

    def follow() -> list[list[int]]:
        seen: list[list[int]] = [[]]
        while len(seen[-1]) < 31:
            seen.append(numbers())
        return seen

    seen, *given = at_once(follow, append_some, append_some, append_some)

    assert all(read == list(range(1, len(read) + 1)) for read in seen)
    assert sorted(number for [some] in given for number in some) == list(range(2, 32))
