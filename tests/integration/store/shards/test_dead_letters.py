"""Rows that crash workers: suspected, cleared, made dead letters, decided about."""

from collections.abc import Sequence

from nightshift.fleet.workers import ExitCause, WorkerState
from nightshift.jobs import BulkClaim, Counts, CrashHistory, JobState, ShardState
from nightshift.jobs.dead_letters import ERROR_CODE, UNEXPLAINED_CRASHES_MAX, DeadLetter, DeadLetterState
from nightshift.lifecycle.recovery import release_worker
from nightshift.store import Store
from tests.helpers.fakes import (
    FakeClock,
    a_dead_letter,
    a_worker,
    claimed,
    claimed_online,
    commit_rows,
    planned,
    submit_online,
)
from tests.integration.store.racing import at_once, both_databases
from tests.integration.store.watching import counters, fetch

ATTEMPTS_MAX = 20
TENANT = "default"


def dies(store: Store, cause: ExitCause = ExitCause.ABORTED, worker_id: str = "worker_1") -> None:
    with store.transaction() as tx:
        release_worker(tx, worker_id, ATTEMPTS_MAX, tx.now(), cause)


def begins(store: Store, claim: BulkClaim, rows: Sequence[int]) -> None:
    with store.transaction() as tx:
        assert tx.dead_letters.journal(claim.lease, rows)


def lose_two_workers(store: Store, rows: Sequence[int]) -> None:
    """The first makes the shard be watched, the second had these rows in its engine."""
    claimed(store)
    dies(store)
    begins(store, claimed(store), rows)
    dies(store)


def letters(store: Store, **wanted: object) -> Sequence[DeadLetter]:
    with store.snapshot() as tx:
        return tx.dead_letters.list(TENANT, limit=10, **wanted)


def test_rows_under_way_in_the_second_are_suspects_and_the_one_alone_in_the_third_dies(store: Store) -> None:
    planned(store)
    assert not claimed(store).crash_history.is_watched
    dies(store)
    second = claimed(store)
    assert second.crash_history == CrashHistory(crashes=1)
    begins(store, second, [4, 5])
    dies(store)
    third = claimed(store)
    assert third.crash_history == CrashHistory(crashes=2, suspects=(4, 5))
    begins(store, third, [4])
    dies(store, ExitCause.OUT_OF_MEMORY)

    fourth = claimed(store)
    assert fourth.crash_history == CrashHistory(crashes=2, suspects=(5,), dead=frozenset({4}))
    [letter] = letters(store)
    assert (letter.row, letter.cause, letter.crashes) == (4, ExitCause.OUT_OF_MEMORY, 3)
    assert counters(store) == {
        "crashes.aborted": 2,
        "crashes.out_of_memory": 1,
        "rows_dead": 1,
    }


def test_rows_that_finish_first_do_not_hide_the_one_that_crashes(store: Store) -> None:
    planned(store)
    claim = claimed(store)
    commit_rows(store, claim.lease)
    dies(store)
    claim = claimed(store)
    commit_rows(store, claim.lease)
    begins(store, claim, [7])
    dies(store)
    claim = claimed(store)
    commit_rows(store, claim.lease)
    begins(store, claim, [7])
    dies(store)

    assert [letter.row for letter in letters(store)] == [7]


def test_a_row_begun_after_the_last_suspect_was_cleared_costs_three_workers_too(store: Store) -> None:
    """Its shard still writes down what is under way, and nothing was before."""
    planned(store)
    lose_two_workers(store, [4])
    third = claimed(store)
    with store.transaction() as tx:
        assert tx.dead_letters.clear_suspect(third.lease, 4)
    begins(store, third, [9])
    for lost in range(1, 4):
        assert letters(store) == [], f"{lost - 1} lost"
        dies(store)
        if lost < 3:
            begins(store, claimed(store), [9])

    assert [(letter.row, letter.crashes) for letter in letters(store)] == [(9, 3)]


