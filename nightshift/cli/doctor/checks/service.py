"""Checks of the running service: its key, its readiness, its models and workers."""

import socket
import stat
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from nightshift.cli.doctor.checks.models import HEARD_WITHIN
from nightshift.cli.doctor.examination import Finding, error, ok, skipped, warning
from nightshift.cli.doctor.site import Site
from nightshift.client import check_api_key, check_base_url
from nightshift.fleet.workers import WorkerState
from nightshift.jobs import JobKind
from nightshift.jobs.capacity.demand import ANY_CAPACITY, Pool, PoolSupply, supply

ANSWER_TIMEOUT_S: Final = 3.0

_API_LOG: Final = "look into the log of the API (of `nightshift up`: logs/api.log)"


def look_at_key(site: Site) -> Finding:
    """There is an API key that no other user can read."""
    path = site.key_file
    if site.client.api_key:
        return ok("from NIGHTSHIFT_API_KEY")
    if not path.exists():
        return skipped("none yet; `nightshift up` makes one")
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        return error(str(path), f"other users can read it: chmod 600 {path}")
    return ok(str(path))


def look_at_server(site: Site) -> Finding:
    """A ready server answers, or its port is free. Raises ConfigurationError."""
    base_url = site.client.base_url
    check_base_url(base_url)
    try:
        answer = httpx.get(f"{root_of(base_url)}/readyz", timeout=ANSWER_TIMEOUT_S)
        ready = answer.json()
        status, reasons = ready.get("status", "ready"), "; ".join(ready.get("reasons", ()))
    except httpx.TransportError:
        return _look_at_port(base_url)
    except (ValueError, AttributeError, TypeError):
        return error(base_url, "something else than Nightshift answers there: use another port")
    if answer.status_code != httpx.codes.OK:
        return error(f"{base_url} is not ready", reasons or _API_LOG)
    if reasons:
        return warning(f"{base_url} is {status}", reasons)
    return ok(f"{base_url} is {status}")


def look_at_service(site: Site) -> Finding:
    """The running server admits the key and has a worker for every model. Raises ConfigurationError."""
    check_api_key(site.api_key)
    headers = {"authorization": f"Bearer {site.api_key}"}
    try:
        with httpx.Client(
            base_url=root_of(site.client.base_url), headers=headers, timeout=ANSWER_TIMEOUT_S
        ) as server:
            models, workers = server.get("/v1/models"), server.get("/v1/workers")
        if models.status_code == httpx.codes.UNAUTHORIZED:
            return error("refuses the API key", _advice_about_key(site))
        served = [model["id"] for model in models.raise_for_status().json()["data"]]
        heard_of = workers.raise_for_status().json()["data"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return skipped("no server answers")
    ready = [worker["models"] for worker in heard_of if worker["status"] == WorkerState.READY]
    return _of_models(served, frozenset().union(*ready), _start_a_worker(site))


def look_at_workers(site: Site) -> Finding:
    """There are enough workers for what waits to end before its deadlines, at the measured pace."""
    with site.snapshot() as tx:
        now = tx.now()
        heard_of = tx.workers.list(heartbeat_since=now - HEARD_WITHIN)
        queued = tx.shards.queued(*JobKind)
        pools = supply(tx.figures.waiting(), heard_of, tx.figures.latest(), now)
    states = Counter(worker.state for worker in heard_of)
    waiting = ", ".join(f"{count} {kind}" for kind, count in queued.items() if count)
    there = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none"
    detail = f"workers: {there}" + (f"; shards that wait: {waiting}" if waiting else "")
    figures = {
        "ready": states[WorkerState.READY],
        "queued": sum(queued.values()),
        "wanted": sum(demanded.wanted for demanded in pools),
        "missing": sum(demanded.missing for demanded in pools),
    }
    short = [demanded for demanded in pools if demanded.missing]
    if unserved := [demanded for demanded in short if not demanded.ready + demanded.starting]:
        start = _start_a_worker(site, unserved[0].pool)
        return error(detail, f"work waits for {_pools(unserved)} and no worker is there: {start}", **figures)
    if short:
        return warning(
            f"{detail}; more are wanted to meet the deadlines: {_pools(short)}",
            f"add workers: {_start_a_worker(site)}, or let an autoscaler follow nightshift_workers_wanted",
            **figures,
        )
    return ok(detail, **figures)


def _pools(pools: Sequence[PoolSupply]) -> str:
    return ", ".join(
        f"{demanded.pool.model} ({demanded.wanted} wanted, {demanded.ready} ready, "
        f"capacity {demanded.pool.capacity}{f', pool {demanded.pool.name}' if demanded.pool.name else ''})"
        for demanded in pools
    )


def root_of(base_url: str) -> str:
    """The URL without `/v1`, as in the client."""
    return base_url.rstrip("/").removesuffix("/v1")


def _start_a_worker(site: Site, pool: Pool | None = None) -> str:
    """The command that starts a worker of this pool. `nightshift up` alone starts an embedded queue's."""
    settings = "" if pool is None else _settings_of(pool)
    if site.has_embedded_queue:
        return f"start `{settings}nightshift up` again"
    return f"start one with `{settings}nightshift worker --model …`"


def _settings_of(pool: Pool) -> str:
    """The variables, in front of a command, by which its worker serves this pool."""
    capacity = "" if pool.capacity == ANY_CAPACITY else f"NIGHTSHIFT_CAPACITY={pool.capacity} "
    return capacity + (f"NIGHTSHIFT_POOLS={pool.name} " if pool.name else "")


def _advice_about_key(site: Site) -> str:
    source = "NIGHTSHIFT_API_KEY" if site.client.api_key else str(site.key_file)
    return (
        f"the key in {source} is not one of this server's: set NIGHTSHIFT_API_KEY to one that is, set "
        "NIGHTSHIFT_DATA_DIR to the server's directory, or make one there with `nightshift keys create`"
    )


def _of_models(served: Sequence[Any], ready: frozenset[str], start_a_worker: str) -> Finding:
    if not served:
        return error("serves no model", f"there is no worker: {start_a_worker}")
    words = [name if name in ready else f"{name} (no worker is ready)" for name in served]
    detail = f"admits the key and serves {', '.join(words)}"
    if ready.issuperset(served):
        return ok(detail)
    return error(
        detail,
        f"requests wait for a worker with their model: {start_a_worker}, "
        "or see the log of the one that was started (of `nightshift up`: logs/worker-1.log)",
    )


def _look_at_port(base_url: str) -> Finding:
    place = urlsplit(base_url)
    port = place.port or (443 if place.scheme == "https" else 80)
    with suppress(OSError), socket.create_connection((place.hostname or "", port), timeout=ANSWER_TIMEOUT_S):
        return error(base_url, f"port {port} is taken by something that is no web server: use another")
    return ok(f"none at {base_url}, and its port is free")
