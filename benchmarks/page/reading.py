"""How long the queries of each view take, together, in one snapshot."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final

from api.authentication import Caller
from api.page import views
from api.page.view import Asked, View
from api.services import AppSettings
from benchmarks.page.filling import BULK_MODEL, CLASSES, MODELS, TENANT, Filled
from benchmarks.page.plans import plans
from nightshift.jobs import JobKind, JobState
from nightshift.jobs.dead_letters import DeadLetterState
from nightshift.jobs.priorities import PriorityClass
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store import Store
from nightshift.store.jobs.listing import JobFilters
from nightshift.tenants.keys import Scope
from nightshift.tenants.quotas import NO_QUOTAS

REPEATS: Final = 30

# What views ask of their services while they load.
_SERVICES: Final = SimpleNamespace(settings=AppSettings())


def view_times(store: Store, filled: Filled) -> Iterator[dict[str, Any]]:
    """In milliseconds; of the lists also with each filter, and from the middle on."""
    by_path = {view.path: view for view in views.VIEWS}
    for view in views.VIEWS:
        yield _timed(store, view, _path(view, filled), {})
    yield _timed(store, by_path["/ui/jobs/{job_id}"], {"job_id": filled.job}, {"show": "errors"})
    for path, queries in _queries(store, filled).items():
        for query in queries:
            yield _timed(store, by_path[path], {}, query)
    yield _timed_data(store, by_path["/"])


def _path(view: View, filled: Filled) -> dict[str, str]:
    """The parameters of the path of a view of one thing."""
    ids = {
        "job_id": filled.job,
        "letter_id": filled.letter,
        "delivery_id": filled.delivery,
        "worker_id": filled.worker,
        "key_id": filled.key,
    }
    return {name: ids[name] for name in re.findall(r"{(\w+)}", view.path)}


def _queries(store: Store, filled: Filled) -> dict[str, list[dict[str, str]]]:
    with store.snapshot() as tx:
        newest = tx.jobs.list(TENANT, limit=1, after=None)[0].id
        [succeeded, *_] = tx.jobs.list(TENANT, limit=1, filters=JobFilters(states=(JobState.SUCCEEDED,)))
    return {
        "/ui/jobs": [
            {"after": newest},
            *({"state": state.value} for state in JobState),
            *({"kind": kind.value} for kind in JobKind),
            *({"priority": priority.value} for priority in PriorityClass),
            {"model": MODELS[0]},
            {"model": "never-used"},
            {"name": "nightly"},
            {"name": "never-used"},
            {"state": "failed", "model": MODELS[1], "priority": "background"},
            {"kind": "bulk", "state": "succeeded", "after": succeeded.id},
            # Many of each, and none of both: what the index of one finds is looked at in vain.
            {"kind": "online", "model": BULK_MODEL},
            {"kind": "online", "priority": CLASSES[-1].value},
            {"kind": "online", "priority": CLASSES[-1].value, "state": "succeeded"},
            {"kind": "online", "state": "succeeded", "model": BULK_MODEL, "priority": "standard"},
            {"name": "nightly", "state": "succeeded", "kind": "bulk", "model": "never-used"},
        ],
        "/ui/dead_letters": [
            {"after": filled.letter},
            *({"state": state.value} for state in DeadLetterState),
            {"job": filled.job},
            {"job": filled.job, "state": "dead", "after": filled.letter},
        ],
        "/ui/deliveries": [
            {"after": filled.delivery},
            *({"state": state.value} for state in DeliveryState),
            {"endpoint": filled.endpoint},
            {"endpoint": filled.endpoint, "state": "dead", "after": filled.delivery},
            {"endpoint": "whe_gone"},
            {"job": filled.job},
            {"job": filled.job, "endpoint": filled.endpoint, "state": "dead"},
        ],
        "/ui/workers": [{"show": "ended"}, {"show": "ended", "after": filled.worker}],
        "/ui/usage": [{"after": filled.usage}, {"after": filled.usage_last}],
        "/ui/keys": [{"after": filled.key}],
    }


def _timed(store: Store, view: View, path: dict[str, str], query: dict[str, str]) -> dict[str, Any]:
    asked = _asked(path, query)

    def read() -> None:
        with store.snapshot() as tx:
            view.load(tx, asked, tx.now())

    found = {"view": view.path, "query": query, **_milliseconds(read)}
    return (
        found if store.database.is_sqlite else found | plans(store, lambda tx: view.load(tx, asked, tx.now()))
    )


def _timed_data(store: Store, view: View) -> dict[str, Any]:
    (path, load), *_ = view.data.items()
    asked = _asked({}, {"hours": "48"})

    def read() -> None:
        with store.snapshot() as tx:
            load(tx, asked, tx.now())

    found = {"view": path, "query": dict(asked.query), **_milliseconds(read)}
    return found if store.database.is_sqlite else found | plans(store, lambda tx: load(tx, asked, tx.now()))


def _milliseconds(read: Callable[[], None]) -> dict[str, float]:
    read()
    times = []
    for _ in range(REPEATS):
        began_s = time.perf_counter()
        read()
        times.append(1000 * (time.perf_counter() - began_s))
    return {"median_ms": round(statistics.median(times), 1), "longest_ms": round(max(times), 1)}


def _asked(path: dict[str, str], query: dict[str, str]) -> Asked:
    caller = Caller("key", TENANT, frozenset(Scope), PriorityClass.INTERACTIVE, NO_QUOTAS)
    return Asked(caller=caller, services=_SERVICES, path=path, query=query)  # type: ignore[arg-type]
