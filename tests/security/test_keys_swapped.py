"""A key opens its own tenant's things only, on every route of the OpenAPI document.

Alpha has one thing of each kind, with its marker in every text that it could choose. Beta then calls every
route with alpha's ids: it is answered as for ids that never were, learns no marker, and changes nothing.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given
from hypothesis import settings as profile
from hypothesis import strategies as st

from api.app import create_app
from api.services.services import AppSettings
from nightshift.fleet.models import Model, ModelKind
from nightshift.lifecycle.transitions import plan
from nightshift.process.settings import ApiSettings, DataSettings, LocationSettings
from nightshift.store import Store
from nightshift.store.databases.database import Database
from nightshift.tenants.keys import Scope
from tests.helpers.databases import migrated_sqlite
from tests.helpers.fakes import a_dead_letter, a_delivery, a_shard, a_worker
from tests.integration.api.conftest import insert_key
from tests.integration.api.fake_worker import FakeWorker
from tests.integration.api.serving import serving
from tests.integration.servers import ValkeyServer

MARKER: Final = "alphas-secret-4f1c"
SCHEDULE: Final = "alphas-nightly-4f1c"
TIMEOUT_S: Final = 30.0
SHARED: Final = {"model_id"}  # models are the service's, not a tenant's
ADMINS: Final = {"tenant", "key_id"}  # routes of administrators
ROW: Final = {
    "custom_id": "r1",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"model": "m", "messages": [{"role": "user", "content": MARKER}]},
}
BODIES: Final[Mapping[str, Any]] = {
    "/v1/jobs/{job_id}": {"priority": "background"},
    "/v1/uploads/{upload_id}/complete": {"part_ids": ["part_1"]},
    "/v1/webhook_endpoints/{webhook_endpoint_id}": {"name": "mine"},
    "/v1/webhook_endpoints/{webhook_endpoint_id}/replay": {"since": 0},
    "/v1/webhook_endpoints/{webhook_endpoint_id}/test": {"event_type": "batch.completed"},
}


@dataclass(frozen=True)
class Site:
    """A running API, and what each tenant may say to it."""

    alpha: httpx.Client
    beta: httpx.Client
    ids: Mapping[str, str]  # alpha's, by the name of the path parameter
    operations: tuple[tuple[str, str], ...]  # method and path of the document
    places: Mapping[str, Path]

    def shown_to_alpha(self) -> dict[str, Any]:
        """Everything that alpha can read, by path, but for times that go on."""
        paths = [path for method, path in self.operations if method == "GET" and "/events" not in path]
        shown = {}
        for path in paths:
            if path.startswith(
                ("/v1/tenants", "/v1/audit", "/metrics", "/readyz", "/v1/limits", "/v1/overview")
            ):
                continue
            answer = self.alpha.get(self.filled(path))
            shown[path] = (answer.status_code, answer.text)
        return shown

    def filled(self, path: str) -> str:
        """The path with alpha's ids in it."""
        for name, value in self.ids.items():
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        return path.replace("{model_id}", "m")


