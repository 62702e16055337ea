"""Idempotency keys: the first answer is kept, and of two first answers there is one."""

from datetime import timedelta

from nightshift.lifecycle import transitions
from nightshift.store import Store
from nightshift.store.jobs.idempotency import KeptAnswer
from tests.helpers.fakes import FakeClock, a_new_job, submit
from tests.integration.store.racing import at_once, both_databases

DAY = timedelta(days=1)


def an_answer_kept(job_id: str, fingerprint: str = "f" * 64) -> KeptAnswer:
    return KeptAnswer(fingerprint, job_id, 202, {"id": job_id, "status": "queued"})


def keep(store: Store, key: str, answer: KeptAnswer, lasts: timedelta = DAY) -> bool:
    with store.transaction() as tx:
        return tx.idempotency.keep("default", key, answer, tx.now(), tx.now() + lasts)


def test_the_first_answer_to_a_key_is_given_again(store: Store) -> None:
    answer = an_answer_kept(submit(store).id)

    assert keep(store, "nightly-2026-01-31", answer)

    with store.snapshot() as tx:
        assert tx.idempotency.find("default", "nightly-2026-01-31", tx.now()) == answer
        assert tx.idempotency.find("default", "nightly-2026-02-01", tx.now()) is None


def test_a_key_is_forgotten_at_its_time_and_can_be_used_anew(store: Store, clock: FakeClock) -> None:
    first, second = an_answer_kept(submit(store).id), an_answer_kept(submit(store).id)
    keep(store, "key", first, lasts=DAY)

    clock.advance(hours=23, minutes=59)
    assert keep(store, "key", second) is False
    clock.advance(minutes=1)
    with store.snapshot() as tx:
        assert tx.idempotency.find("default", "key", tx.now()) is None
    assert keep(store, "key", second) is True


def test_keys_that_have_had_their_time_are_purged(store: Store, clock: FakeClock) -> None:
    job_id = submit(store).id
    keep(store, "short", an_answer_kept(job_id), lasts=timedelta(hours=1))
    keep(store, "long", an_answer_kept(job_id), lasts=timedelta(hours=2))
    clock.advance(hours=1)

    with store.transaction() as tx:
        assert tx.idempotency.purge(tx.now()) == 1
        assert tx.idempotency.purge(tx.now()) == 0
        assert tx.idempotency.find("default", "long", tx.now()) is not None


@both_databases
def test_two_requests_with_one_key_at_the_same_moment_make_one_job(store: Store) -> None:
    class Second(Exception):
        """Rolls the second job back, as the caller is told to."""

    def request() -> str | None:
        try:
            with store.transaction() as tx:
                job = transitions.submit_bulk(tx, a_new_job(), tx.now()).job
                if not tx.idempotency.keep(
                    "default", "key", an_answer_kept(job.id), tx.now(), tx.now() + DAY
                ):
                    raise Second
                return job.id
        except Second:
            return None

    made = at_once(request, request, request)

    [job_id] = [job_id for job_id in made if job_id is not None]
    with store.snapshot() as tx:
        assert [job.id for job in tx.jobs.list("default", limit=10)] == [job_id]
        kept = tx.idempotency.find("default", "key", tx.now())
        assert kept is not None
        assert kept.job_id == job_id
