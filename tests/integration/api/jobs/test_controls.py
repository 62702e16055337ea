"""Changing a job under way over HTTP: who may, what is answered, and when it is too late."""

import httpx
import pytest

from tests.integration.api.asking import end_job


@pytest.fixture
def job_id(http: httpx.Client, bulk: dict[str, object]) -> str:
    """A job whose input has not been read."""
    return str(http.post("/v1/jobs", json=bulk).json()["id"])


def test_priority_and_metadata_are_changed_before_the_end(http, job_id):
    first = http.patch(f"/v1/jobs/{job_id}", json={"priority": "background", "metadata": {"a": "b"}})
    second = http.patch(f"/v1/jobs/{job_id}", json={"metadata": None})

    assert first.status_code == second.status_code == 200
    assert (first.json()["priority"], first.json()["metadata"]) == ("background", {"a": "b"})
    assert (second.json()["priority"], second.json()["metadata"]) == ("background", None)
    assert http.get(f"/v1/jobs/{job_id}").json() == second.json()


@pytest.mark.parametrize(
    ("body", "param"),
    [({"priority": "now"}, "priority"), ({"metadata": {"a": 1}}, "metadata.a"), ({"name": "n"}, "name")],
)
def test_what_cannot_be_changed_is_named(http, job_id, body, param):
    refused = http.patch(f"/v1/jobs/{job_id}", json=body)

    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param


def test_a_job_is_paused_and_resumed_and_a_repeat_changes_nothing(http, job_id):
    pauses = [http.post(f"/v1/jobs/{job_id}/pause") for _ in range(2)]
    resumes = [http.post(f"/v1/jobs/{job_id}/resume") for _ in range(2)]

    assert [answer.status_code for answer in (*pauses, *resumes)] == [200] * 4
    assert pauses[0].json()["paused_at"] is not None
    assert pauses[1].json() == pauses[0].json()
    assert (pauses[0].json()["status"], pauses[0].json()["queue_position"]) == ("queued", None)
    assert resumes[1].json() == resumes[0].json()
    assert (resumes[0].json()["paused_at"], resumes[0].json()["queue_position"]) == (None, 1)


def test_a_paused_job_is_cancelled_like_any_other(http, job_id):
    http.post(f"/v1/jobs/{job_id}/pause")

    cancelled = http.post(f"/v1/jobs/{job_id}/cancel").json()

    assert (cancelled["stop_reason"], cancelled["paused_at"]) == ("cancelled", None)
    assert http.post(f"/v1/jobs/{job_id}/resume").status_code == 409


@pytest.mark.parametrize(
    ("method", "route", "body"),
    [("PATCH", "", {"priority": "background"}), ("POST", "/pause", None), ("POST", "/resume", None)],
)
def test_a_job_that_has_ended_is_not_changed(http, job_id, store, method, route, body):
    end_job(store, job_id)
    late = http.request(method, f"/v1/jobs/{job_id}{route}", json=body)

    assert late.status_code == 409
    assert late.headers["x-should-retry"] == "false"
    assert "status 'failed'" in late.json()["error"]["message"]
