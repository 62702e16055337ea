"""The metrics that the API shows Prometheus."""

import re
from dataclasses import replace

import httpx
from prometheus_client.parser import text_string_to_metric_families

from api.app import create_app
from nightshift.fleet.costs import WorkerTime
from nightshift.fleet.figures import DeviceFigures, ModelFigures, ServiceFigures, WorkerFigures
from nightshift.fleet.workers import WorkerState
from nightshift.process.metrics.family import MODELS_MAX, OTHERS, Process
from nightshift.process.settings import ApiSettings
from tests.helpers.fakes import a_delivery, a_worker, planned
from tests.helpers.metrics import assert_as_declared
from tests.integration.api.conftest import plain_http
from tests.integration.api.serving import serving


def test_exactly_what_is_declared_of_the_api_is_exported(base_url, http, store):
    http.get("/v1/jobs")
    job = planned(store, shards=2, rows_total=20)
    with store.transaction() as tx:
        tx.deliveries.insert(a_delivery(job))
        tx.workers.register(a_worker(heartbeat_at=tx.now()))
        tx.figures.record(ServiceFigures(at=tx.now(), rows_per_busy_s={job.model: 2.0}))

    text = httpx.get(f"{base_url}/metrics", trust_env=False).text

    assert_as_declared(text, Process.API)


def test_methods_that_clients_invent_are_one_value_of_a_label(base_url, http):
    for method in ("BREW", "X1", "X2", "TRACE", "get"):
        http.request(method, "/v1/jobs")

    text = httpx.get(f"{base_url}/metrics", trust_env=False).text

    methods = set(re.findall(r'nightshift_http_requests_total{method="([^"]*)"', text))
    assert "other" in methods
    assert not methods & {"BREW", "X1", "X2", "TRACE"}


SHORT = ("a\nb", 'a"} 1\n# HELP x', "a\\", "{a}", "Ä\u2028\u0085\u202e\x00", "\x1b[31m", " ", "Case", "case")
HOSTILE = (*SHORT, "a" * 255)


def hostile_models(count: int) -> list[str]:
    """All different, with each of the names in turn."""
    return [f"{HOSTILE[n % len(HOSTILE)]}{n // len(HOSTILE) or ''}"[-255:] for n in range(count)]


def test_whatever_models_are_called_and_workers_report_the_page_can_be_read_and_is_short(base_url, store):
    models = hostile_models(2 * MODELS_MAX)
    reported = {name * 100: ModelFigures(running=1, busy_fraction=2.5) for name in models}
    for name in models:
        planned(store, model=name.replace("\0", ""))
    with store.transaction() as tx:
        worker = a_worker(heartbeat_at=tx.now(), models=tuple(models), warm_models=tuple(models))
        tx.workers.register(worker)
        report = WorkerFigures(models=reported, device=DeviceFigures(kind="x" * 10_000_000))
        tx.workers.record_heartbeat(worker.id, WorkerState.READY, tx.now(), report)
        paces = {name: float(place) for place, name in enumerate(models)}
        tx.figures.record(ServiceFigures(at=tx.now(), rows_per_busy_s=paces))

    text = httpx.get(f"{base_url}/metrics", trust_env=False, timeout=60).text

    families = {family.name: family for family in text_string_to_metric_families(text)}
    queued = families["nightshift_queue_queued"].samples
    assert sum(sample.value for sample in queued) == len(models), "none is lost"
    assert len(queued) == MODELS_MAX + 1
    stored = {name.replace("\0", "") for name in models}
    assert {sample.labels["model"] for sample in queued} - set(models) - stored == {OTHERS}
    assert len(text) < 500_000


def test_a_job_shows_what_it_cost(settings, make_key, store):
    job = planned(store)
    priced = replace(settings, api=ApiSettings(worker_price_per_hour_spot=0.9))

    with serving(create_app(priced)) as url, plain_http(url, make_key()) as http:

        def after(time: WorkerTime) -> dict[str, object]:
            with store.transaction() as tx:
                tx.jobs.add_worker_time(job.id, time)
            return dict(http.get(f"/v1/jobs/{job.id}").json())

        shown = after(WorkerTime(spot_s=7200.0))
        assert (shown["worker_seconds"], shown["cost"]) == ({"spot": 7200.0, "on_demand": 0.0}, 1.8)
        assert after(WorkerTime(on_demand_s=1.0))["cost"] is None, "that price is not set"
