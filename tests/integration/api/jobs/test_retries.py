"""POST /v1/jobs/{id}/retry: what the new job is, and when there is nothing to retry."""

from functools import partial
from typing import Final

import httpx
import pytest

from nightshift.jobs import Counts, JobState
from nightshift.lifecycle import transitions
from nightshift.store import Store
from tests.helpers.fakes import a_shard
from tests.integration.api.asking import end_job
from tests.integration.api.fake_worker import CHAT_MODEL, FakeWorker

Bulk = dict[str, object]


def plan(store: Store, job_id: str) -> None:
    with store.transaction() as tx:
        assert transitions.plan(tx, tx.jobs.fetch(job_id), CHAT_MODEL, [a_shard()], tx.now())


def end(store: Store, job_id: str, failed: int = 2) -> None:
    end_job(store, job_id, JobState.CANCELLED, counts=Counts(5, 5 - failed, failed))


def finish(store: Store, job_id: str, failed: int = 2) -> None:
    plan(store, job_id)
    end(store, job_id, failed)


@pytest.fixture
def ended(http: httpx.Client, bulk: Bulk, store: Store, worker: FakeWorker) -> str:
    """A job two of whose rows failed. The worker makes its model known."""
    wishes = {"priority": "background", "metadata": {"a": "b"}, "name": "nightly", "date": "2026-11-23"}
    job_id = str(http.post("/v1/jobs", json=bulk | wishes).json()["id"])
    finish(store, job_id)
    return job_id


def test_a_retry_is_a_new_job_with_the_settings_of_the_old_one(http, ended, bulk):
    accepted = http.post(f"/v1/jobs/{ended}/retry")

    assert accepted.status_code == 202
    assert accepted.json()["retry_of"] == ended
    new = http.get(f"/v1/jobs/{accepted.json()['id']}").json()
    assert (new["retry_of"], new["priority"], new["metadata"]) == (ended, "background", {"a": "b"})
    assert new["output"] == f"{bulk['output']}retries/{new['id']}/"
    assert (new["model"], new["template"], new["name"]) == (CHAT_MODEL, None, None)
    assert new["input"].startswith("file-")
    assert http.get(f"/v1/jobs/{ended}").json()["retries"] == [new["id"]]


def test_a_retry_has_what_is_asked_for_instead(http, ended, bulk):
    output = f"{bulk['output']}again/"
    body = {"output": output, "priority": "standard", "completion_window": "2h", "max_error_rate": 0.5}
    body |= {"window": "00:00-23:59 UTC"}
    new_id = http.post(f"/v1/jobs/{ended}/retry", json=body).json()["id"]

    new = http.get(f"/v1/jobs/{new_id}").json()
    assert {name: new[name] for name in body} == body
    assert new["metadata"] == {"a": "b"}


LIMITS: Final = {"max_error_rate": 0.5, "max_failed_rows": 3, "max_tokens_total": 99, "row_timeout": "30s"}


def test_a_retry_has_the_limits_of_the_old_job_and_null_takes_one_away(http, bulk, store, worker):
    job_id = http.post("/v1/jobs", json=bulk | LIMITS).json()["id"]
    finish(store, job_id)

    for name in LIMITS:
        new_id = http.post(f"/v1/jobs/{job_id}/retry", json={name: None}).json()["id"]
        new = http.get(f"/v1/jobs/{new_id}").json()
        assert {limit: new[limit] for limit in LIMITS} == LIMITS | {name: None}


def test_a_retry_keeps_its_window_unless_null_takes_it_away(http, bulk, store, worker):
    job_id = http.post("/v1/jobs", json=bulk | {"window": "01:00-06:00"}).json()["id"]
    finish(store, job_id)

    kept, freed = (http.post(f"/v1/jobs/{job_id}/retry", json=body).json() for body in ({}, {"window": None}))

    windows = [http.get(f"/v1/jobs/{new['id']}").json()["window"] for new in (kept, freed)]
    assert windows == ["01:00-06:00 UTC", None]


def test_two_retries_with_one_key_are_one_job(http, ended):
    def retried(key: str, **body: object) -> httpx.Response:
        return http.post(f"/v1/jobs/{ended}/retry", json=body, headers={"idempotency-key": key})

    first, again, another = retried("a"), retried("a"), retried("b")

    assert first.json() == again.json()
    assert another.json()["id"] != first.json()["id"]
    assert retried("a", priority="standard").status_code == 422
    retries = http.get(f"/v1/jobs/{ended}").json()["retries"]
    assert sorted(retries) == sorted([first.json()["id"], another.json()["id"]])


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (plan, "has not ended"),
        (end, "was not read to its end"),
        (partial(finish, failed=0), "rows all succeeded"),
    ],
    ids=["running", "unread", "flawless"],
)
def test_a_job_without_rows_to_run_again_is_not_retried(http, bulk, store, happens, why):
    job_id = http.post("/v1/jobs", json=bulk).json()["id"]
    happens(store, job_id)

    refused = http.post(f"/v1/jobs/{job_id}/retry")

    assert refused.status_code == 409
    assert refused.headers["x-should-retry"] == "false"
    assert why in refused.json()["error"]["message"]


def test_what_a_retry_cannot_have_is_named(http, ended):
    wrong = {"rows": "all", "output": "file:///elsewhere/", "completion_window": "soon"}
    for param, value in wrong.items():
        refused = http.post(f"/v1/jobs/{ended}/retry", json={param: value})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
