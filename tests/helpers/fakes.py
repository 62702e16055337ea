"""A test kit for this repository and its extensions, independent of pytest.

Factories return domain values; steps (`submit`, `planned`, `asked` …) put them into a store as the service
does.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final

from nightshift import endpoints
from nightshift.broker.queue import BULK_QUEUE, ONLINE_QUEUE, Queue
from nightshift.broker.token_streams import StreamDeleter
from nightshift.bulk.results.row_results import RowResult, ShardHead
from nightshift.endpoints import Endpoint
from nightshift.endpoints.results import Result
from nightshift.errors import QueueUnavailable
from nightshift.fleet.workers import ExitCause, Worker, WorkerState
from nightshift.jobs import (
    Answer,
    BulkClaim,
    Counts,
    Face,
    Job,
    JobKind,
    JobSpec,
    JobState,
    JsonObject,
    NewJob,
    NewShard,
    OnlineClaim,
    Segment,
    Usage,
    segment_key,
)
from nightshift.jobs.dead_letters import DeadLetter
from nightshift.jobs.files import LIFETIME, File, FilePurpose, Upload, UploadPart, UploadStatus
from nightshift.jobs.ids import new_id
from nightshift.jobs.leases import Lease
from nightshift.jobs.options import OPTIONS, BulkOptions
from nightshift.jobs.priorities import PriorityClass
from nightshift.jobs.shard import Ring
from nightshift.lifecycle import transitions
from nightshift.lifecycle.submission import new_job
from nightshift.lifecycle.transitions import Submitted
from nightshift.objectstore import Locations, ObjectInfo, ObjectUri
from nightshift.outbound.webhook_endpoints import WebhookEndpoint
from nightshift.outbound.webhook_events import event_body
from nightshift.outbound.webhooks import Delivery, DeliveryAttempt, DeliveryState
from nightshift.schedules.plans import Plan, Schedule, ScheduleVersion
from nightshift.schedules.runs import Run, RunState
from nightshift.store import Store
from nightshift.tenants.keys import DEFAULT_TENANT, ApiKey, digest, key_id, new_key

MODEL: Final = "demo"  # every factory's default
WORKER: Final = "worker_1"  # the default claimant
TTL_S: Final = 30.0
STARTS_AT: Final = datetime(2026, 1, 31, 23, 30, tzinfo=UTC)


class FakeClock:
    """A clock that stands still: `Store(database, clock=clock)`."""

    def __init__(self, now: datetime = STARTS_AT) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **amount: float) -> datetime:
        """Moves on by `seconds=`, `minutes=`, `hours=` or `days=`. Returns the new time."""
        self.now += timedelta(**amount)
        return self.now


class InMemoryStreams(StreamDeleter):
    """Remembers whose streams were deleted."""

    def __init__(self) -> None:
        self.deleted: list[str] = []

    def delete(self, shard_ids: Sequence[str]) -> None:
        self.deleted.extend(shard_ids)

    def close(self) -> None:
        """Holds no connection."""


class InMemoryQueue(Queue):
    """Replaces the Redis queue. While `is_away`, it fails as an unreachable Redis does."""

    def __init__(self) -> None:
        self.rings: list[Ring] = []
        self.is_away = False

    def ring(self, rings: Sequence[Ring]) -> None:
        self.ping()
        self.rings.extend(rings)

    def take(self) -> list[Ring]:
        """The rings since the last call, best class first, then in order."""
        taken, self.rings = sorted(self.rings, key=lambda ring: ring.priority_rank), []
        return taken

    def length(self, queue: str) -> int:
        kind = {ONLINE_QUEUE: JobKind.ONLINE, BULK_QUEUE: JobKind.BULK}[queue]
        self.ping()
        return sum(ring.kind is kind for ring in self.rings)

    def lengths(self, queues: Sequence[str]) -> list[int]:
        return [self.length(queue) for queue in queues]

    def ping(self) -> None:
        if self.is_away:
            raise QueueUnavailable

    def close(self) -> None:
        self.rings = []


@contextmanager
def offered(endpoint: Endpoint) -> Iterator[None]:
    """Registers an endpoint during the block."""
    endpoints.register(endpoint)
    try:
        yield
    finally:
        endpoints.unregister(endpoint)


# -- values --------------------------------------------------------------------------------------------


_outputs = count()


def a_spec(**overrides: Any) -> JobSpec:
    """A bulk job over one file, within a day, with an output of its own. Options are named by themselves."""
    defaults = {
        "endpoint": "/v1/chat/completions",
        "completion_window_s": 86_400,
        "input": "s3://bucket/in.jsonl",
        "output": f"s3://bucket/out/{next(_outputs)}/",
    }
    wishes = {**defaults, **overrides}
    options = {option.field: wishes.pop(option.field) for option in OPTIONS if option.field in wishes}
    return JobSpec(**wishes, options=BulkOptions(**options))


def a_new_job(**overrides: Any) -> NewJob:
    """A checked bulk job for `MODEL`; `spec=` replaces the whole spec."""
    digest = hashlib.sha256(new_id("request").encode()).hexdigest()
    new = new_job(DEFAULT_TENANT, Face.NATIVE, a_spec(), fingerprint=digest)
    return replace(new, **{"model": MODEL, **overrides})


def a_new_request(**overrides: Any) -> NewJob:
    wishes = a_spec(completion_window_s=600, input=None, output=None)
    return a_new_job(
        **{"kind": JobKind.ONLINE, "priority": PriorityClass.INTERACTIVE, "spec": wishes, **overrides}
    )


def a_job(**overrides: Any) -> Job:
    """A job as the store returns it: bulk, queued, created at `STARTS_AT`."""
    job = Job(
        id=new_id("job"),
        tenant_id=DEFAULT_TENANT,
        kind=JobKind.BULK,
        face=Face.NATIVE,
        state=JobState.QUEUED,
        priority=PriorityClass.STANDARD,
        model=MODEL,
        spec=a_spec(),
        counts=Counts(),
        usage=Usage(),
        created_at=STARTS_AT,
        deadline_at=STARTS_AT + timedelta(days=1),
    )
    return replace(job, **overrides)


def a_shard(shard_no: int = 0, **overrides: Any) -> NewShard:
    """A planned shard: 1,000 bytes of a JSONL file."""
    shard = NewShard(
        shard_no=shard_no,
        uri="s3://bucket/in.jsonl",
        format="jsonl",
        start=shard_no * 1000,
        end=(shard_no + 1) * 1000,
    )
    return replace(shard, **overrides)


def a_segment(lease: Lease, seq: int = 0, *, rows: int = 4, failed: int = 0, shard_no: int = 0) -> Segment:
    """A segment written under this lease, with `failed` of its `rows` failed."""
    key = segment_key(lease, shard_no, seq)
    return Segment(
        key=key,
        term=lease.term,
        seq=seq,
        succeeded=rows - failed,
        failed=failed,
        usage=Usage(prompt_tokens=10 * rows, completion_tokens=5 * rows, cached_tokens=rows),
        size_bytes=100 * rows,
        sha256=hashlib.sha256(key.encode()).hexdigest(),
    )


def an_answer(status_code: int = 200, **overrides: Any) -> Answer:
    """An answer; an error from status 400."""
    body: JsonObject = {"choices": []}
    if status_code >= 400:
        body = {"error": {"code": "invalid_value", "message": "The prompt is too long."}}
    return replace(Answer(status_code, body, Usage(7, 3, 0)), **overrides)


def a_shard_head(**overrides: Any) -> ShardHead:
    """The head of a chat job's first shard."""
    head = ShardHead("job_1/0", "/v1/chat/completions", "demo", 1_700_000_000, PriorityClass.STANDARD)
    return replace(head, **overrides)


