"""How long a healthy webhook endpoint waits for an event while another one of each tenant hangs.

The delivery duty runs as in the scheduler, against receivers on the loopback: one hangs on every connection
until the sender gives up after 15 s, and has a backlog before the first measured event.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler

from benchmarks.reliability.databases import store_on
from benchmarks.reliability.figures import Figure
from benchmarks.reliability.services import Database
from nightshift.jobs import JobState
from nightshift.lifecycle import transitions
from nightshift.lifecycle.webhooks.endpoints import EndpointRegistry
from nightshift.outbound.safe_http import Egress, EgressConfig
from nightshift.store import Store
from nightshift.store.webhooks.listing import DeliveryFilters
from nightshift.tenants.audit import Actor
from nightshift.tenants.vault import Vault
from nightshift.testing import a_new_job
from scheduler.duties.webhook_delivery import WebhookDelivery
from tests.receiver import Receiver, receiver, says, says_nothing_until

TENANTS = 20
BACKLOG = 50  # events that each hanging endpoint is owed before the first measured one
ROUNDS_PAUSE_S = 1.0
GOAL_S = 1.0
TIMEOUT_S = 120.0
LOOPBACK = EgressConfig(("127.0.0.0/8",), (range(1, 65536),))


def measure(database: Database, rounds: int) -> Iterator[Figure]:
    released, arrivals = threading.Event(), Arrivals()
    with (
        store_on(database) as store,
        receiver(says_nothing_until(released)) as hanging,
        receiver(arrivals) as healthy,
    ):
        vault, stop = Vault("a key for benchmarks"), threading.Event()
        tenants = [f"tenant-{number}" for number in range(TENANTS)]
        for tenant in tenants:
            _register(store, vault, tenant, hanging)
            for _ in range(BACKLOG):
                _end_a_job(store, tenant)
        delivery = WebhookDelivery(store, vault, Egress(LOOPBACK))
        duty = threading.Thread(target=_run, args=(delivery, store, stop))
        duty.start()
        try:
            _wait(lambda: len({request.path for request in hanging.requests}) == TENANTS)
            for tenant in tenants:
                _register(store, vault, tenant, healthy)
            waits = [_round(store, tenants, arrivals) for _ in range(rounds)]
        finally:
            stop.set()
            duty.join()
            released.set()
            delivery.wait_until_idle(TIMEOUT_S)
    every = [wait for each in waits for wait in each]
    yield Figure(f"first event to each of {TENANTS} healthy endpoints, p50", _percentile(waits[0], 0.5), "s")
    yield Figure("  p95", _percentile(waits[0], 0.95), "s", GOAL_S)
    yield Figure("  worst", max(waits[0]), "s")
    yield Figure(f"each of {len(every)} events to them, p95", _percentile(every, 0.95), "s", GOAL_S)


class Arrivals:
    """Answers at once, and remembers when each event came."""

    def __init__(self) -> None:
        self.at_s: dict[str, float] = {}  # by event id

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        self.at_s[handler.headers["webhook-id"]] = time.monotonic()
        says(204)(handler)


def _round(store: Store, tenants: Sequence[str], arrivals: Arrivals) -> list[float]:
    """Seconds from the end of a job of each tenant to its event's arrival."""
    ended_s = {}
    for tenant in tenants:
        event_id = _end_a_job(store, tenant)
        ended_s[event_id] = time.monotonic()
    _wait(lambda: ended_s.keys() <= arrivals.at_s.keys())
    time.sleep(ROUNDS_PAUSE_S)
    return [max(0.0, arrivals.at_s[event_id] - at_s) for event_id, at_s in ended_s.items()]


def _register(store: Store, vault: Vault, tenant: str, there: Receiver) -> None:
    with store.transaction() as tx:
        registry = EndpointRegistry(tx, vault, tenant, Actor.of_service("benchmark"))
        registry.create(name="one", url=f"{there.numeric_url}/{tenant}", event_types=["job.*"])


def _end_a_job(store: Store, tenant: str) -> str:
    """The id of the event."""
    with store.transaction() as tx:
        now = tx.now()
        job = transitions.submit_bulk(tx, a_new_job(tenant_id=tenant), now).job
        transitions.finish(tx, job, JobState.FAILED, now)
        return tx.deliveries.list(tenant, limit=1, filters=DeliveryFilters(job_id=job.id))[0].event_id


def _run(delivery: WebhookDelivery, store: Store, stop: threading.Event) -> None:
    """As the scheduler's loop does."""
    while not stop.is_set():
        if not delivery.run_once(store.now()).has_more:
            stop.wait(delivery.interval_s)


def _wait(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < until_s, "events did not arrive"
        time.sleep(0.005)


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[math.ceil(share * len(values)) - 1]
