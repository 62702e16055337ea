"""A tenant's jobs have no better class than its ceiling, on every route that makes one."""

import httpx
import pytest

from tests.integration.api.asking import CHAT, batch_over, chat, online
from tests.integration.api.conftest import HttpMaker


@pytest.fixture
def acme(admin: httpx.Client, http_of: HttpMaker) -> httpx.Client:
    """A tenant that may have no better class than standard."""
    admin.post("/v1/tenants", json={"name": "acme", "priority_ceiling": "standard"})
    return http_of("acme")


def newest(client: httpx.Client) -> str:
    return str(client.get("/v1/jobs").json()["data"][0]["priority"])


@pytest.mark.parametrize(
    ("wanted", "given"), [("interactive", "standard"), (None, "standard"), ("background", "background")]
)
def test_an_online_job_is_run_in_the_ceilings_class_at_best(acme, worker, wanted, given):
    made = acme.post("/v1/jobs", json=online(priority=wanted))

    assert made.status_code == 202
    assert newest(acme) == given


def test_a_chat_answer_names_the_tier_it_was_run_in(acme, worker):
    assert acme.post(CHAT, json=chat(service_tier="priority")).json()["service_tier"] == "default"
    assert newest(acme) == "standard"


def test_a_batch_is_run_in_the_ceilings_class_at_best_and_changed_to_none_better(acme):
    uploaded = acme.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", b"{}\n")})
    batch = batch_over(uploaded.json()["id"], nightshift={"priority": "interactive"})
    made = acme.post("/v1/batches", json=batch).json()["nightshift"]
    assert made["priority"] == "standard"

    job = acme.patch(f"/v1/jobs/{made['job_id']}", json={"priority": "interactive"}).json()
    assert job["priority"] == "standard"


def test_a_ceiling_is_changed_and_shown(admin, acme, worker):
    lifted = admin.patch("/v1/tenants/acme", json={"priority_ceiling": "interactive"}).json()
    acme.post("/v1/jobs", json=online(priority="interactive"))
    wrong = admin.patch("/v1/tenants/acme", json={"priority_ceiling": "best"})

    assert lifted["priority_ceiling"] == "interactive"
    assert newest(acme) == "interactive"
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "priority_ceiling")
