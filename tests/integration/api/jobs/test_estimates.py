"""An estimate surveys an input, has a sample of it run, and makes its figures of that."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from nightshift.fleet.workers import WorkerState
from nightshift.jobs import Counts, Face, Job, JobState, Usage
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle import transitions
from nightshift.objectstore import open_store
from nightshift.store import Store
from nightshift.tenants.keys import Scope
from tests.helpers.fakes import a_row_result, a_shard, a_webhook_endpoint
from tests.integration.api.asking import CHAT, store_segment
from tests.integration.api.fake_worker import CHAT_MODEL

pytestmark = pytest.mark.usefixtures("forked_previews")

TEMPLATE = {"model": CHAT_MODEL, "messages": [{"role": "user", "content": "Sum up: {{text}}"}]}
ROUTE = "/v1/jobs/estimate"


@pytest.fixture
def allowed(tmp_path: Path) -> Path:
    (tmp_path / "allowed" / "in").mkdir(parents=True)
    return tmp_path / "allowed"


def a_body(allowed: Path, rows: int = 20, **fields: object) -> dict[str, object]:
    """A body over so many rows, of which two are equal."""
    lines = [json.dumps({"text": f"text {max(1, number)}"}) + "\n" for number in range(rows)]
    (allowed / "in" / "a.jsonl").write_text("".join(lines))
    return {"endpoint": CHAT, "input": f"{(allowed / 'in').as_uri()}/", "template": TEMPLATE} | fields


def estimated(http: httpx.Client, body: dict[str, object], status_code: int = 202) -> dict[str, Any]:
    answer = http.post(ROUTE, json=body)
    assert answer.status_code == status_code, answer.text
    return dict(answer.json())


def run_sample(store: Store, settings: Any, job_id: str, *, status_code: int = 200) -> Job:
    """Runs the sample in one segment, and ends its job."""
    objects = open_store(settings.data.resolved_storage_url)
    with store.transaction() as tx:
        rows = tx.jobs.fetch(job_id).spec.estimate["sample_rows"]  # type: ignore[index]
        transitions.plan(tx, tx.jobs.fetch(job_id), CHAT_MODEL, [a_shard()], tx.now())
        claim = tx.claims.bulk("worker_a", [CHAT_MODEL], tx.now(), 60)
        assert claim is not None
        assert claim.job.id == job_id
    with store.transaction() as tx:
        results = [
            a_row_result(row, f"sample-{row}", status_code, usage=Usage(20, 10)) for row in range(rows)
        ]
        store_segment(tx, objects, claim.lease, results, 0)
    with store.transaction() as tx:
        counts = Counts(rows, rows, 0)
        transitions.finish(tx, tx.jobs.fetch(job_id), JobState.SUCCEEDED, tx.now(), counts=counts)
        return tx.jobs.fetch(job_id)


def test_a_sample_job_runs_in_the_last_class_over_a_file_that_expires(http, store, allowed, worker):
    shown = estimated(http, a_body(allowed, priority="interactive", output=f"{allowed.as_uri()}/out/"))

    assert (shown["object"], shown["status"], shown["problems"]) == ("job.estimate", "running", [])
    assert shown["sample"] == {"rows": 21, "rows_ended": 0, "errors": {}, "shares_answers": False}
    with store.snapshot() as tx:
        job = tx.jobs.fetch(shown["id"])
        file = tx.files.get(job.tenant_id, job.spec.input, tx.now())
    assert (job.face, job.priority, job.model) == (Face.NATIVE, PriorityClass.BACKGROUND, CHAT_MODEL)
    assert (job.spec.output, job.spec.template, job.spec.max_runtime_s) == (None, None, 60)
    assert file is not None
    assert file.expires_at == file.created_at + timedelta(hours=1)
    assert http.get(f"/v1/jobs/{job.id}").json()["purpose"] == "estimate"


def test_the_survey_is_in_the_first_answer(http, allowed, worker):
    survey = estimated(http, a_body(allowed, rows=20))["input"]
    assert (survey["rows"], survey["duplicates"], survey["rows_read"]) == (20, 1, 20)
    assert survey["rows_are_exact"]
    assert survey["duplicates_are_exact"]


def test_the_figures_are_made_of_the_samples_results(http, store, settings, allowed, worker):
    prices = {"gpu_hour_price": 2.0, "spot_price": 0.5}
    id = estimated(http, a_body(allowed, rows=20, **prices))["id"]
    assert http.get(f"{ROUTE}/{id}").json()["status"] == "running"
    run_sample(store, settings, id)
    shown = http.get(f"{ROUTE}/{id}").json()

    figures = shown["figures"]
    assert (shown["status"], figures["rows_to_run"], figures["rows_failing"]) == ("succeeded", 20, 0)
    assert (figures["prompt_tokens"]["total"], figures["completion_tokens"]["total"]) == (400, 200)
    assert figures["prompt_tokens"]["histogram"] == {"32": 21}
    assert figures["eta_s"] > figures["waits_s"] == 0
    assert shown["workers_ready"] == 1
    assert figures["saving"] == pytest.approx(figures["cost"] * 0.75)


def test_rows_that_other_jobs_have_left_in_this_class_or_a_better_one_are_waited_for(
    http, store, settings, allowed, worker
):
    body = a_body(allowed)
    id = estimated(http, body)["id"]
    run_sample(store, settings, id)
    for priority, rows in (("interactive", 700), ("standard", 300), ("background", 5000)):
        other = http.post(
            "/v1/jobs", json=body | {"output": f"{allowed.as_uri()}/{priority}/"} | {"priority": priority}
        )
        with store.transaction() as tx:
            job = tx.jobs.fetch(other.json()["id"])
            transitions.plan(tx, job, CHAT_MODEL, [a_shard()], tx.now(), rows_total=rows)
    figures = http.get(f"{ROUTE}/{id}").json()["figures"]
    assert figures["waits_s"] == pytest.approx(1000 / figures["rows_per_worker_s"])
    assert figures["eta_s"] > figures["waits_s"]


def test_a_cancelled_sample_says_so(http, store, allowed, worker):
    id = estimated(http, a_body(allowed))["id"]
    with store.transaction() as tx:
        transitions.finish(tx, tx.jobs.fetch(id), JobState.CANCELLED, tx.now(), counts=Counts(21, 0, 0))
    shown = http.get(f"{ROUTE}/{id}").json()
    assert (shown["status"], [problem["code"] for problem in shown["problems"]]) == (
        "failed",
        ["sample_cancelled"],
    )


def test_a_sample_that_a_worker_was_lost_with_tells_tokens_and_no_pace(
    http, store, settings, allowed, worker
):
    id = estimated(http, a_body(allowed))["id"]
    run_sample(store, settings, id)
    with store.transaction() as tx:
        tx.events.append(id, transitions.SHARD_LOST, {"shard": 0}, tx.now())
    shown = http.get(f"{ROUTE}/{id}").json()
    figures = shown["figures"]
    assert [problem["code"] for problem in shown["problems"]] == ["sample_interrupted"]
    assert (figures["prompt_tokens"]["total"], figures["rows_per_worker_s"]) == (400, None)


def test_a_sample_whose_rows_all_fail_says_so(http, store, settings, allowed, worker):
    id = estimated(http, a_body(allowed, rows=20))["id"]
    run_sample(store, settings, id, status_code=400)
    shown = http.get(f"{ROUTE}/{id}").json()
    figures = shown["figures"]
    assert (shown["status"], figures["rows_failing"], figures["prompt_tokens"]) == ("failed", 20, None)
    assert sum(shown["sample"]["errors"].values()) == 21


def test_without_a_worker_there_is_no_sample_but_what_is_known(http, store, allowed, worker):
    with store.transaction() as tx:
        tx.workers.mark("worker_fake", WorkerState.STOPPED, tx.now())
    shown = estimated(http, a_body(allowed), 200)
    assert (shown["id"], shown["status"], shown["sample"]) == (None, "failed", None)
    assert shown["input"]["rows"] == 20
    (problem,) = shown["problems"]
    assert (problem["code"], problem["is_permanent"]) == ("no_worker", False)


@pytest.mark.parametrize(
    ("content", "fields", "code"),
    [
        ("\n", {}, "empty_input"),
        ('{"other": "a"}\n', {}, "missing_column"),
        (None, {}, "object_not_found"),
        ('{"body": {"model": "other"}}\n', {"template": None}, "model_not_found"),
    ],
)
def test_what_a_dry_run_finds_wrong_is_a_problem_here(http, store, allowed, worker, content, fields, code):
    body = a_body(allowed) | fields
    (allowed / "in" / "a.jsonl").unlink()
    if content is not None:
        (allowed / "in" / "a.jsonl").write_text(content)
    shown = estimated(http, body, 200)
    assert [problem["code"] for problem in shown["problems"]] == [code]
    assert shown["id"] is None
    assert http.get("/v1/jobs").json()["data"] == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"gpu_hour_price": 0}, "gpu_hour_price"),
        ({"gpu_hour_price": 1e308}, "gpu_hour_price"),
        ({"gpu_hour_price": True}, "gpu_hour_price"),
        ({"spot_price": "2"}, "spot_price"),
        ({"spot_price": -1}, "spot_price"),
        ({"body": {}, "input": None}, "body"),
        ({"output": "ftp://x/"}, "output"),
        ({"completion_window": "soon"}, "completion_window"),
    ],
)
def test_a_wrong_field_is_named(http, allowed, worker, fields, param):
    answer = http.post(ROUTE, json=a_body(allowed) | fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_another_tenant_and_another_job_have_no_estimate(http, stranger, store, settings, allowed, worker):
    body = a_body(allowed)
    id = estimated(http, body)["id"]
    assert http.get(f"{ROUTE}/{id}", headers=stranger).status_code == 404
    job = http.post("/v1/jobs", json=body | {"output": f"{allowed.as_uri()}/out/"}).json()["id"]
    assert http.get(f"{ROUTE}/{job}").status_code == 404


def test_a_key_that_may_not_read_gets_no_estimate(http_of, allowed, worker):
    answer = http_of(scopes=(Scope.SUBMIT,)).post(ROUTE, json=a_body(allowed))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "missing_scope")


def test_no_webhook_is_called_for_a_sample(http, store, settings, allowed, worker):
    with store.transaction() as tx:
        tx.webhook_endpoints.insert(a_webhook_endpoint(tenant_id="default"))
    id = estimated(http, a_body(allowed))["id"]
    job = run_sample(store, settings, id)
    with store.snapshot() as tx:
        assert tx.deliveries.list(job.tenant_id, limit=10) == []
