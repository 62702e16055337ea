"""Metrics that the API reads from the database at each scrape, and of its own requests."""

from typing import Final

from nightshift.metrics.family import CounterFamily, Family, GaugeFamily, HistogramFamily, Process

_API: Final = Process.API

DATABASE_UP: Final = GaugeFamily(
    name="nightshift_database_up",
    help="1 if the database answers",
    process=_API,
    closer="it is 0: nothing is accepted",
)

SHARDS_QUEUED: Final = GaugeFamily(
    name="nightshift_shards_queued",
    help="Unclaimed shards and online requests, without those of paused jobs",
    labels=("kind",),
    process=_API,
    closer="they wait and no worker claims one: none serves the model, or has the job's `capacity` or `pool`",
)
JOBS: Final = GaugeFamily(
    name="nightshift_jobs",
    help="Unfinished jobs, paused ones too",
    labels=("kind", "state"),
    process=_API,
    closer="they stay in one state",
)
OUTBOX_RINGS: Final = GaugeFamily(
    name="nightshift_outbox_rings",
    help="Rings not sent yet",
    process=_API,
    closer="it grows: Redis is away, or no scheduler leads",
)
QUEUE: Final = (SHARDS_QUEUED, JOBS, OUTBOX_RINGS)

DELIVERIES: Final = GaugeFamily(
    name="nightshift_deliveries",
    help="Webhook deliveries",
    labels=("state",),
    process=_API,
    closer="the `pending` ones grow: a receiver of webhooks is away; `dead` ones were given up",
)
WEBHOOKS: Final = (DELIVERIES,)


def _sum(name: str, help: str, closer: str) -> CounterFamily:
    return CounterFamily(name=f"nightshift_{name}_total", help=help, process=_API, closer=closer)


# The database's counters for the whole service, by name.
SUMS: Final = {
    "tokens_redone": _sum(
        "tokens_redone",
        "Tokens generated and lost with a worker, as last told by it, and so generated again",
        "it grows faster than machines are taken away",
    ),
    "rows_reused": _sum(
        "rows_reused",
        "Rows of bulk jobs that have the result of another row with the same request",
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
        "it grows faster than processes die: [collected objects](operations.md#collected-objects)",
    ),
}
WORKER_CRASHES: Final = CounterFamily(
    name="nightshift_worker_crashes_total",
    help="Workers lost, by cause",
    labels=("cause",),
    process=_API,
    closer="a cause grows that [is the worker's own](operations.md#why-a-worker-ended)",
)
LOSSES: Final = (*SUMS.values(), WORKER_CRASHES)

PROCESS_UP: Final = GaugeFamily(
    name="nightshift_process_up",
    help="1 for each process whose metrics are on the page, 0 for one that does not answer",
    labels=("process",),
    process=_API,
    closer="it is 0: the process is down, or hangs",
)

HTTP_REQUESTS: Final = CounterFamily(
    name="nightshift_http_requests_total",
    help="Requests answered",
    labels=("method", "route", "status"),
    process=_API,
    closer="many have status 5xx",
)
HTTP_SECONDS: Final = HistogramFamily(
    name="nightshift_http_request_seconds",
    help="From the request's head to the last byte of its answer",
    labels=("method", "route"),
    process=_API,
    closer="requests take long",
)
HTTP: Final = (HTTP_REQUESTS, HTTP_SECONDS)

SECTIONS: Final[dict[str, tuple[Family, ...]]] = {
    "The queue": (DATABASE_UP, *QUEUE),
    "Webhooks": WEBHOOKS,
    "Losses and savings": LOSSES,
    "Requests to the API": HTTP,
    "The processes of `nightshift up`": (PROCESS_UP,),
}
