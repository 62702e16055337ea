"""What the API shows Prometheus."""

import httpx

from nightshift.metrics.family import Process
from nightshift.store import Store
from nightshift.testing import a_delivery, planned
from tests.metrics import assert_as_declared


def test_exactly_what_is_declared_of_the_api_is_exported(
    base_url: str, http: httpx.Client, store: Store
) -> None:
    http.get("/v1/jobs")
    job = planned(store, shards=2)
    with store.transaction() as tx:
        tx.deliveries.insert(a_delivery(job))

    text = httpx.get(f"{base_url}/metrics", trust_env=False).text

    assert_as_declared(text, Process.API)
