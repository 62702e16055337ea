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


def test_the_first_answer_to_a_key_is_given_again_until_its_time_is_over(
    store: Store, clock: FakeClock
) -> None:
    first, second = an_answer_kept(submit(store).id), an_answer_kept(submit(store).id)
    assert keep(store, "key", first, lasts=DAY)

    clock.advance(hours=23, minutes=59)
    assert keep(store, "key", second) is False
    with store.snapshot() as tx:
        assert tx.idempotency.find("default", "key", tx.now()) == first
        assert tx.idempotency.find("default", "another", tx.now()) is None
    clock.advance(minutes=1)
    with store.snapshot() as tx:
        assert tx.idempotency.find("default", "key", tx.now()) is None
    assert keep(store, "key", second) is True


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