def a_row_result(row: int = 0, custom_id: str = "r1", status_code: int = 200, **overrides: Any) -> RowResult:
    """A result whose body is an empty object."""
    result = RowResult.from_result(
        a_shard_head(), row, custom_id, Result(status_code, Usage(3, 2, 1), body={})
    )
    return replace(result, **overrides)


def a_file(**overrides: Any) -> File:
    """A stored upload that never expires."""
    file = File(
        id=new_id("file", "-"),
        tenant_id=DEFAULT_TENANT,
        purpose=FilePurpose.BATCH,
        filename="requests.jsonl",
        size_bytes=1234,
        sha256=hashlib.sha256(b"requests").hexdigest(),
        created_at=STARTS_AT,
        expires_at=None,
    )
    return replace(file, **overrides)


def an_upload(**overrides: Any) -> Upload:
    """A pending upload of 27 bytes, begun at `STARTS_AT`."""
    upload = Upload(
        id=new_id("upload"),
        tenant_id=DEFAULT_TENANT,
        purpose=FilePurpose.BATCH,
        filename="in.jsonl",
        size_bytes=27,
        created_at=STARTS_AT,
        expires_at=STARTS_AT + LIFETIME,
        file_expires_after_s=None,
        status=UploadStatus.PENDING,
    )
    return replace(upload, **overrides)