def test_what_a_worker_held_beside_a_row_that_ran_alone_is_not_charged(store: Store) -> None:
    planned(store)
    lose_two_workers(store, [4])
    isolating = claimed(store)
    planned(store)
    bystander = claimed(store)
    online = submit_online(store)
    claimed_online(store, online.shard_id)
    begins(store, isolating, [4])
    dies(store)

    claims = {claim.shard.id: claim for claim in (claimed(store), claimed(store))}
    assert claims[bystander.shard.id].crash_history == CrashHistory()
    assert claims[bystander.shard.id].shard.attempts == 1
    assert claimed_online(store, online.shard_id).runs_alone is False


def test_a_shard_that_makes_progress_outlives_the_crashes_of_other_jobs_rows(store: Store) -> None:
    """A row that crashes workers costs two before it runs alone, and what ran beside it is charged both."""
    planned(store)
    for _ in range(2 * ATTEMPTS_MAX):
        assert commit_rows(store, claimed(store).lease)
        dies(store)

    assert claimed(store).shard.attempts == 2 * ATTEMPTS_MAX + 1


def test_a_shard_without_progress_is_worn_out_whatever_it_had_done_before(store: Store) -> None:
    job = planned(store)
    assert commit_rows(store, claimed(store).lease)
    dies(store, ExitCause.KILLED)
    for _ in range(ATTEMPTS_MAX - 1):
        claimed(store)
        dies(store, ExitCause.KILLED)

    with store.snapshot() as tx:
        assert tx.shards.of_job(job.id, limit=1)[0].state is ShardState.FAILED


def test_a_watched_shard_with_no_row_in_flight_is_not_charged_beside_others(store: Store) -> None:
    """It waits for its turn: the rows beside it crashed the worker."""
    planned(store)
    claimed(store)
    dies(store)
    for _ in range(5):
        waits = claimed(store)
        claimed_online(store, submit_online(store).shard_id)
        dies(store)

    after = claimed(store)
    assert after.shard.id == waits.shard.id
    assert (after.shard.attempts, after.crash_history) == (2, CrashHistory(crashes=1))


def test_a_worker_that_was_too_slow_to_drain_makes_no_row_a_suspect(store: Store) -> None:
    planned(store)
    claimed(store)
    dies(store, ExitCause.DRAIN_TOO_SLOW)

    claim = claimed(store)
    assert (claim.crash_history, claim.shard.attempts) == (CrashHistory(), 1)


def test_an_online_request_that_crashes_three_workers_fails_and_says_why(store: Store) -> None:
    online = submit_online(store)
    for runs_alone in (False, False, True):
        claim = claimed_online(store, online.shard_id)
        assert claim.runs_alone is runs_alone
        if runs_alone:
            with store.transaction() as tx:
                assert tx.dead_letters.journal(claim.lease, [0])
        dies(store)

    ended = fetch(store, online.job)
    assert (ended.state, ended.counts) == (JobState.FAILED, Counts(1, 0, 1))
    assert ended.errors[0].code == ERROR_CODE
    assert [letter.job_id for letter in letters(store)] == [online.job.id]


def test_an_online_request_that_only_waits_to_run_alone_is_not_charged_a_crash(store: Store) -> None:
    online = submit_online(store)
    for _ in range(7):
        claimed_online(store, online.shard_id)
        dies(store)

    assert claimed_online(store, online.shard_id).runs_alone
    assert letters(store) == []


def test_a_second_row_that_crashes_workers_has_its_own_three_crashes(store: Store) -> None:
    planned(store)
    lose_two_workers(store, [4, 5])
    begins(store, claimed(store), [4])
    dies(store)
    fourth = claimed(store).lease
    with store.transaction() as tx:
        assert tx.dead_letters.clear_suspect(fourth, 5)
        assert tx.dead_letters.journal(fourth, [90, 91])
    for _ in range(2):
        dies(store)
        assert [letter.row for letter in letters(store)] == [4]
        begins(store, claimed(store), [90])
    dies(store)

    assert {letter.row: letter.crashes for letter in letters(store)} == {4: 3, 90: 3}


def test_a_healthy_row_in_workers_that_are_killed_all_the_time_lives_and_its_success_clears_it(
    store: Store,
) -> None:
    planned(store)
    lose_two_workers(store, [4])
    for _ in range(UNEXPLAINED_CRASHES_MAX - 3):
        begins(store, claimed(store), [4])
        dies(store, ExitCause.KILLED)
    assert letters(store) == []

    lease = claimed(store).lease
    with store.transaction() as tx:
        assert tx.dead_letters.clear_suspect(lease, 4)
        assert tx.dead_letters.suspects(lease.shard_id) == {}
        assert tx.leases.hand_back(lease)
    assert claimed(store).crash_history == CrashHistory(), "the last suspect clears the shard"


