"""How long the queries of each view take, together, in one snapshot."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final

from api.authentication import Caller
from api.page import views
from api.page.view import Asked, View
from api.services import AppSettings
from benchmarks.page.filling import MODELS, TENANT, Filled
from nightshift.jobs import JobState
from nightshift.jobs.priorities import PriorityClass
from nightshift.store import Store
from nightshift.tenants.keys import Scope
from nightshift.tenants.quotas import NO_QUOTAS

REPEATS: Final = 30

# What views ask of their services while they load.
_SERVICES: Final = SimpleNamespace(settings=AppSettings())


def view_times(store: Store, filled: Filled) -> Iterator[dict[str, Any]]:
    """In milliseconds; of the lists also with each filter, and from the middle on."""
    by_path = {view.path: view for view in views.VIEWS}
    for view in views.VIEWS:
        if "{" not in view.path:
            yield _timed(store, view, {}, {})
    yield _timed(store, by_path["/ui/jobs/{job_id}"], {"job_id": filled.job}, {})
    for path, queries in _queries(store, filled).items():
        for query in queries:
            yield _timed(store, by_path[path], {}, query)
    yield _timed_data(store, by_path["/"])


def _queries(store: Store, filled: Filled) -> dict[str, list[dict[str, str]]]:
    with store.snapshot() as tx:
        newest = tx.jobs.list(TENANT, limit=1, after=None)[0].id
    return {
        "/ui/jobs": [
            {"after": newest},
            *({"state": state.value} for state in (JobState.FAILED, JobState.EXPIRED, JobState.QUEUED)),
            {"kind": "online"},
            {"priority": "interactive"},
            {"model": MODELS[0]},
            {"name": "nightly"},
            {"name": "never-used"},
            {"state": "failed", "model": MODELS[1], "priority": "background"},
        ],
        "/ui/dead_letters": [
            {"after": filled.letter},
            {"state": "dead"},
            {"state": "replayed"},
            {"job": filled.job},
            {"job": filled.job, "state": "dead", "after": filled.letter},
        ],
        "/ui/deliveries": [
            {"after": filled.delivery},
            {"state": "dead"},
            {"endpoint": filled.endpoint},
            {"endpoint": filled.endpoint, "state": "dead"},
            {"job": filled.job},
        ],
        "/ui/workers": [{"show": "ended"}, {"show": "ended", "after": filled.worker}],
        "/ui/usage": [{"after": filled.usage}],
        "/ui/keys": [{"after": filled.key}],
    }


def _timed(store: Store, view: View, path: dict[str, str], query: dict[str, str]) -> dict[str, Any]:
    asked = _asked(path, query)

    def read() -> None:
        with store.snapshot() as tx:
            view.load(tx, asked, tx.now())

    return {"view": view.path, "query": query, **_milliseconds(read)}


def _timed_data(store: Store, view: View) -> dict[str, Any]:
    (path, load), *_ = view.data.items()
    asked = _asked({}, {"hours": "48"})

    def read() -> None:
        with store.snapshot() as tx:
            load(tx, asked, tx.now())

    return {"view": path, "query": dict(asked.query), **_milliseconds(read)}


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
