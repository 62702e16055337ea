"""What the API shows Prometheus."""

import httpx

from nightshift.fleet.figures import ServiceFigures
from nightshift.metrics.family import Process
from nightshift.store import Store
from nightshift.testing import a_delivery, a_worker, planned
from tests.metrics import assert_as_declared


def test_exactly_what_is_declared_of_the_api_is_exported(
    base_url: str, http: httpx.Client, store: Store
) -> None:
    http.get("/v1/jobs")
    job = planned(store, shards=2, rows_total=20)
    with store.transaction() as tx:
        tx.deliveries.insert(a_delivery(job))
        tx.workers.register(a_worker(heartbeat_at=tx.now()))
        tx.figures.record(ServiceFigures(at=tx.now(), rows_per_busy_s={job.model: 2.0}))

    text = httpx.get(f"{base_url}/metrics", trust_env=False).text

    assert_as_declared(text, Process.API)
