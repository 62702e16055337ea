"""What the API shows Prometheus."""

import re
from dataclasses import replace

import httpx
import pytest

from api.services import AppSettings
from nightshift.fleet.costs import WorkerTime
from nightshift.fleet.figures import ServiceFigures
from nightshift.metrics.family import Process
from nightshift.settings import ApiSettings
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


def test_methods_that_clients_invent_are_one_value_of_a_label(base_url: str, http: httpx.Client) -> None:
    for method in ("BREW", "X1", "X2", "TRACE", "get"):
        http.request(method, "/v1/jobs")

    text = httpx.get(f"{base_url}/metrics", trust_env=False).text

    methods = set(re.findall(r'nightshift_http_requests_total{method="([^"]*)"', text))
    assert "other" in methods
    assert not methods & {"BREW", "X1", "X2", "TRACE"}


class TestCost:
    @pytest.fixture
    def settings(self, settings: AppSettings) -> AppSettings:
        return replace(settings, api=ApiSettings(worker_price_per_hour_spot=0.9))

    def test_a_job_shows_what_it_cost(self, http: httpx.Client, store: Store) -> None:
        job = planned(store)
        with store.transaction() as tx:
            tx.jobs.add_worker_time(job.id, WorkerTime(spot_s=7200.0))
        shown = http.get(f"/v1/jobs/{job.id}").json()
        assert (shown["worker_seconds"], shown["cost"]) == ({"spot": 7200.0, "on_demand": 0.0}, 1.8)

        with store.transaction() as tx:
            tx.jobs.add_worker_time(job.id, WorkerTime(on_demand_s=1.0))
        assert http.get(f"/v1/jobs/{job.id}").json()["cost"] is None, "that price is not set"
