"""GET /v1/overview and the figures of GET /v1/workers: what the service does, and what waits for it."""

from datetime import timedelta

import httpx

from nightshift.fleet.durations import Durations
from nightshift.fleet.figures import DeviceFigures, ModelFigures, ServiceFigures, WorkerFigures
from nightshift.fleet.workers import MachineNotice, NoticeKind, WorkerState
from nightshift.jobs.priorities import PriorityClass
from nightshift.store import Store
from nightshift.tenants.keys import Scope
from tests.helpers.fakes import a_worker, planned, submit_online
from tests.integration.api.asking import bearer

FIGURES = WorkerFigures(
    models={
        "model-a": ModelFigures(
            running=3,
            waiting=1,
            busy_fraction=0.5,
            generation_tokens_per_s=120.0,
            rows_per_s=4.0,
            first_token_s={"interactive": Durations.from_counts((0.1, 0.2), (10, 10, 0))},
        )
    },
    device=DeviceFigures(kind="cuda", name="NVIDIA H100", memory_bytes=80 << 30),
    memory_bytes=1 << 30,
    shards=2,
    requests=5,
)


def add_worker(
    store: Store, id: str, figures: WorkerFigures | None, state: WorkerState = WorkerState.READY
) -> None:
    with store.transaction() as tx:
        now = tx.now()
        tx.workers.register(a_worker(id=id, state=state, models=("model-a",), heartbeat_at=now))
        tx.workers.record_heartbeat(id, state, now, figures)


def test_a_worker_is_shown_with_its_figures(http, store):
    add_worker(store, "w1", FIGURES)
    (shown,) = http.get("/v1/workers").json()["data"]

    figures = shown["figures"]
    assert (figures["shards"], figures["requests"], figures["memory_bytes"]) == (2, 5, 1 << 30)
    assert figures["device"]["name"] == "NVIDIA H100"
    assert figures["device"]["utilisation"] is None, "what is not known is null, never 0"
    model = figures["models"]["model-a"]
    assert (model["running"], model["generation_tokens_per_s"]) == (3, 120.0)
    assert model["kv_blocks"] is None
    assert model["first_token_p50_s"] == {"interactive": 0.1}
    assert model["first_token_p95_s"] == {"interactive": 0.19}


def test_a_worker_is_shown_with_the_notice_of_its_machine(http, store):
    add_worker(store, "w1", None)
    (shown,) = http.get("/v1/workers").json()["data"]
    assert (shown["notice"], shown["figures"]) == (None, None)
    with store.transaction() as tx:
        now = tx.now()
        notice = MachineNotice(NoticeKind.INTERRUPTION, now, now + timedelta(minutes=2))
        tx.workers.record_heartbeat("w1", WorkerState.READY, now, notice=notice)

    shown = http.get("/v1/workers").json()["data"][0]["notice"]
    assert shown["kind"] == "interruption"
    assert shown["ends_at"] - shown["received_at"] == 120


def test_the_overview_sums_the_workers_up(http, store):
    add_worker(store, "w1", FIGURES)
    add_worker(store, "w2", FIGURES)
    add_worker(store, "w3", None, WorkerState.DRAINING)

    shown = http.get("/v1/overview").json()

    assert shown["object"] == "overview"
    assert shown["workers"] == {"ready": 2, "draining": 1}
    assert shown["service"] == {
        "workers_ready": 2,
        "prompt_tokens_per_s": None,
        "generation_tokens_per_s": 240.0,
        "rows_per_s": 8.0,
        "busy_fraction": 0.5,
        "first_token_p50_s": {"interactive": 0.1},
        "first_token_p95_s": {"interactive": 0.19},
    }


def test_workers_that_are_silent_do_not_count(http, store):
    add_worker(store, "w1", FIGURES)
    with store.transaction() as tx:
        tx.workers.mark("w1", WorkerState.READY, tx.now() - timedelta(minutes=5))
    shown = http.get("/v1/overview").json()
    assert (shown["workers"], shown["service"]["generation_tokens_per_s"]) == ({}, None)


def test_the_history_is_what_was_recorded_lately(http, store):
    with store.transaction() as tx:
        now = tx.now()
        for minutes in (90, 10, 1):
            tx.figures.record(ServiceFigures(at=now - timedelta(minutes=minutes), rows_per_s=float(minutes)))

    rates = [point["rows_per_s"] for point in http.get("/v1/overview").json()["history"]]
    longer = http.get("/v1/overview", params={"history_s": 7200}).json()["history"]
    none = http.get("/v1/overview", params={"history_s": 0}).json()["history"]

    assert rates == [10.0, 1.0], "the oldest first"
    assert [point["rows_per_s"] for point in longer] == [90.0, 10.0, 1.0]
    assert none == []
    refused = http.get("/v1/overview", params={"history_s": 7201})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "history_s")


def test_a_tenants_queue_is_its_own(http, store, make_key):
    planned(store, shards=2, tenant_id="another", model="secret-model", rows_total=50)
    submit_online(store, tenant_id="another", model="secret-model")
    planned(store, shards=3, model="model-a", rows_total=30, priority=PriorityClass.BACKGROUND)

    shown = http.get("/v1/overview").json()

    assert "secret-model" not in http.get("/v1/overview").text
    assert shown["service_queue"] is None
    assert shown["workers_wanted"] is None
    assert shown["queue_is_whole"]
    assert shown["queue"] == [
        {
            "kind": "bulk",
            "priority": "background",
            "model": "model-a",
            "queued": 1,
            "running": 0,
            "paused": 0,
            "rows_left": 30,
        }
    ]


def test_administrators_see_the_queue_of_all_tenants(http, store, make_key):
    planned(store, shards=2, tenant_id="another", model="model-b", rows_total=50)
    key = make_key(scopes=frozenset(Scope))

    shown = http.get("/v1/overview", headers=bearer(key)).json()

    assert shown["workers_wanted"] == [
        {"model": "model-b", "capacity": "any", "pool": None, "wanted": 1, "ready": 0, "starting": 0}
    ]
    (group,) = shown["service_queue"]
    assert group | {"oldest_at": 0} == {
        "kind": "bulk",
        "priority": "standard",
        "model": "model-b",
        "capacity": "any",
        "queued": 2,
        "leased": 0,
        "rows_left": 50,
        "oldest_at": 0,
    }


def test_it_needs_a_key_that_may_read(base_url, make_key):
    def status(key: str) -> int:
        return httpx.get(f"{base_url}/v1/overview", headers=bearer(key), trust_env=False).status_code

    assert status(make_key(scopes=frozenset({Scope.READ}))) == 200
    assert status(make_key(scopes=frozenset({Scope.SUBMIT}))) == 403
    assert status("ns_live_nonsense") == 401