def test_a_row_whose_crashes_nothing_explains_ends_after_a_bounded_number_of_workers(store: Store) -> None:
    planned(store)
    claimed(store)
    dies(store, ExitCause.KILLED)
    for _ in range(UNEXPLAINED_CRASHES_MAX - 1):
        assert letters(store) == []
        begins(store, claimed(store), [4])
        dies(store, ExitCause.KILLED)

    assert [(letter.row, letter.crashes) for letter in letters(store)] == [(4, UNEXPLAINED_CRASHES_MAX)]


def test_a_worker_is_lost_once_however_often_that_is_noticed(store: Store) -> None:
    """Its leases expire; later, whether or not it comes back in between, its process ends."""
    with store.transaction() as tx:
        tx.workers.register(a_worker(id="worker_1"))
    dies(store, ExitCause.LEASE_EXPIRED)
    dies(store, ExitCause.KILLED)
    with store.transaction() as tx:
        assert tx.counters.values() == {"crashes.lease_expired": 1}
        tx.workers.record_heartbeat("worker_1", WorkerState.READY, tx.now())
    dies(store, ExitCause.KILLED)

    assert counters(store) == {"crashes.lease_expired": 1}


@both_databases
def test_of_two_that_notice_a_loss_at_once_one_counts_it(store: Store) -> None:
    with store.transaction() as tx:
        tx.workers.register(a_worker(id="worker_1"))

    def notice() -> bool:
        return store.run(lambda tx: tx.workers.mark_loss_counted("worker_1", tx.now()))

    assert sorted(at_once(*[notice] * 4)) == [False, False, False, True]


def test_of_two_rows_journalled_as_alone_in_one_worker_neither_is_dead(store: Store) -> None:
    requests = [submit_online(store), submit_online(store)]
    for is_alone in (False, False, True):
        claims = [claimed_online(store, one.shard_id) for one in requests]
        for claim in claims if is_alone else ():
            with store.transaction() as tx:
                assert tx.dead_letters.journal(claim.lease, [0])
        dies(store)

    assert letters(store) == []
    assert [claimed_online(store, one.shard_id).runs_alone for one in requests] == [True, True]


def test_tokens_that_died_with_a_worker_are_counted(store: Store) -> None:
    job = planned(store)
    claim = claimed(store)
    with store.transaction() as tx:
        tx.leases.renew([claim.lease], tx.now(), 30, {claim.shard.id: 70})
    dies(store, ExitCause.KILLED)

    with store.snapshot() as tx:
        assert tx.jobs.fetch(job.id).tokens_redone == 70
        assert tx.counters.values()["tokens_redone"] == 70


def test_a_dead_letter_is_decided_about_once(store: Store, clock: FakeClock) -> None:
    planned(store)
    lose_two_workers(store, [4])
    begins(store, claimed(store), [4])
    dies(store)
    [letter] = letters(store, state=DeadLetterState.DEAD)

    with store.transaction() as tx:
        assert tx.dead_letters.discard(TENANT, letter.id, clock.now)
        assert not tx.dead_letters.replay(TENANT, letter.id, "job_1", clock.now)

    assert letters(store, job_id="job_unknown") == letters(store, after=letter) == []
    [decided] = letters(store, state=DeadLetterState.DISCARDED)
    assert (decided.decided_at, decided.replay_job_id) == (clock.now, None)
    assert letters(store, state=DeadLetterState.DEAD) == []


def test_the_latest_dead_letters_come_first_and_a_page_goes_on_after_one(
    store: Store, clock: FakeClock
) -> None:
    job = planned(store)
    shard_id = claimed(store).shard.id
    with store.transaction() as tx:
        for row in range(3):
            tx.dead_letters.insert(a_dead_letter(job, shard_id, row, died_at=clock.advance(seconds=1)))

    first, second, third = letters(store)
    assert [first.row, second.row, third.row] == [2, 1, 0]
    assert letters(store, after=first) == [second, third]
    assert letters(store, job_id="job_unknown") == []
