"""Metrics that the API reads from the database at each scrape, and of its own requests."""

from functools import partial
from typing import Final

from nightshift.process.metrics.family import CounterFamily, Family, GaugeFamily, HistogramFamily, Process

_gauge: Final = partial(GaugeFamily, process=Process.API)
_counter: Final = partial(CounterFamily, process=Process.API)
_histogram: Final = partial(HistogramFamily, process=Process.API)

DATABASE_UP: Final = _gauge(
    name="nightshift_database_up",
    help="1 if the database answers",
    closer="it is 0: nothing is accepted",
)

REDIS_UP: Final = _gauge(
    name="nightshift_redis_up",
    help="1 if Redis answers",
    closer="it is 0: work is accepted and done, more slowly",
)
DISK_BYTES: Final = _gauge(
    name="nightshift_disk_bytes", help="Size of the disk that the API's data directory is on"
)
DISK_FREE: Final = _gauge(
    name="nightshift_disk_free_bytes",
    help="What is free of it",
    closer="it comes near 0: new work is refused, and what runs waits for room",
)
SURROUNDINGS: Final = (REDIS_UP, DISK_BYTES, DISK_FREE)

SHARDS_QUEUED: Final = _gauge(
    name="nightshift_shards_queued",
    help="Unclaimed shards and online requests, without those of paused jobs",
    labels=("kind",),
    closer="they wait and no worker claims one: none serves the model, or has the job's `capacity` or `pool`",
)
JOBS: Final = _gauge(
    name="nightshift_jobs",
    help="Unfinished jobs, paused ones too",
    labels=("kind", "state"),
    closer="they stay in one state",
)
OUTBOX_RINGS: Final = _gauge(
    name="nightshift_outbox_rings",
    help="Rings not sent yet",
    closer="it grows: Redis is away, or no scheduler leads",
)
_GROUP: Final = ("kind", "model", "class", "capacity")


def _of_group(name: str, help: str, closer: str = "") -> GaugeFamily:
    return _gauge(name=f"nightshift_queue_{name}", help=help, labels=_GROUP, closer=closer)


QUEUE_QUEUED: Final = _of_group(
    "queued",
    "Shards and online requests that no worker has, without those of paused jobs",
    "it stands still while workers are ready: none has this model and capacity",
)
QUEUE_LEASED: Final = _of_group("leased", "Shards and online requests that workers have")
QUEUE_OLDEST: Final = _of_group(
    "oldest_seconds",
    "Since the oldest job was made that has some queued",
    "it grows, of `online`, beyond what clients wait for",
)
QUEUE_ROWS_LEFT: Final = _of_group(
    "rows_left", "Rows without a result, as far as they are known or estimated, without those of paused jobs"
)
WORKERS_WANTED: Final = _gauge(
    name="nightshift_workers_wanted",
    help="The fewest workers that end what waits before its deadlines, at the pace measured last. "
    "`capacity` is what the jobs ask for",
    labels=("model", "capacity"),
    closer="it is more than the workers there are: scale by it",
)
DEADLINE_SLACK: Final = _gauge(
    name="nightshift_deadline_slack_seconds",
    help="The least time from the predicted end of a bulk job to its deadline, with the workers there are",
    labels=("class",),
    closer="it is below 0: a job will be late",
)
LEASES_EXPIRED: Final = _counter(
    name="nightshift_leases_expired_total",
    help="Leases that ran out and whose shards were run again, or given up",
    closer="it grows: workers die, hang, or cannot reach the database",
)
QUEUE: Final = (
    SHARDS_QUEUED,
    QUEUE_QUEUED,
    QUEUE_LEASED,
    QUEUE_OLDEST,
    QUEUE_ROWS_LEFT,
    WORKERS_WANTED,
    DEADLINE_SLACK,
    JOBS,
    LEASES_EXPIRED,
    OUTBOX_RINGS,
)
WORKERS: Final = _gauge(
    name="nightshift_workers",
    help="Workers heard of in the last 30 s",
    labels=("state", "capacity"),
    closer="there are fewer than were started, or none is `ready`",
)

DELIVERIES: Final = _gauge(
    name="nightshift_deliveries",
    help="Webhook deliveries that are owed, or were given up and are kept",
    labels=("state",),
    closer="the `pending` ones grow: a receiver of webhooks is away; `dead` ones were given up",
)
DELIVERIES_OLDEST: Final = _gauge(
    name="nightshift_deliveries_oldest_seconds",
    help="Age of the oldest delivery that is owed; 0: none is",
    closer="it grows: a receiver is away, or no scheduler leads",
)
WEBHOOKS: Final = (DELIVERIES, DELIVERIES_OLDEST)


def _sum(name: str, help: str, closer: str) -> CounterFamily:
    return _counter(name=f"nightshift_{name}_total", help=help, closer=closer)


# The database's counters for the whole service, by name.
SUMS: Final = {
    "tokens_redone": _sum(
        "tokens_redone",
        "Tokens generated and lost with a worker, as last told by it, and so generated again",
        "it grows faster than machines are taken away",
    ),
    "rows_reused": _sum(
        "rows_reused",
        "Rows of bulk jobs that have the result of another row with the same request, of their own job or "
        "of an earlier one",
        "a nightly run reuses the one before, and it does not grow",
    ),
    "rows_dead": _sum(
        "rows_dead",
        "Rows that are run no more because they kill workers",
        "it grows: [decide](dead_letters.md#what-is-done-about-it)",
    ),
    "writes_fenced": _sum(
        "writes_fenced",
        "Checkpoints that the database refused because their lease was lost",
        "it grows. Each is harmless; many say that hosts pause, or that leases are too short",
    ),
    "messages_dropped": _sum(
        "messages_dropped",
        "Messages that workers found in the queues and that were none of ours",
        "it grows: another program, or a release that this one cannot read, writes into Redis' queues",
    ),
    "objects_collected": _sum(
        "objects_collected",
        "Objects deleted because nothing referred to them any more",
        "it grows faster than processes die: [collected objects](retention.md#collected-objects)",
    ),
}
WORKER_CRASHES: Final = _counter(
    name="nightshift_worker_crashes_total",
    help="Workers lost, by cause",
    labels=("cause",),
    closer="a cause grows that [is the worker's own](failures.md#why-a-worker-ended)",
)
LOSSES: Final = (*SUMS.values(), WORKER_CRASHES)

PROCESS_UP: Final = _gauge(
    name="nightshift_process_up",
    help="1 for each process whose metrics are on the page, 0 for one that does not answer",
    labels=("process",),
    closer="it is 0: the process is down, or hangs",
)

HTTP_REQUESTS: Final = _counter(
    name="nightshift_http_requests_total",
    help="Requests answered",
    labels=("method", "route", "status"),
    closer="many have status 5xx",
)
HTTP_SECONDS: Final = _histogram(
    name="nightshift_http_request_seconds",
    help="From the request's head to the last byte of its answer",
    labels=("method", "route"),
    closer="requests take long",
)
HTTP: Final = (HTTP_REQUESTS, HTTP_SECONDS)

SECTIONS: Final[dict[str, tuple[Family, ...]]] = {
    "What the service stands on": (DATABASE_UP, *SURROUNDINGS),
    "The queue": (*QUEUE, WORKERS),
    "Webhooks": WEBHOOKS,
    "Losses and savings": LOSSES,
    "Requests to the API": HTTP,
    "The processes of `nightshift up`": (PROCESS_UP,),
}