def an_upload_part(upload: Upload, data: bytes = b"", **overrides: Any) -> UploadPart:
    """A part of this upload with these bytes."""
    part = UploadPart(
        id=new_id("part"),
        upload_id=upload.id,
        tenant_id=upload.tenant_id,
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        created_at=STARTS_AT,
    )
    return replace(part, **overrides)


def a_dead_letter(job: Job, shard_id: str, row: int = 3, **overrides: Any) -> DeadLetter:
    """A row of this shard that has crashed three workers."""
    letter = DeadLetter(
        id=new_id("dlq"),
        tenant_id=job.tenant_id,
        job_id=job.id,
        shard_id=shard_id,
        row=row,
        cause=ExitCause.ABORTED,
        crashes=3,
        worker_id=WORKER,
        died_at=STARTS_AT,
    )
    return replace(letter, **overrides)


def an_api_key(key: str | None = None, **overrides: Any) -> ApiKey:
    """The stored form of this or a new key."""
    key = key or new_key()
    stored = ApiKey(
        id=key_id(key) or "",
        tenant_id=DEFAULT_TENANT,
        name="laptop",
        key_sha256=digest(key),
        last4=key[-4:],
        created_at=STARTS_AT,
    )
    return replace(stored, **overrides)


def a_delivery(job: Job, **overrides: Any) -> Delivery:
    """A pending delivery of this job's event, without attempts."""
    event_id = new_id("evt")
    delivery = Delivery(
        id=new_id("dlv"),
        event_id=event_id,
        tenant_id=job.tenant_id,
        job_id=job.id,
        event_type="job.succeeded",
        url="https://receiver.example/hook",
        body=event_body(event_id, "job.succeeded", job, STARTS_AT),
        state=DeliveryState.PENDING,
        attempts=0,
        next_at=STARTS_AT,
        created_at=STARTS_AT,
    )
    return replace(delivery, **overrides)


def a_webhook_endpoint(**overrides: Any) -> WebhookEndpoint:
    """An enabled endpoint for every event."""
    endpoint = WebhookEndpoint(
        id=new_id("whe"),
        tenant_id=DEFAULT_TENANT,
        name="pager",
        url="https://endpoint.example/hook",
        event_types=("*",),
        secret=b"encrypted",
        secret_hint="whsec_…abc=",
        created_at=STARTS_AT,
        updated_at=STARTS_AT,
    )
    return replace(endpoint, **overrides)


def a_schedule(*, name: str = "nightly", plan: Mapping[str, Any] = {}, **overrides: Any) -> Schedule:
    """A schedule of a plan for every night, which waits for the next one. `plan`: fields of its plan."""
    schedule = Schedule(
        id=new_id("sched"),
        tenant_id=DEFAULT_TENANT,
        name=name,
        current=a_schedule_version(Plan(name=name, **{"cron": "30 1 * * *"} | dict(plan))),
        key_id="k3v9x1qz",
        created_at=STARTS_AT,
        next_at=STARTS_AT + timedelta(hours=2),
    )
    return replace(schedule, **overrides)


def a_schedule_version(plan: Plan, **overrides: Any) -> ScheduleVersion:
    version = ScheduleVersion(
        version=1,
        created_at=STARTS_AT,
        key_id="k3v9x1qz",
        fingerprint="f" * 64,
        plan=plan,
        job={},
        webhook=None,
        spec=a_spec(output="s3://bucket/out/{{date}}/").to_json(),
        priority=PriorityClass.STANDARD,
    )
    return replace(version, **overrides)


