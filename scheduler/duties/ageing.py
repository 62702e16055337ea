"""Deletes what has had its time: ended jobs, and before them bodies, results, events and deliveries.

Online jobs go at once, many in a transaction. What bulk jobs have becomes unreachable and is recorded as
deleted, and the duty `deletion` does the rest. Tenants take turns, a batch each.

A job stays for as long as a receiver is owed an event of it, and then for its time again. A request that is a
dead letter stays whole until it is decided about, or for the time of a bulk job: a replay needs its body.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import islice

from nightshift.broker.token_streams import StreamDeleter
from nightshift.jobs import JobKind
from nightshift.jobs.files import JobPart
from nightshift.process import failpoints
from nightshift.process.settings import RetentionSettings
from nightshift.store import PendingWork, Store, Transaction
from nightshift.store.jobs.ageing import EndedJob
from scheduler.runtime.duty import Every, MayContinue, PassResult, check, take_turns

Work = Callable[[Transaction, Sequence[str], datetime], int]  # on locked jobs; returns how many it changed


@dataclass(frozen=True)
class AgeingConfig:
    stays: RetentionSettings = field(default_factory=RetentionSettings)
    interval_s: float = 5.0  # between passes; a round is begun only …
    round_interval_s: float = 300.0  # … after this: what has had its time stays so much longer at most
    jobs_per_step_max: int = 200  # in one transaction, for which writers wait
    steps_per_pass_max: int = 50


@dataclass(frozen=True, kw_only=True)
class Aged(PassResult):
    """Counts of what a pass deleted, or recorded as deleted."""

    online_jobs: int = 0
    bodies: int = 0  # online jobs that stay without their bodies
    bulk_jobs: int = 0
    results: int = 0  # bulk jobs that stay without their results
    events: int = 0  # jobs that stay without their events
    deliveries: int = 0
    receivers: int = 0  # those of jobs that are gone
    workers: int = 0  # stopped ones


@dataclass(frozen=True)
class Rule:
    """The time for which a part of the jobs of one kind stays."""

    name: str  # a field of `Aged`
    kind: JobKind
    part: JobPart
    stays_s: float  # after the job's end
    work: Work


class Ageing:
    name = "ageing"

    def __init__(
        self,
        store: Store,
        streams: StreamDeleter,
        config: AgeingConfig = AgeingConfig(),
        may_continue: MayContinue = lambda: True,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._streams = streams
        self._config = config
        self.interval_s = config.interval_s
        self._may_continue = may_continue
        self._pause = pause
        self._begins = Every(config.round_interval_s)
        self._rules = rules(config.stays)
        self._round: deque[Iterator[Counter[str]]] = deque()  # a tenant each

    def due_at(self, work: PendingWork) -> datetime | None:
        return self._begins.due_at or work.at

    def run_once(self, now: datetime) -> Aged:
        """Some steps of a round over all tenants, if one is due."""
        if not self._round and self._begins.is_due(now):
            with self._store.snapshot() as tx:
                tenants = tx.ageing.tenants()
            self._round.extend(self._of_tenant(tenant_id, now) for tenant_id in tenants)
            self._round.append(self._workers(now))
        done: Counter[str] = Counter()
        turns = take_turns(self._round, self._may_continue, self._pause)
        try:
            for step in islice(turns, self._config.steps_per_pass_max):
                done += step
        except BaseException:
            self._round.clear()
            self._begins = Every(self._config.round_interval_s)  # at once
            raise
        return Aged(has_more=bool(self._round), **done)

    def _of_tenant(self, tenant_id: str, now: datetime) -> Iterator[Counter[str]]:
        for rule in self._rules:
            yield from self._by(rule, tenant_id, now)
        yield from self._deliveries(tenant_id, now)
        yield from self._receivers(tenant_id)

    def _by(self, rule: Rule, tenant_id: str, now: datetime) -> Iterator[Counter[str]]:
        until = now - timedelta(seconds=rule.stays_s)
        last: EndedJob | None = None
        limit = self._config.jobs_per_step_max
        while True:
            check(self._may_continue)
            with self._store.snapshot() as tx:
                page = tx.ageing.ended(tenant_id, rule.kind, rule.part, until, limit=limit, after=last)
                kept = self._kept(tx, rule, page, until, now)
            ids = [job.id for job in page if job.id not in kept]
            if ids:
                self._forget_tokens(rule, ids)
                delete = partial(_apply, rule=rule, job_ids=ids, now=now)
                done = self._store.run(delete, durable=False)
                failpoints.hit("scheduler.aged")
                yield Counter({rule.name: done})
            if len(page) < limit:
                return
            last = page[-1]

    def _forget_tokens(self, rule: Rule, job_ids: Sequence[str]) -> None:
        if rule.kind is JobKind.ONLINE and rule.part is not JobPart.EVENTS:
            with self._store.snapshot() as tx:
                shard_ids = tx.deletions.streamed(job_ids)
            self._streams.delete(shard_ids)

    def _kept(
        self, tx: Transaction, rule: Rule, page: Sequence[EndedJob], until: datetime, now: datetime
    ) -> set[str]:
        """Jobs with an undecided dead letter, and whole jobs that owe a receiver an event."""
        ids = [job.id for job in page]
        if not ids:
            return set()
        oldest = now - timedelta(seconds=self._config.stays.bulk_job_retention_s)
        young = {job.id for job in page if job.finished_at > oldest}
        awaited = tx.ageing.awaited(ids, until) if rule.part is JobPart.JOB else set()
        return awaited | (tx.ageing.undecided(ids) & young)

    def _deliveries(self, tenant_id: str, now: datetime) -> Iterator[Counter[str]]:
        until = now - timedelta(seconds=self._config.stays.delivery_retention_s)
        limit = self._config.jobs_per_step_max
        while done := self._store.run(
            lambda tx: tx.deletions.delete_ended_deliveries(tenant_id, until, limit), durable=False
        ):
            yield Counter(deliveries=done)

    def _receivers(self, tenant_id: str) -> Iterator[Counter[str]]:
        limit = self._config.jobs_per_step_max
        while done := self._store.run(
            lambda tx: tx.deletions.delete_gone_receivers(tenant_id, limit), durable=False
        ):
            yield Counter(receivers=done)

    def _workers(self, now: datetime) -> Iterator[Counter[str]]:
        until = now - timedelta(seconds=self._config.stays.worker_retention_s)
        limit = self._config.jobs_per_step_max
        while done := self._store.run(lambda tx: tx.workers.forget_stopped(until, limit), durable=False):
            yield Counter(workers=done)


def rules(stays: RetentionSettings) -> Sequence[Rule]:
    """The rules of retention, whole jobs first: what goes with a job needs no step of its own. A part that
    stays as long as its job has a rule too, since the job may stay longer. Pure.
    """
    online, bulk = JobKind.ONLINE, JobKind.BULK
    event_s = stays.event_retention_s
    return [
        Rule("online_jobs", online, JobPart.JOB, stays.online_job_retention_s, _delete_online),
        Rule("bodies", online, JobPart.RESULTS, stays.online_body_retention_s, _delete_bodies),
        Rule("events", online, JobPart.EVENTS, event_s, _delete_events),
        Rule("bulk_jobs", bulk, JobPart.JOB, stays.bulk_job_retention_s, _record(JobPart.JOB)),
        Rule("results", bulk, JobPart.RESULTS, stays.result_retention_s, _record(JobPart.RESULTS)),
        Rule("events", bulk, JobPart.EVENTS, event_s, _record(JobPart.EVENTS)),
    ]


def _apply(tx: Transaction, rule: Rule, job_ids: Sequence[str], now: datetime) -> int:
    """Locked first: nothing new of them is recorded meanwhile."""
    locked = tx.deletions.lock_ended(job_ids)
    return rule.work(tx, locked, now) if locked else 0


def _delete_online(tx: Transaction, job_ids: Sequence[str], now: datetime) -> int:
    return tx.deletions.delete_online(job_ids)


def _delete_bodies(tx: Transaction, job_ids: Sequence[str], now: datetime) -> int:
    tx.deletions.delete_bodies(job_ids)
    return len(tx.deletions.mark(job_ids, JobPart.RESULTS, now))


def _delete_events(tx: Transaction, job_ids: Sequence[str], now: datetime) -> int:
    tx.deletions.delete_events_but_last(job_ids)
    return len(tx.deletions.mark(job_ids, JobPart.EVENTS, now))


def _record(part: JobPart) -> Work:
    """Unreachable from the commit on; the duty `deletion` deletes rows and bytes."""

    def record(tx: Transaction, job_ids: Sequence[str], now: datetime) -> int:
        marked = tx.deletions.mark(job_ids, part, now)
        tx.deletions.record(marked, part, now)
        return len(marked)

    return record
