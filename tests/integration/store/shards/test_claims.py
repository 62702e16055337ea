"""Who gets which shard: `claims.bulk` and `claims.online`."""

import random
from collections import Counter
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from nightshift.fleet.workers import Capacity, Machine
from nightshift.jobs import Job, JobKind, JobState, StopReason
from nightshift.jobs.capacity.forecasts import RunningJob, forecasts
from nightshift.jobs.leases import Lease
from nightshift.jobs.planning import PlanCursor
from nightshift.jobs.priorities import ROOM_FOR_ALL, SMALL_JOB_ROWS, PriorityClass, PriorityConfig, Room
from nightshift.lifecycle import transitions
from nightshift.store import Store, tables
from nightshift.store.databases.database import Database
from nightshift.store.shards.claims import WaitingWork
from tests.helpers.claim_model import claim_key, effective_rank
from tests.helpers.fakes import (
    MODEL,
    STARTS_AT,
    TTL_S,
    FakeClock,
    a_shard,
    a_spec,
    claim,
    claimed,
    claimed_online,
    planned,
    submit,
    submit_online,
)
from tests.integration.store.racing import (
    WAIT_MAX_S,
    at_once,
    both_databases,
    in_background,
    wait_until_blocked,
)
from tests.integration.store.watching import fetch, request_stop

INTERACTIVE, STANDARD, BACKGROUND = PriorityClass
DAY_S = 86_400
SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(2, 6))]
OTHER_MODEL = "another"


def online_claims(store: Store, *shard_ids: str | None, worker_id: str = "worker_1") -> list[Lease]:
    wanted = [shard_id for shard_id in shard_ids if shard_id is not None]
    with store.transaction() as tx:
        claims = tx.claims.online(wanted, worker_id, [MODEL, OTHER_MODEL], tx.now(), TTL_S)
        return [claim.lease for claim in claims]


def next_online(store: Store, *, limit: int = 100) -> list[str]:
    """The shards that a worker with so many places would claim, the best first."""
    with store.snapshot() as tx:
        return list(tx.claims.next_online([MODEL, OTHER_MODEL], tx.now(), limit))


def several_asked(
    store: Store,
    clock: FakeClock,
    tenant_id: str,
    count: int,
    priority: PriorityClass = INTERACTIVE,
    model: str = MODEL,
) -> list[str]:
    """Online requests of a tenant, a second apart; their shards, the oldest first."""
    shard_ids = []
    for _ in range(count):
        submitted = submit_online(store, tenant_id=tenant_id, priority=priority, model=model)
        clock.advance(seconds=1)
        assert submitted.shard_id is not None
        shard_ids.append(submitted.shard_id)
    return shard_ids


# -- what a claim does ---------------------------------------------------------------------------------


def test_the_shards_of_a_job_are_claimed_in_the_order_of_the_input(store: Store) -> None:
    planned(store, shards=4)

    assert [claimed(store).shard.shard_no for _ in range(4)] == [0, 1, 2, 3]


def claims_within(store: Store, room: Room) -> list[str]:
    """The jobs of which a worker claims shards, in order."""
    jobs = []
    while True:
        with store.transaction() as tx:
            claim = tx.claims.bulk("worker_1", [MODEL, OTHER_MODEL], tx.now(), TTL_S, room=room)
        if claim is None:
            return jobs
        jobs.append(claim.job.id)


def test_a_worker_leaves_out_the_models_and_tenants_that_it_has_no_room_for(store: Store) -> None:
    mine = planned(store, tenant_id="tnt_a", model=MODEL)
    mine_other = planned(store, tenant_id="tnt_a", model=OTHER_MODEL)
    yours = planned(store, tenant_id="tnt_b", model=MODEL)
    room = Room(
        full_models=frozenset({OTHER_MODEL}), full_pairs=frozenset({("tnt_a", MODEL), ("tnt_c", MODEL)})
    )

    assert claims_within(store, room) == [yours.id]
    assert claims_within(store, Room(full_pairs=frozenset({("tnt_a", MODEL)}))) == [mine_other.id]
    assert claims_within(store, ROOM_FOR_ALL) == [mine.id]