@contextmanager
def served(
    *tenants: str, is_worked_on: bool = False
) -> Iterator[tuple[FastAPI, str, Store, dict[str, Path]]]:
    """An API on servers of its own, its URL and its store, and a place for each tenant."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ns-")))
        valkey = ValkeyServer(folder)
        valkey.start()
        stack.callback(valkey.kill)
        data = DataSettings(data_dir=folder / "data")
        migrated_sqlite(data.data_dir / "nightshift.db").close()
        places = {tenant: folder / "places" / tenant for tenant in tenants}
        for tenant, place in places.items():
            place.mkdir(parents=True)
            (place / "in.jsonl").write_text(json.dumps(ROW) + "\n" if tenant == "alpha" else "")
        locations = LocationSettings(file_roots=tuple(f"{name}={place}" for name, place in places.items()))
        app = create_app(AppSettings(data, valkey.settings, locations, ApiSettings()))
        store = Store(Database(data.resolved_database_url))
        stack.callback(store.close)
        if is_worked_on:
            stack.enter_context(FakeWorker(store, valkey.settings).at_work())
        yield app, stack.enter_context(serving(app)), store, places


def client(url: str, headers: Mapping[str, str]) -> httpx.Client:
    return httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=False)


def key_of(store: Store, tenant: str, *more: Scope) -> dict[str, str]:
    """The header of a new key that may submit, read, and more."""
    key = insert_key(store, tenant, scopes=frozenset({Scope.SUBMIT, Scope.READ, *more}))
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with served("alpha", "beta") as (app, url, store, places):
        with client(url, key_of(store, "alpha")) as alpha, client(url, key_of(store, "beta")) as beta:
            ids = things_of_alpha(alpha, store, places["alpha"])
            operations = tuple(
                (method.upper(), path)
                for path, methods in sorted(app.openapi()["paths"].items())
                for method in methods
            )
            yield Site(alpha, beta, ids, operations, places)


def things_of_alpha(alpha: httpx.Client, store: Store, place: Path) -> dict[str, str]:
    """One of each kind, by the name of the path parameter that takes its id."""

    def made(path: str, **request: Any) -> str:
        answer = alpha.post(path, **request)
        assert answer.is_success, answer.text
        return str(answer.json()["id"])

    file_id = made(
        "/v1/files",
        files={"file": (f"{MARKER}.jsonl", json.dumps(ROW).encode())},
        data={"purpose": "batch"},
    )
    url = f"https://example.com/{MARKER}"
    upload = {"filename": f"{MARKER}.jsonl", "bytes": 3, "mime_type": "text/jsonl", "purpose": "batch"}
    batch = {
        "input_file_id": file_id,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": {"who": MARKER},
    }
    job = {
        "endpoint": "/v1/chat/completions",
        "name": MARKER,
        "date": "2026-11-23",
        "input": (place / "in.jsonl").as_uri(),
        "output": f"{(place / 'out').as_uri()}/",
        "metadata": {"who": MARKER},
        "webhook": {"url": url},
    }
    plan_of_alpha = {
        "cron": "0 1 1 1 *",
        "description": MARKER,
        "job": {
            "endpoint": "/v1/chat/completions",
            "input": (place / "in.jsonl").as_uri(),
            "output": f"{place.as_uri()}/{{{{date}}}}/",
        },
    }
    assert alpha.put(f"/v1/schedules/{SCHEDULE}", json=plan_of_alpha).is_success
    made(f"/v1/schedules/{SCHEDULE}/run")
    endpoint = {"name": MARKER, "url": url, "event_types": ["batch.completed"]}
    with store.transaction() as tx:
        now = tx.now()
        tx.workers.register(a_worker(models=("m",), started_at=now, heartbeat_at=now))
        tx.workers.register_model(Model(id="m", kind=ModelKind.DECODER, revision="r"), now)
    response = {"model": "m", "input": MARKER, "background": True}
    job_id = made("/v1/jobs", json=job)
    with store.transaction() as tx:
        stored = tx.jobs.fetch(job_id)
        delivery = a_delivery(stored, url=url)
        tx.deliveries.insert(delivery)
        plan(tx, stored, "m", [a_shard(uri=stored.spec.input)], tx.now(), rows_total=1)
        (shard,) = tx.shards.of_job(job_id, limit=1)
        letter = a_dead_letter(stored, shard.id, row=0, custom_id=MARKER)
        tx.dead_letters.insert(letter)
    return {
        "file_id": file_id,
        "upload_id": made("/v1/uploads", json=upload),
        "batch_id": made("/v1/batches", json=batch),
        "job_id": job_id,
        "estimate_id": made("/v1/jobs/estimate", json={name: job[name] for name in ("endpoint", "input")}),
        "delivery_id": delivery.id,
        "letter_id": letter.id,
        "schedule_name": SCHEDULE,
        "response_id": made("/v1/responses", json=response),
        "webhook_endpoint_id": made("/v1/webhook_endpoints", json=endpoint),
    }


def parameters(path: str) -> set[str]:
    return {part[1:-1] for part in path.split("/") if part.startswith("{")}


def of_tenants(site: Site) -> list[tuple[str, str]]:
    """The operations on a thing of a tenant's. What is put under a name is the caller's own."""
    return [
        (method, path)
        for method, path in site.operations
        if parameters(path) and not parameters(path) & (SHARED | ADMINS) and method != "PUT"
    ]


def call(client: httpx.Client, method: str, path: str, filled: str, **more: Any) -> httpx.Response:
    if method == "POST" and path.endswith("/parts"):
        return client.post(filled, files={"data": ("part", b"abc")}, **more)
    body = {"json": BODIES.get(path, {})} if method in ("POST", "PATCH") else {}
    return client.request(method, filled, **body, **more)


def test_alpha_has_a_thing_for_every_parameter_of_a_path(site: Site) -> None:
    named = {name for _, path in site.operations for name in parameters(path)}
    assert named == {*site.ids, *SHARED, *ADMINS}, "a new kind of thing needs one of alpha's here"
    assert len(of_tenants(site)) > 25
    for method, path in of_tenants(site):
        if method == "GET" and not path.endswith("/events"):
            assert call(site.alpha, method, path, site.filled(path)).status_code in (200, 409), path


def test_with_anothers_id_every_route_answers_as_for_one_that_never_was(site: Site) -> None:
    before = site.shown_to_alpha()
    assert MARKER in str(before)
    for method, path in of_tenants(site):
        answer = call(site.beta, method, path, site.filled(path))
        assert answer.status_code == 404, f"{method} {path}: {answer.status_code} {answer.text}"
        (name,) = parameters(path)
        never = f"{site.ids[name][:-4]}zzzz"
        unknown = call(site.beta, method, path, path.replace(f"{{{name}}}", never))
        assert unknown.status_code == 404, f"{method} {path}"
        said, expected = answer.json()["error"], unknown.json()["error"]
        assert said["message"].replace(site.ids[name], "") == expected["message"].replace(never, "")
        assert {**said, "message": ""} == {**expected, "message": ""}
    assert site.shown_to_alpha() == before


def test_a_list_shows_its_caller_its_own_things_whatever_it_starts_after(site: Site) -> None:
    lists = [path for method, path in site.operations if method == "GET" and not parameters(path)]
    for path in lists:
        answer = site.beta.get(path)
        assert MARKER not in answer.text, path
        assert not any(id_ in answer.text for id_ in site.ids.values()), path
        for id_ in site.ids.values():
            answer = site.beta.get(path, params={"after": id_})
            assert answer.status_code < 500, path
            assert MARKER not in answer.text, path


def test_a_key_without_the_scope_does_nothing_of_an_administrators(site: Site) -> None:
    for method, path in site.operations:
        if parameters(path) & ADMINS or path in ("/v1/tenants", "/v1/audit"):
            filled = path.replace("{tenant}", "alpha").replace("{key_id}", "key_1")
            assert call(site.beta, method, path, filled).status_code == 403, f"{method} {path}"


@pytest.mark.parametrize(
    "scheme", ["file://{}/in.jsonl", "file://{}/../alpha/in.jsonl", "file://{}/%2e%2e/alpha/*"]
)
@pytest.mark.parametrize("field", ["input", "output"])
def test_a_job_names_no_place_of_another_tenants(site: Site, scheme: str, field: str) -> None:
    root = site.places["alpha"] if "alpha" not in scheme else site.places["beta"]
    own = {"input": f"file://{site.places['beta']}/in.jsonl", "output": f"file://{site.places['beta']}/out/"}
    body = {"endpoint": "/v1/chat/completions", **own, field: scheme.format(root)}

    answer = site.beta.post("/v1/jobs", json=body)

    assert answer.status_code in (400, 404), answer.text
    assert MARKER not in answer.text


@profile(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_mix_of_alphas_ids_in_path_query_and_body_shows_beta_anything(
    site: Site, data: st.DataObject
) -> None:
    some_id = st.sampled_from(sorted(site.ids.values()))
    method, path = data.draw(
        st.sampled_from([operation for operation in site.operations if "/events" not in operation[1]])
    )
    filled = path
    for name in sorted(parameters(path)):
        filled = filled.replace(f"{{{name}}}", data.draw(some_id))
    query = data.draw(
        st.dictionaries(
            st.sampled_from(["after", "job_id", "endpoint_id", "limit", "status"]), some_id, max_size=2
        )
    )
    names = st.sampled_from(
        ["input_file_id", "input", "part_ids", "model", "id", "metadata", "output", "name"]
    )
    values = st.one_of(some_id, st.lists(some_id, max_size=2), st.dictionaries(some_id, some_id, max_size=1))
    body = data.draw(st.dictionaries(names, values, max_size=4))
    if path == "/v1/batches":
        body |= {
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            "input_file_id": data.draw(some_id),
        }

    more: dict[str, Any] = {"json": body} if method in ("POST", "PATCH") else {}
    answer = site.beta.request(method, filled, params=query, **more)

    assert answer.status_code < 500, f"{method} {filled}: {answer.text}"
    assert MARKER not in answer.text
    assert answer.status_code != 200 or not parameters(path) - SHARED, f"{method} {filled}: {answer.text}"
