"""The routes of operators and their tools: readiness, metrics, workers, deliveries, the documentation."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import httpx
import pytest

from api.app import create_app
from api.services.services import AppSettings
from nightshift.fleet.workers import WorkerState
from nightshift.jobs.leases import SCHEDULER_DUTY
from nightshift.outbound.webhooks import DeliveryState
from nightshift.process.settings import ApiSettings, LocationSettings
from nightshift.process.upstreams import Upstream
from nightshift.store import Store
from nightshift.store.databases.migrate import downgrade
from nightshift.tenants.keys import Scope, new_key
from tests.helpers.fakes import a_worker, an_attempt
from tests.integration.api.asking import bearer, end_job
from tests.integration.api.declared import described_paths
from tests.integration.api.fake_worker import CHAT_MODEL, WORKER_ID
from tests.integration.api.serving import serving
from workers.upstreams.report import report


def lead(store: Store, stalled: str | None = None) -> None:
    """A scheduler leads, for a day."""
    with store.transaction() as tx:
        until = tx.now() + timedelta(days=1)
        term = tx.leadership.acquire(SCHEDULER_DUTY, "leader", tx.now(), until)
        assert term is not None
        assert tx.leadership.renew(SCHEDULER_DUTY, "leader", term, until, stalled)


def test_a_complete_service_is_ready_and_that_needs_no_key(base_url, worker, store):
    lead(store)

    ready = httpx.get(f"{base_url}/readyz", trust_env=False)

    assert ready.status_code == 200
    assert ready.json() == {
        "status": "ready",
        "parts": {"database": "ok", "storage": "ok", "queue": "ok", "scheduler": "ok", "worker": "ok"},
        "reasons": [],
    }
    assert httpx.get(f"{base_url}/healthz", trust_env=False).json()["status"] == "alive"


def test_a_service_is_no_upstream_of_a_worker_and_that_needs_no_key_to_be_seen(base_url):
    (told,) = asyncio.run(report([Upstream(url=f"{base_url}/v1")]))
    assert "it is a Nightshift itself" in told["problem"]


def test_without_a_scheduler_or_with_one_whose_duty_stands_still_it_is_degraded(base_url, worker, store):
    without = httpx.get(f"{base_url}/readyz", trust_env=False)
    lead(store, stalled="planning")
    standing = httpx.get(f"{base_url}/readyz", trust_env=False)

    assert [answer.status_code for answer in (without, standing)] == [200, 200]
    assert [answer.json()["status"] for answer in (without, standing)] == ["degraded", "degraded"]
    assert without.json()["reasons"] == ["scheduler: no scheduler leads"]
    assert "duty 'planning' stands still" in standing.json()["reasons"][0]


def test_without_a_worker_it_is_degraded_and_if_one_is_needed_not_ready(data, valkey):
    answers = []
    for needs_worker in (False, True):
        api = ApiSettings(ready_needs_worker=needs_worker)
        settings = AppSettings(data, valkey.settings, LocationSettings(), api)
        with serving(create_app(settings)) as url:
            answers.append(httpx.get(f"{url}/readyz", trust_env=False))

    assert [answer.status_code for answer in answers] == [200, 503]
    assert [answer.json()["status"] for answer in answers] == ["degraded", "unavailable"]
    assert "worker: no worker is ready" in answers[1].json()["reasons"]


def test_with_an_old_schema_it_is_not_ready_and_says_what_to_do(base_url, store):
    def why() -> str:
        ready = httpx.get(f"{base_url}/readyz", trust_env=False)
        assert ready.status_code == 503
        [reason] = [reason for reason in ready.json()["reasons"] if reason.startswith("database")]
        return str(reason)

    downgrade(store.database, "base")
    assert "run the migrations" in why()

    with store.database.write() as connection:  # from before the first release
        connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('0045')")
    assert "is at migration 0045" in why()
    assert "begin with a new database" in why()


def test_with_a_schema_that_lacks_something_it_is_not_ready_and_says_what(settings, store, caplog, make_key):
    key = make_key()
    with store.database.write() as connection:
        connection.exec_driver_sql("ALTER TABLE job DROP COLUMN output_problem")
    with serving(create_app(settings)) as url:
        ready = httpx.get(f"{url}/readyz", trust_env=False)
        answer = httpx.get(f"{url}/v1/jobs", headers=bearer(key), trust_env=False)

    says = "column job.output_problem is missing"
    assert ready.status_code == 503
    assert any(says in reason for reason in ready.json()["reasons"])
    assert any(says in record.getMessage() for record in caplog.records), "said at the start, too"
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "database_unusable")
    assert answer.headers["x-should-retry"] == "false"
    assert "output_problem" not in answer.text, "what the driver says is for the operator"


def test_metrics_count_requests_by_route_and_the_queue_by_the_database(base_url, http, bulk):
    for number in range(3):
        http.post("/v1/jobs", json=bulk | {"output": f"{bulk['output']}{number}/"})
    http.get("/v1/jobs/job_unknown")
    http.get("/no/such/route")

    text = httpx.get(f"{base_url}/metrics", trust_env=False).text

    assert 'nightshift_jobs{kind="bulk",state="queued"} 3.0' in text
    assert 'nightshift_http_requests_total{method="POST",route="/v1/jobs",status="202"} 3.0' in text
    assert 'nightshift_http_requests_total{method="GET",route="/v1/jobs/{job_id}",status="404"} 1.0' in text
    assert 'route="(no route)",status="404"} 1.0' in text
    assert "nightshift_database_up 1.0" in text
    assert "nightshift_messages_dropped_total 0.0" in text
    assert "nightshift_objects_collected_total 0.0" in text
    assert "job_unknown" not in text
    assert "no/such" not in text


def test_workers_are_listed_while_they_send_heartbeats(http, worker, store):
    (shown,) = http.get("/v1/workers").json()["data"]
    with store.transaction() as tx:
        tx.workers.mark(WORKER_ID, WorkerState.READY, tx.now() - timedelta(minutes=5))
    later = http.get("/v1/workers").json()["data"]

    assert (shown["id"], shown["status"]) == (WORKER_ID, "ready")
    assert CHAT_MODEL in shown["models"]
    assert not {"host", "pid"} & set(shown)
    assert later == []


def test_administrators_see_where_workers_run(http, worker, make_key):
    key = make_key(scopes=frozenset(Scope))
    (shown,) = http.get("/v1/workers", headers=bearer(key)).json()["data"]

    assert {"host", "pid"} <= set(shown)


def test_workers_are_listed_in_pages(http, store):
    with store.transaction() as tx:
        for number in range(3):
            started_at = tx.now() - timedelta(seconds=number)
            tx.workers.register(a_worker(id=f"w{number}", started_at=started_at, heartbeat_at=tx.now()))
    first = http.get("/v1/workers", params={"limit": 2}).json()
    rest = http.get("/v1/workers", params={"limit": 2, "after": first["last_id"]}).json()

    assert [shown["id"] for shown in first["data"] + rest["data"]] == ["w0", "w1", "w2"]
    assert (first["has_more"], rest["has_more"]) == (True, False)
    for wrong, status in [({"limit": "abc"}, 400), ({"limit": 0}, 400), ({"after": "w9"}, 404)]:
        refused = http.get("/v1/workers", params=wrong)
        assert refused.status_code == status
        assert refused.json()["error"]["param"] == next(iter(wrong))


@pytest.fixture
def delivery_id(http: httpx.Client, store: Store, bulk: dict[str, object]) -> str:
    """A delivery that was tried once, in vain."""
    body = bulk | {"webhook": {"url": "https://example.com/hook"}}
    end_job(store, http.post("/v1/jobs", json=body).json()["id"])
    with store.transaction() as tx:
        now = tx.now()
        (delivery,) = tx.deliveries.due(now, 10)
        attempt = an_attempt(delivery, status_code=500, response_head="sorry", started_at=now)
        tx.deliveries.record(delivery, attempt, DeliveryState.PENDING, now + timedelta(seconds=5))
    return delivery.id


def test_deliveries_are_listed_and_shown_with_their_attempts(http, delivery_id):
    (listed,) = http.get("/v1/deliveries", params={"status": "pending"}).json()["data"]
    shown = http.get(f"/v1/deliveries/{delivery_id}").json()

    assert listed["event_type"] == "job.failed"
    assert listed["attempt_count"] == 1
    assert shown["attempts"][0]["status_code"] == 500
    assert "sorry" not in json.dumps(shown)
    assert http.get("/v1/deliveries", params={"status": "dead"}).json()["data"] == []
    assert http.get("/v1/deliveries", params={"job_id": "job_other"}).json()["data"] == []


def test_another_tenants_delivery_is_not_found(http, delivery_id, stranger):
    assert http.get(f"/v1/deliveries/{delivery_id}", headers=stranger).status_code == 404
    assert http.get("/v1/deliveries", headers=stranger).json()["data"] == []


def test_the_documentation_is_described_and_encoded_once(settings, monkeypatch):
    described: list[dict[str, Any]] = []
    app = create_app(settings)
    describe = app.openapi
    monkeypatch.setattr(app, "openapi", lambda: described.append(describe()) or described[-1])
    with serving(app) as url:
        answers = [httpx.get(f"{url}/openapi.json", trust_env=False) for _ in range(3)]

    assert [answer.json() for answer in answers] == [describe()] * 3
    assert answers[0].headers["content-type"] == "application/json"
    assert len(described) == 1


def test_reads_count_as_their_tenants_once_its_key_was_valid(settings, make_key):
    app, given, made_up = create_app(settings), f"Bearer {make_key('acme')}", f"Bearer {new_key()}"
    with serving(app) as url:
        for header in (given, made_up):
            assert app.state.authenticator.tenant_of(header) is None
            httpx.get(f"{url}/v1/jobs", headers={"authorization": header}, trust_env=False)
        tenants = [app.state.authenticator.tenant_of(header) for header in (given, made_up, None)]
        assert tenants == ["acme", None, None]


def test_the_documentation_declares_the_bodies_and_the_statuses_of_a_route_and_no_others():
    paths = described_paths()
    for path in ("jobs", "files", "batches", "chat/completions", "completions", "embeddings", "responses"):
        assert "requestBody" in paths[f"/v1/{path}"]["post"], path

    def declared(method: str, path: str) -> set[str]:
        return set(paths[path][method]["responses"])

    assert declared("get", "/healthz") == {"200"}
    assert declared("get", "/readyz") == {"200", "503"}
    assert declared("get", "/v1/models") == {"200", "400", "401", "403", "429", "503"}
    assert declared("get", "/v1/jobs/{job_id}") == {"200", "400", "401", "403", "404", "429", "503"}
    assert {"202", "200", "413", "422", "429"} <= declared("post", "/v1/jobs")
    assert {"206", "416"} <= declared("get", "/v1/files/{file_id}/content")
    operations = [operation for path in paths.values() for operation in path.values()]
    assert not [operation for operation in operations if "default" in operation["responses"]]
    assert set(paths["/metrics"]["get"]["responses"]["200"]["content"]) == {"text/plain"}
    content = paths["/v1/responses"]["post"]["responses"]["200"]["content"]
    assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/ResponseObject"}
    assert "text/event-stream" in content