def test_of_a_tenant_with_many_rows_in_a_model_only_small_jobs_are_claimed(store: Store) -> None:
    large = planned(store, tenant_id="tnt_a", rows_total=SMALL_JOB_ROWS + 1)
    unknown = planned(store, tenant_id="tnt_a")
    small = planned(store, tenant_id="tnt_a", rows_total=SMALL_JOB_ROWS)
    estimated = submit(store, tenant_id="tnt_a", model=MODEL)
    being_cut = submit(store, tenant_id="tnt_a", model=MODEL)
    yours = planned(store, tenant_id="tnt_b", rows_total=SMALL_JOB_ROWS + 1)
    with store.transaction() as tx:
        transitions.plan(tx, estimated, MODEL, [a_shard(0)], tx.now(), rows_estimated=1)
        transitions.plan(
            tx, being_cut, MODEL, [a_shard(0)], tx.now(), rows_estimated=1, next=PlanCursor(page=1, shards=1)
        )

    assert set(claims_within(store, Room(loaded_pairs=frozenset({("tnt_a", MODEL)})))) == {
        small.id,
        estimated.id,
        yours.id,
    }
    assert set(claims_within(store, ROOM_FOR_ALL)) == {large.id, unknown.id, being_cut.id}


def test_only_planned_work_of_the_workers_models_and_of_its_own_kind_is_claimed(store: Store) -> None:
    submit(store)  # its input has not been read
    other, request = planned(store, model="other"), submit_online(store)

    assert claim(store) is None
    assert claim(store, models=[]) is None
    with store.snapshot() as tx:
        [shard] = tx.shards.of_job(other.id, limit=10)
    assert online_claims(store, shard.id, submit_online(store, model="third").shard_id) == []
    assert [lease.job_id for lease in online_claims(store, request.shard_id)] == [request.job.id]
    assert claim(store, models=["other", "another"]) is not None


# -- which one -----------------------------------------------------------------------------------------