def a_schedule_run(schedule: Schedule, **overrides: Any) -> Run:
    """A run that is to be looked at."""
    run = Run(
        id=new_id("run"),
        schedule_id=schedule.id,
        tenant_id=schedule.tenant_id,
        version=schedule.current.version,
        due_at=STARTS_AT,
        local_date="2026-01-31",
        state=RunState.WAITING,
        check_at=STARTS_AT,
    )
    return replace(run, **overrides)


def an_attempt(delivery: Delivery, *, status_code: int | None = 200, **overrides: Any) -> DeliveryAttempt:
    """The next attempt of a delivery, with the receiver's answer."""
    attempt = DeliveryAttempt(
        attempt_no=delivery.attempts + 1,
        started_at=STARTS_AT,
        latency_ms=12,
        status_code=status_code,
        error=None,
        response_head="thank you",
    )
    return replace(attempt, **overrides)


def a_worker(**overrides: Any) -> Worker:
    """A worker that serves `MODEL`, last seen at `STARTS_AT`."""
    worker = Worker(
        id=new_id("worker"),
        host="gpu-1",
        pid=4711,
        state=WorkerState.READY,
        models=(MODEL,),
        started_at=STARTS_AT,
        heartbeat_at=STARTS_AT,
    )
    return replace(worker, **overrides)


def expanded(locations: Locations, uri: ObjectUri, tenant_id: str) -> list[ObjectInfo]:
    """The objects that a location stands for."""
    return [location.info for location in locations.listed(uri, tenant_id) if location.is_match]


# -- steps ---------------------------------------------------------------------------------------------


def submit(store: Store, **overrides: Any) -> Job:
    """Accepts a bulk job, not planned yet."""
    with store.transaction() as tx:
        return transitions.submit_bulk(tx, a_new_job(**overrides), tx.now()).job


def planned(store: Store, *, shards: int = 1, rows_total: int | None = None, **overrides: Any) -> Job:
    """Accepts a bulk job and cuts it into claimable shards."""
    job = submit(store, **overrides)
    with store.transaction() as tx:
        cut = [a_shard(number) for number in range(shards)]
        transitions.plan(tx, job, job.model or MODEL, cut, tx.now(), rows_total=rows_total)
        return tx.jobs.fetch(job.id)


def submit_online(store: Store, *, body: JsonObject | None = None, **overrides: Any) -> Submitted:
    """Accepts an online request."""
    with store.transaction() as tx:
        return transitions.submit_online(tx, a_new_request(**overrides), body or {"messages": []}, tx.now())


def claim(
    store: Store, worker_id: str = WORKER, *, models: Sequence[str] = (MODEL,), ttl_s: float = TTL_S
) -> BulkClaim | None:
    """Claims the best bulk shard, if there is one."""
    with store.transaction() as tx:
        return transitions.claim_bulk(tx, worker_id, models, tx.now(), ttl_s)


def claimed(store: Store, worker_id: str = WORKER, *, ttl_s: float = TTL_S) -> BulkClaim:
    """The same as `claim`, asserting that there is one."""
    shard = claim(store, worker_id, ttl_s=ttl_s)
    assert shard is not None, "there was no shard to claim"
    return shard


def claimed_online(store: Store, shard_id: str | None, worker_id: str = WORKER) -> OnlineClaim:
    """Claims this online request."""
    assert shard_id is not None, "this is not an online request"
    with store.transaction() as tx:
        [shard] = tx.claims.online([shard_id], worker_id, [MODEL], tx.now(), TTL_S)
        return shard


def commit_rows(store: Store, lease: Lease, seq: int = 0, *, rows: int = 4, failed: int = 0) -> bool:
    """Commits a segment. False: the lease is lost."""
    with store.transaction() as tx:
        segment = a_segment(lease, seq, rows=rows, failed=failed)
        return transitions.commit_segment(tx, lease, segment, tx.now(), rows_total=None)


def completed(store: Store, lease: Lease, *, rows_total: int) -> bool:
    """Completes a shard. False: the lease is lost, or rows are missing."""
    with store.transaction() as tx:
        return tx.shards.complete(lease, rows_total=rows_total)


def rescue(store: Store) -> int:
    with store.transaction() as tx:
        return sum(tx.leases.requeue(expired) for expired in tx.leases.expired(tx.now(), limit=1000))
