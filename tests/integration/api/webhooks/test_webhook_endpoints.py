"""/v1/webhook_endpoints with the official client: registered, changed, rotated, tested, replayed."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import httpx
import pytest
from standardwebhooks import Webhook as StandardWebhook

from api.services.services import AppSettings
from api.services.webhook_samples import SAMPLES_PER_TENANT_MAX
from api.webhooks.endpoints import router
from nightshift.jobs import Counts, JobState
from nightshift.lifecycle import transitions
from nightshift.outbound.webhook_endpoints import ENDPOINTS_MAX, DisabledReason
from nightshift.process.settings import ApiSettings, DataSettings, LocationSettings, SubmissionSettings
from nightshift.store import Store
from nightshift.store.webhooks.deliveries import DeliveryFilters
from tests.helpers.fakes import submit
from tests.helpers.receiver import Receiver, receiver, says
from tests.integration.servers import ValkeyServer

URL = "https://example.com/hook"
ENDPOINTS = "/v1/webhook_endpoints"


@pytest.fixture
def settings(data: DataSettings, valkey: ValkeyServer) -> AppSettings:
    """Webhooks may reach the loopback, at any port."""
    submission = SubmissionSettings(webhook_allow_cidrs=("127.0.0.0/8",), webhook_ports=("1-65535",))
    return AppSettings(data, valkey.settings, LocationSettings(), ApiSettings(), submission)


def an_endpoint(http: httpx.Client, url: str = URL, **fields: object) -> dict[str, Any]:
    """A new endpoint for every event, as it was answered."""
    answer = http.post(ENDPOINTS, json={"name": "pager", "url": url, "event_types": ["*"]} | fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.fixture
def path(http: httpx.Client) -> str:
    """The path of a new endpoint."""
    return f"{ENDPOINTS}/{an_endpoint(http)['id']}"


@pytest.fixture
def there() -> Iterator[Receiver]:
    with receiver(says(200)) as running:
        yield running


def an_end(store: Store, tenant_id: str = "default") -> str:
    """The delivery of a job that has ended."""
    job = submit(store, tenant_id=tenant_id)
    with store.transaction() as tx:
        transitions.finish(tx, job, JobState.FAILED, tx.now(), counts=Counts(0))
        [delivery] = tx.deliveries.list(tenant_id, limit=9, filters=DeliveryFilters(job_id=job.id))
    return delivery.id


def test_an_update_of_nothing_changes_nothing_and_no_answer_shows_the_secret_again(client):
    made = client.webhooks.create(name="pager", url=URL, event_types=["batch.completed", "batch.failed"])
    shown = client.webhooks.retrieve(made.id)

    assert made.signing_secret_hint == f"whsec_…{made.signing_secret[-4:]}"
    assert "signing_secret" not in shown.to_dict()
    assert client.webhooks.update(made.id) == shown


WRONG: Final[Sequence[tuple[dict[str, object], str]]] = (
    ({"url": "ftp://example.com/"}, "url"),
    ({"url": "http://10.0.0.1/"}, "url"),
    ({"url": "https://user:word@example.com/"}, "url"),
    ({"url": ""}, "url"),
    ({"event_types": []}, "event_types"),
    ({"event_types": ["response.completed"]}, "event_types[0]"),
    ({"event_types": ["batch.*", "job.eaten"]}, "event_types[1]"),
    ({"event_types": ["batch.failed"] * 65}, "event_types"),
    ({"event_types": "batch.failed"}, "event_types"),
    ({"name": ""}, "name"),
    ({"name": "n" * 257}, "name"),
)
OF_AN_UPDATE: Final[Sequence[tuple[dict[str, object], str]]] = (
    ({"nightshift": {"disabled": "often"}}, "nightshift.disabled"),
    ({"nightshift": {"enabled": True}}, "nightshift.enabled"),
)


def test_a_field_that_is_wrong_or_missing_is_named(http, path):
    good = {"name": "pager", "url": URL, "event_types": ["*"]}
    missing = [({name: good[name] for name in good if name != field}, field) for field in good]
    creates = [*((good | wrong, param) for wrong, param in WRONG), *missing]

    for address, bodies in {ENDPOINTS: creates, path: (*WRONG, *OF_AN_UPDATE)}.items():
        for body, param in bodies:
            refused = http.post(address, json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), (address, body)


def test_only_so_many_endpoints_are_accepted(http):
    body = {"name": "pager", "url": URL, "event_types": ["job.*"]}
    for _ in range(ENDPOINTS_MAX):
        an_endpoint(http, **body)
    assert http.post(ENDPOINTS, json=body).status_code == 409


@pytest.mark.parametrize(("route", "both"), [("rotate", True), ("rotate_secret", False)])
def test_the_old_secret_signs_on_only_where_that_is_asked_for(http, there, route, both):
    made = an_endpoint(http, there.numeric_url)
    rotated = http.post(f"{ENDPOINTS}/{made['id']}/{route}")
    assert rotated.headers["cache-control"] == "no-store"
    new = rotated.json()
    assert new["signing_secret"] != made["signing_secret"]
    assert (new["nightshift"]["previous_secret_expires_at"] is not None) is both

    http.post(f"{ENDPOINTS}/{made['id']}/test", json={"event_type": "job.succeeded"})
    [sent] = there.requests
    assert len(sent.headers["webhook-signature"].split()) == 1 + both
    StandardWebhook(new["signing_secret"]).verify(sent.body, dict(sent.headers))


def test_a_test_of_a_receiver_that_does_not_answer_says_so(http):
    made = an_endpoint(http, "http://127.0.0.1:1/")["id"]
    for _ in range(SAMPLES_PER_TENANT_MAX + 1):  # each has ended before the next
        refused = http.post(f"{ENDPOINTS}/{made}/test", json={"event_type": "job.succeeded"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "webhook_no_answer")
    unknown = http.post(f"{ENDPOINTS}/{made}/test", json={"event_type": "job.*"})
    assert unknown.json()["error"]["param"] == "event_type"


def test_a_disabled_endpoint_says_why_and_can_be_enabled(client, http, store):
    made = client.webhooks.create(name="pager", url=URL, event_types=["batch.failed"])
    with store.transaction() as tx:
        endpoint = tx.webhook_endpoints.lock("default", made.id)
        tx.webhook_endpoints.update(endpoint.disabled(DisabledReason.GONE, tx.now()))

    shown = http.get(f"{ENDPOINTS}/{made.id}").json()["nightshift"]
    assert (shown["status"], shown["disabled_reason"]) == ("disabled", "gone")
    assert shown["disabled_at"] is not None
    enabled = client.webhooks.update(made.id, extra_body={"nightshift": {"disabled": False}})
    assert enabled.to_dict()["nightshift"] == {
        "status": "enabled",
        "disabled_at": None,
        "disabled_reason": None,
        "failing_since": None,
        "previous_secret_expires_at": None,
    }


def test_dead_letters_are_listed_by_endpoint_and_time_and_replayed(http, store, path):
    http.post(path, json={"nightshift": {"disabled": True}})
    dead = an_end(store)
    since = int(time.time()) - 60

    def listed(**filters: object) -> list[str]:
        answer = http.get("/v1/deliveries", params={"webhook_endpoint_id": path.rpartition("/")[2]} | filters)
        return [delivery["id"] for delivery in answer.json()["data"]]

    assert listed(status="dead", created_after=since) == [dead]
    assert listed(created_before=since) == listed(webhook_endpoint_id="whe_other") == []
    wrong = http.get("/v1/deliveries", params={"created_after": since, "created_before": since})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "created_before")

    for refused in (
        http.post(f"{path}/replay", json={"since": since}),
        http.post(f"/v1/deliveries/{dead}/replay"),
    ):
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "webhook_endpoint_disabled")
    http.post(path, json={"nightshift": {"disabled": False}})
    replays = [
        http.post(f"{path}/replay", json={"since": since, "until": since + 3600}).json() for _ in range(2)
    ]
    assert [(replay["replayed"], replay["has_more"]) for replay in replays] == [(1, False), (0, False)]
    assert listed(status="pending") == [dead]
    assert http.post(f"/v1/deliveries/{dead}/replay").json()["status"] == "pending"  # it is owed already
    nothing = http.post(f"{path}/replay", json={"since": since, "until": since})
    assert (nothing.status_code, nothing.json()["error"]["param"]) == (400, "since")


def test_one_call_replays_so_many_at_most_and_says_that_there_are_more(http, store, path, monkeypatch):
    monkeypatch.setattr("nightshift.lifecycle.webhooks.replays.REPLAYED_MAX", 2)
    http.post(path, json={"nightshift": {"disabled": True}})
    for _ in range(3):
        an_end(store)
    http.post(path, json={"nightshift": {"disabled": False}})

    replays = [http.post(f"{path}/replay", json={"since": 0}).json() for _ in range(3)]
    counts = [(replay["replayed"], replay["has_more"]) for replay in replays]
    assert counts == [(2, True), (1, False), (0, False)]


def test_another_tenants_endpoint_is_not_found(http, store, make_key):
    made, delivery = an_endpoint(http)["id"], an_end(store)
    stranger = {"authorization": f"Bearer {make_key('other')}"}
    bodies = {"test": {"event_type": "job.failed"}, "replay": {"since": 0}}

    paths = [
        (method, route.path.format(webhook_endpoint_id=made))
        for route in router.routes
        if "{" in route.path
        for method in route.methods
    ]
    assert len(paths) == 7
    for method, path in [*paths, ("POST", f"/v1/deliveries/{delivery}/replay")]:
        body = bodies.get(path.rpartition("/")[2], {})
        answer = http.request(method, path, json=body, headers=stranger)
        assert answer.status_code == 404, (method, path)
    assert http.get(ENDPOINTS, headers=stranger).json()["data"] == []
    of_other = http.get("/v1/deliveries", params={"webhook_endpoint_id": made}, headers=stranger)
    assert of_other.json()["data"] == []
    assert http.get(ENDPOINTS, params={"after": made}, headers=stranger).status_code == 404


def test_what_is_done_is_in_the_audit_log_without_secrets(http, store, there):
    body = {"name": "pager", "url": there.numeric_url, "event_types": ["*"]}
    path = f"{ENDPOINTS}/{http.post(ENDPOINTS, json=body).json()['id']}"
    http.post(path, json={"name": "phone", "nightshift": {"disabled": True}})
    dead = an_end(store)
    http.post(path, json={"nightshift": {"disabled": False}})
    http.post(f"{path}/rotate")
    http.post(f"{path}/test", json={"event_type": "job.failed"})
    http.post(f"/v1/deliveries/{dead}/replay")
    http.delete(path)

    with store.snapshot() as tx:
        entries = [
            (entry.action, entry.details) for entry in reversed(tx.audit.list(limit=99, of_tenant="default"))
        ]
    assert entries == [
        ("webhook_endpoint.created", body),
        ("webhook_endpoint.updated", {"name": "phone", "disabled": True}),
        ("webhook_endpoint.updated", {"disabled": False}),
        ("webhook_endpoint.rotated", {"overlap_s": 86400}),
        ("webhook_endpoint.tested", {"event_type": "job.failed"}),
        ("delivery.replayed", {}),
        ("webhook_endpoint.deleted", {}),
    ]