def record_work(store: Store, jobs: Collection[Job], work_left_s: Mapping[str, int]) -> None:
    """Records from when the jobs are urgent, as the scheduler does with a worker that runs a row a second."""
    with store.transaction() as tx:
        for job in {job.id: job for job in jobs}.values():
            running = RunningJob(
                id=job.id,
                model=MODEL,
                priority=job.priority,
                rows_left=work_left_s[job.id],
                deadline_at=job.deadline_at,
            )
            [forecast] = forecasts([running], {MODEL: 1.0}, {MODEL: 1}, tx.now())
            tx.windows.record(forecast)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_claim_sorts_by_what_priorities_describes(store: Store, clock: FakeClock, seed: int) -> None:
    """Jobs of every class, age and haste, of three tenants; nothing ends meanwhile."""
    draw, config = random.Random(seed), PriorityConfig()
    waiting: list[Job] = []  # once for each of its shards
    work_left_s: dict[str, int] = {}
    for _ in range(12):
        age, left = draw.choice([0, 1, 6 * 3600 - 1, 6 * 3600]), draw.choice([1800, 1801, DAY_S])
        shards = draw.randint(1, 4)
        clock.now = STARTS_AT - timedelta(seconds=age)
        job = planned(
            store,
            tenant_id=draw.choice("aaabbc"),
            priority=draw.choice(list(PriorityClass)),
            shards=shards,
            spec=a_spec(completion_window_s=age + left),
        )
        waiting += [job] * shards
        work_left_s[job.id] = draw.choice([0, left * 4 // 5 - 1, left * 4 // 5 + 1])
    now = clock.now = STARTS_AT
    record_work(store, waiting, work_left_s)
    in_flight: Counter[str] = Counter()

    def rank(job: Job) -> int:
        left_s = work_left_s[job.id]
        return effective_rank(job.priority, job.created_at, job.deadline_at, now, config, left_s)

    def key(job: Job) -> tuple[Any, ...]:
        alike = [other for other in waiting if other.priority is job.priority]
        lifted = [in_flight[other.tenant_id] for other in alike if rank(other) < other.priority.rank]
        served = claim_key(job.priority, rank(job), in_flight[job.tenant_id], min(lifted, default=None))
        return (*served, job.deadline_at, job.created_at, job.id)

    while waiting:
        expected = min(waiting, key=key)
        assert claimed(store).job.id == expected.id
        waiting.remove(expected)
        in_flight[expected.tenant_id] += 1


def test_the_tenant_with_the_least_in_flight_goes_first(store: Store, clock: FakeClock) -> None:
    planned(store, tenant_id="large", shards=100)
    clock.advance(hours=1)
    planned(store, tenant_id="small", shards=3)

    served = [claimed(store).lease.tenant_id for _ in range(8)]

    assert served == ["large", "small", "large", "small", "large", "small", "large", "large"]


def aged_backlog(store: Store, clock: FakeClock, tenant_id: str, **options: Any) -> None:
    """More than is claimed here, for so long that it counts as one class better."""
    for _ in range(3):
        planned(store, tenant_id=tenant_id, shards=20, **options)
    clock.advance(hours=6)


# An aged backlog of a class, then other jobs (tenant, class and shards), and the tenants served in turn.
AGED = {
    "it keeps no other tenant waiting": (
        ("old", STANDARD),
        [("new", STANDARD, 3)],
        ["old", "new", "old", "new", "old", "new", "old", "old"],
    ),
    "a lower class takes turns with the better one": (
        ("old", BACKGROUND),
        [("new", STANDARD, 20)],
        ["old", "new"] * 3,
    ),
    "its turns are shared within its class": (
        ("old", BACKGROUND),
        [("new", STANDARD, 20), ("joined", BACKGROUND, 2)],
        ["old", "new", "joined", "old", "new", "joined", "old", "new"],
    ),
}


@pytest.mark.parametrize("name", AGED)
def test_turns_beside_a_backlog_that_has_grown_old(store: Store, clock: FakeClock, name: str) -> None:
    (tenant_id, priority), others, served = AGED[name]
    aged_backlog(store, clock, tenant_id, priority=priority)
    for other, of_class, shards in others:
        planned(store, tenant_id=other, priority=of_class, shards=shards)

    assert [claimed(store).lease.tenant_id for _ in served] == served


def test_what_has_grown_old_goes_on_even_if_its_tenant_has_the_most_in_flight(
    store: Store, clock: FakeClock
) -> None:
    aged_backlog(store, clock, "only", priority=BACKGROUND)
    planned(store, tenant_id="only", shards=20, priority=STANDARD)

    assert [claimed(store).job.priority for _ in range(6)] == [BACKGROUND] * 6


def test_a_tenant_that_asks_for_haste_does_not_keep_another_waiting(store: Store) -> None:
    planned(store, tenant_id="hasty", shards=20, spec=a_spec(completion_window_s=1800))
    planned(store, tenant_id="patient", shards=3)

    assert [claimed(store).lease.tenant_id for _ in range(6)] == ["hasty", "patient"] * 3


# -- several at once -----------------------------------------------------------------------------------


@both_databases
def test_claimers_at_the_same_moment_never_get_the_same_shard(store: Store) -> None:
    for shards in (7, 1, 12):
        planned(store, shards=shards)

    def claim_until_nothing_is_left(worker_id: str) -> list[str]:
        taken = []
        while (next_claim := claim(store, worker_id)) is not None:
            taken.append(next_claim.lease.shard_id)
        return taken

    taken = at_once(*[lambda name=f"worker_{n}": claim_until_nothing_is_left(name) for n in range(4)])

    counts = Counter(shard_id for shard_ids in taken for shard_id in shard_ids)
    assert len(counts) == 20
    assert set(counts.values()) == {1}


@both_databases
def test_an_online_request_is_claimed_once_however_often_it_is_rung(store: Store) -> None:
    shard_id = submit_online(store).shard_id

    leases = at_once(
        *[lambda name=f"worker_{n}": online_claims(store, shard_id, worker_id=name) for n in range(4)]
    )

    assert sum(map(len, leases)) == 1


def test_a_claimer_steps_over_a_shard_that_another_is_just_taking(
    postgresql_database: Database, clock: FakeClock
) -> None:
    store = Store(postgresql_database, clock=clock)
    planned(store, shards=3)
    claimed(store)  # the job is running; a job's first claim takes its turn

    with ThreadPoolExecutor(1) as thread, store.transaction() as tx:
        first = tx.claims.bulk("worker_1", [MODEL], tx.now(), TTL_S)
        second = thread.submit(claim, store, "worker_2").result(WAIT_MAX_S)  # before the first one's commit

    assert first is not None
    assert second is not None
    assert (first.shard.shard_no, second.shard.shard_no) == (1, 2)


@pytest.mark.parametrize("kind", JobKind)
def test_a_stop_and_a_first_claim_at_the_same_moment_do_not_block_each_other(
    postgresql_database: Database, clock: FakeClock, kind: JobKind
) -> None:
    """Both want the job and its shard. One that had the shard and waited for the job, while the other had the
    job and waited for the shard, would be broken off as a deadlock."""
    store = Store(postgresql_database, clock=clock)
    submitted = submit_online(store) if kind is JobKind.ONLINE else None
    job = submitted.job if submitted else planned(store)

    def stop() -> bool:
        return request_stop(store, job, StopReason.CANCELLED)

    def first_claim() -> bool:
        return bool(online_claims(store, submitted.shard_id)) if submitted else claim(store) is not None

    with postgresql_database.write() as holder:
        holder.execute(select(tables.job.c.id).where(tables.job.c.id == job.id).with_for_update())
        with in_background(stop) as stopping:
            wait_until_blocked(postgresql_database, transactions=1)
            with in_background(first_claim) as claiming:
                wait_until_blocked(postgresql_database, transactions=2)
                holder.commit()  # both go on, the stop first

    assert stopping.result() is True
    assert claiming.result() is False


# -- online --------------------------------------------------------------------------------------------


def test_an_online_claim_brings_the_request_along_and_how_long_it_has_waited(
    store: Store, clock: FakeClock
) -> None:
    body = {"messages": [{"role": "user", "content": "48213"}]}
    request = submit_online(store, body=body)
    clock.advance(seconds=7)

    claim = claimed_online(store, request.shard_id)

    assert (claim.job.id, claim.body, claim.lease.term, claim.waited_s) == (request.job.id, body, 1, 7)
    assert fetch(store, request.job).state is JobState.RUNNING


def test_an_online_request_that_is_to_wait_is_not_looked_for(store: Store, clock: FakeClock) -> None:
    request = submit_online(store)
    lease = claimed_online(store, request.shard_id).lease
    with store.transaction() as tx:
        tx.leases.delay(lease, clock.now + timedelta(seconds=5))

    assert next_online(store) == []
    clock.advance(seconds=5)
    assert next_online(store) == [request.shard_id]


def test_a_tenant_whose_online_requests_fill_the_queue_leaves_room_for_another(
    store: Store, clock: FakeClock
) -> None:
    large = several_asked(store, clock, "large", 5)
    small = several_asked(store, clock, "small", 2)

    assert next_online(store) == [large[0], small[0], large[1], small[1], *large[2:]]


def test_a_model_that_is_flooded_leaves_room_for_the_others_of_its_tenant(
    store: Store, clock: FakeClock
) -> None:
    flood = several_asked(store, clock, "one", 6)
    online_claims(store, *flood[:3])
    chats = several_asked(store, clock, "one", 2, model=OTHER_MODEL)
    other = several_asked(store, clock, "two", 2)

    assert next_online(store) == [other[0], other[1], chats[0], chats[1], *flood[3:]]


def test_online_fairness_counts_what_is_in_flight(store: Store, clock: FakeClock) -> None:
    large = several_asked(store, clock, "large", 5)
    online_claims(store, *large[:2])
    small = several_asked(store, clock, "small", 4)

    assert next_online(store) == [small[0], small[1], large[2], small[2], large[3], small[3], large[4]]


def test_a_better_class_of_online_requests_goes_before_fairness(store: Store, clock: FakeClock) -> None:
    background = several_asked(store, clock, "idle", 2, priority=BACKGROUND)
    interactive = several_asked(store, clock, "busy", 3)

    assert next_online(store) == interactive + background


@pytest.mark.parametrize("seed", SEEDS)
def test_several_online_requests_at_once_are_those_that_would_be_claimed_one_by_one(
    store: Store, clock: FakeClock, seed: int
) -> None:
    draw = random.Random(seed)
    shard_ids = []
    for _ in range(30):
        tenant, priority = draw.choice(["a", "a", "a", "b", "c"]), draw.choice(list(PriorityClass))
        model = draw.choice([MODEL, MODEL, OTHER_MODEL])
        shard_ids += several_asked(store, clock, tenant, 1, priority=priority, model=model)
    online_claims(store, *draw.sample(shard_ids, 5))

    at_once = next_online(store, limit=12)

    one_by_one = []
    for _ in at_once:
        [best] = next_online(store, limit=1)
        one_by_one.append(best)
        online_claims(store, best)
    assert at_once == one_by_one


# -- the kind of machine a job asks for ----------------------------------------------------------------

SERVED = {
    Capacity.SPOT: {"spot", "any"},
    Capacity.ON_DEMAND: {"on_demand", "any"},
}


def test_what_waits_is_told_by_model_with_its_class_its_age_and_whether_it_is_due(
    store: Store, clock: FakeClock
) -> None:
    planned(store, model="a", priority=PriorityClass.BACKGROUND)
    clock.advance(seconds=60)
    planned(store, model="a", priority=PriorityClass.STANDARD)
    planned(store, model="b", spec=a_spec(completion_window_s=1_200))  # within the half hour of the ramp
    submit_online(store, model="c", priority=PriorityClass.INTERACTIVE)
    planned(store, model="d")
    clock.advance(seconds=5)

    with store.snapshot() as tx:
        by_model = {work.model: work for work in tx.claims.waiting(["a", "b", "c"], tx.now())}

    assert by_model == {
        "a": WaitingWork("a", rank=1, is_due=False, waits_s=65.0),
        "b": WaitingWork("b", rank=1, is_due=True, waits_s=5.0),
        "c": WaitingWork("c", rank=0, is_due=True, waits_s=5.0),
    }


def test_what_no_worker_of_this_kind_may_claim_does_not_wait_for_it(store: Store) -> None:
    planned(store, spec=a_spec(capacity="spot"))
    planned(store, spec=a_spec(pool="gpu"))
    claimed = planned(store)

    with store.transaction() as tx:
        assert tx.claims.bulk("w", [MODEL], tx.now(), TTL_S).job.id == claimed.id
        assert tx.claims.waiting([MODEL], tx.now()) == []
        machine = Machine(Capacity.SPOT, ("gpu",))
        assert [work.model for work in tx.claims.waiting([MODEL], tx.now(), machine=machine)] == [MODEL]
        assert tx.claims.waiting([], tx.now()) == []


def test_a_job_that_names_a_pool_runs_on_its_workers_only(store: Store) -> None:
    wanted = {planned(store, spec=a_spec(pool=pool)).id: pool for pool in ("nightly", "gpu", None)}

    def claimed(*pools: str) -> set[str | None]:
        with store.transaction() as tx:
            machine = Machine(pools=pools)
            claims = [tx.claims.bulk("w", [MODEL], tx.now(), TTL_S, machine=machine) for _ in wanted]
        return {wanted[claim.job.id] for claim in claims if claim is not None}

    assert claimed() == {None}
    assert claimed("other") == set()
    assert claimed("gpu", "other") == {"gpu"}
    assert claimed("nightly") == {"nightly"}


@pytest.mark.parametrize("capacity", SERVED)
def test_a_worker_claims_online_requests_that_want_its_kind_of_machine_or_any(
    store: Store, capacity: Capacity
) -> None:
    wishes = {
        kind: a_spec(completion_window_s=600, input=None, output=None, capacity=kind)
        for kind in ("spot", "any", "on_demand")
    }
    asked_for = {submit_online(store, spec=spec).shard_id: kind for kind, spec in wishes.items()}

    with store.transaction() as tx:
        queued = tx.claims.next_online([MODEL], tx.now(), 10, Machine(capacity))
        claims = tx.claims.online(
            list(filter(None, asked_for)), "worker_1", [MODEL], tx.now(), TTL_S, machine=Machine(capacity)
        )

    assert {asked_for[shard_id] for shard_id in queued} == SERVED[capacity]
    assert {asked_for[claim.lease.shard_id] for claim in claims} == SERVED[capacity]
