"""The jobs routes: one request or an input of many, accepted, shown, listed, cancelled, waited for."""

from datetime import timedelta
from threading import Event

import httpx
import pytest

from nightshift.jobs import Fault, InputError, NewShard
from nightshift.jobs.part import PartProblem
from nightshift.jobs.planning import PlanCursor
from nightshift.lifecycle import transitions
from nightshift.lifecycle.problems import ProblemRecorder
from nightshift.outbound.webhooks import new_secret, secret_key
from nightshift.tenants.vault import open_vault
from tests.integration.api.asking import CHAT, bulk_under, end_job, online
from tests.integration.api.conftest import batch_lines
from tests.integration.api.fake_worker import CHAT_MODEL, FakeWorker, OnlineClaim


def test_an_online_job_is_accepted_run_and_read(http, worker):
    accepted = http.post("/v1/jobs", json=online(metadata={"team": "search"}))
    job = accepted.json()

    assert accepted.status_code == 202
    assert job["status"] == "queued"
    assert job["queue_position"] == 1
    events = http.get(job["links"]["events"].split("8000")[1])  # ends when the job does
    shown = http.get(f"/v1/jobs/{job['id']}").json()
    results = http.get(f"/v1/jobs/{job['id']}/results")
    assert "event: job.succeeded" in events.text
    assert (shown["status"], shown["kind"], shown["priority"]) == ("succeeded", "online", "interactive")
    assert shown["counts"] == {"total": 1, "succeeded": 1, "failed": 0}
    assert shown["metadata"] == {"team": "search"}
    assert shown["finished_at"] >= shown["started_at"] >= shown["created_at"]
    assert "x-nightshift-incomplete" not in results.headers
    (row,) = results.json()["data"]
    assert row["outcome"] == "succeeded"
    assert row["response"]["body"]["choices"][0]["message"]["content"] == "one two"
    assert http.get(f"/v1/jobs/{job['id']}/results", params={"after": row["id"]}).json()["data"] == []


def test_a_job_over_an_uploaded_file_may_leave_its_results_with_the_service(http):
    file = http.post("/v1/files", data={"purpose": "user_data"}, files={"file": ("in.jsonl", b"{}\n")}).json()
    accepted = http.post("/v1/jobs", json={"endpoint": CHAT, "input": file["id"]})
    shown = http.get(f"/v1/jobs/{accepted.json()['id']}").json()

    assert accepted.status_code == 202
    assert (shown["kind"], shown["output"]) == ("bulk", None)


def test_a_job_says_what_keeps_its_output_from_being_written(http, bulk, store):
    job_id = http.post("/v1/jobs", json=bulk).json()["id"]
    assert http.get(f"/v1/jobs/{job_id}").json()["output_problem"] is None
    away = InputError("storage_unavailable", "The bucket is away.", param="output")
    with store.transaction() as tx:
        tx.jobs.record_output_problem(job_id, PartProblem(error=away, is_permanent=False))

    assert http.get(f"/v1/jobs/{job_id}").json()["output_problem"] == {
        "code": "storage_unavailable",
        "message": "The bucket is away.",
        "param": "output",
        "is_permanent": False,
        "next_attempt_at": None,
    }
    [listed] = http.get("/v1/jobs").json()["data"]
    assert "output_problem" not in listed


def test_a_job_says_what_keeps_it_from_going_on_wherever_it_is_shown(http, bulk, store):
    job_id = http.post("/v1/jobs", json=bulk).json()["id"]
    assert http.get(f"/v1/jobs/{job_id}").json()["problem"] is None
    expired = InputError("storage_denied", "The input cannot be read at present: ExpiredToken", param="input")
    with store.transaction() as tx:
        now = tx.now()
        tx.jobs.record_input_fault(job_id, Fault(error=expired, met_at=now))
    ProblemRecorder(store).run_once(now)

    at_s = int(now.timestamp())
    problem = {
        "code": "storage_denied",
        "message": expired.message,
        "param": "input",
        "is_permanent": False,
        "since": at_s,
        "last_tried_at": at_s,
        "next_attempt_at": None,
    }
    assert http.get(f"/v1/jobs/{job_id}").json()["problem"] == problem
    [listed] = http.get("/v1/jobs").json()["data"]
    assert listed["problem"] == problem


@pytest.mark.parametrize(("wait_s", "status_code", "status"), [(30, 200, "succeeded"), (1, 202, "queued")])
def test_prefer_wait_holds_until_the_job_has_ended_or_time_is_up(
    http, bulk, worker, wait_s, status_code, status
):
    body = online() if status == "succeeded" else bulk
    answer = http.post("/v1/jobs", json=body, headers={"prefer": f"respond-async, wait={wait_s}"})

    assert (answer.status_code, answer.json()["status"]) == (status_code, status)


def test_a_bulk_job_is_accepted_and_echoes_the_request(http, bulk):
    template = {"model": None, "messages": [{"role": "user", "content": "{{text}}"}]}
    body = bulk | {
        "endpoint": "chat",
        "template": template,
        "id_column": "doc_id",
        "priority": "background",
        "completion_window": "8h",
        "max_runtime": "90m",
        "retry_on_interrupt": False,
        "capacity": "spot",
        "max_error_rate": 0.05,
        "max_failed_rows": 0,
        "max_tokens_total": 10**12,
        "row_timeout": "90s",
        "metadata": {"team": "search"},
        "format": "parquet",
        "keep_columns": ["doc_id", "meta.lang"],
        "name": "nightly",
        "date": "2026-11-20",
        "reuse": "latest",
        "reuse_sampled": True,
        "pool": "nightly",
    }
    accepted = http.post("/v1/jobs", json=body)
    shown = http.get(f"/v1/jobs/{accepted.json()['id']}").json()

    assert accepted.status_code == 202, accepted.text
    assert {name: shown[name] for name in body} == body | {"endpoint": CHAT}
    assert shown["expires_at"] == shown["created_at"] + 8 * 3600
    assert shown["counts"]["total"] is None
    assert (shown["reused_job"], shown["rows_reused"]) == (None, 0)
    assert shown["status"] == "queued"
    assert "template" not in http.get("/v1/jobs").json()["data"][0]


def test_a_job_with_hours_has_a_week_and_waits_for_them(http, bulk, store):
    tomorrow = (store.now() + timedelta(hours=12)).replace(minute=0).time()
    accepted = http.post("/v1/jobs", json=bulk | {"window": f"{tomorrow:%H:%M}-{tomorrow:%H}:59"})
    shown = http.get(f"/v1/jobs/{accepted.json()['id']}").json()

    assert accepted.status_code == 202, accepted.text
    assert shown["window"] == f"{tomorrow:%H:%M}-{tomorrow:%H}:59 UTC"
    assert shown["expires_at"] == shown["created_at"] + 7 * 86_400
    assert shown["paused_at"] is not None
    assert shown["paused_at"] < shown["resumes_at"] <= shown["paused_at"] + 12 * 3600
    assert (shown["status"], shown["queue_position"], shown["outlook"]) == ("queued", None, None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "poems"}, "endpoint"),
        ({"keep_columns": ["a", "a"]}, "keep_columns"),
        ({"endpoint": None}, "endpoint"),
        ({"input": None}, "body"),
        ({"body": {}}, "body"),
        ({"output": None}, "output"),
        ({"output": "/tmp/out"}, "output"),
        ({"output": "s3://bucket/*/"}, "output"),
        ({"output": "file:///etc/"}, "output"),
        ({"input": "file:///etc/passwd"}, "input"),
        ({"input": "s3://not-allowed/x"}, "input"),
        ({"input": "http://example.com/x"}, "input"),
        ({"input": "file-unknown"}, "input"),
        ({"input": "file:///%00"}, "input"),
        ({"input": ""}, "input"),
        ({"input": 7}, "input"),
        ({"input": []}, "input"),
        ({"input": ["s3://b/a.csv"] * 257}, "input"),
        ({"input": ["s3://b/a.csv", ""]}, "input[1]"),
        ({"input": ["s3://b/a.csv", None]}, "input[1]"),
        ({"input": ["file:///etc/passwd", "s3://b/a.csv"]}, "input[0]"),
        ({"priority": "urgent"}, "priority"),
        ({"completion_window": "8 hours"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"completion_window": 8}, "completion_window"),
        ({"window": 60}, "window"),
        ({"window": "8h"}, "window"),
        ({"window": "01:00-01:00"}, "window"),
        ({"window": "01:00-06:00 Berlin"}, "window"),
        ({"max_runtime": "0m"}, "max_runtime"),
        ({"retry_on_interrupt": "maybe"}, "retry_on_interrupt"),
        ({"capacity": "cheap"}, "capacity"),
        ({"max_error_rate": 1.5}, "max_error_rate"),
        ({"max_failed_rows": -1}, "max_failed_rows"),
        ({"max_failed_rows": 2**53}, "max_failed_rows"),
        ({"max_tokens_total": 0}, "max_tokens_total"),
        ({"max_tokens_total": "many"}, "max_tokens_total"),
        ({"row_timeout": "0s"}, "row_timeout"),
        ({"row_timeout": "2d"}, "row_timeout"),
        ({"row_timeout": "25h"}, "row_timeout"),
        ({"row_timeout": 30}, "row_timeout"),
        ({"format": "xml"}, "format"),
        ({"reuse": "latest"}, "reuse"),
        ({"reuse": "job_unknown"}, "reuse"),
        ({"reuse": "2026-11-20"}, "reuse"),
        ({"reuse": "a b"}, "reuse"),
        ({"reuse": 7}, "reuse"),
        ({"reuse_sampled": "maybe"}, "reuse_sampled"),
        ({"pool": "two words"}, "pool"),
        ({"pool": ""}, "pool"),
        ({"template": "x"}, "template"),
        ({"template": {"model": 7}}, "template.model"),
        ({"id_column": ""}, "id_column"),
        ({"metadata": {"k": ["v"]}}, "metadata"),
        ({"name": "nightly"}, "date"),
        ({"date": "2026-11-20"}, "name"),
        ({"name": "a b", "date": "2026-11-20"}, "name"),
        ({"webhook": {}}, "webhook.url"),
        ({"webhook": {"url": "ftp://example.com"}}, "webhook.url"),
        ({"webhook": {"url": "http://127.0.0.1/"}}, "webhook.url"),
        ({"webhook": {"url": "https://example.com:6379/"}}, "webhook.url"),
        ({"webhook": {"url": "https://user:pw@example.com/"}}, "webhook.url"),
        ({"webhook": {"url": "http://xn--/"}}, "webhook.url"),
        ({"webhook": {"url": "https://example.com", "events": ["job.exploded"]}}, "webhook.events"),
        ({"webhook": {"url": "https://example.com", "secret": "short"}}, "webhook.secret"),
        ({"priorty": "background"}, "priorty"),
    ],
)
def test_a_wrong_field_of_a_bulk_job_is_named(shared_http, shared_api, fields, param):
    answer = shared_http.post("/v1/jobs", json=bulk_under(shared_api.allowed) | fields)

    error = answer.json()["error"]
    assert answer.status_code == 400, answer.text
    assert error["param"] is not None
    assert error["param"].startswith(param)
    assert error["code"] is not None
    assert shared_http.get("/v1/jobs").json()["data"] == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"body": {"model": CHAT_MODEL}}, "body.messages"),
        ({"body": {"model": CHAT_MODEL, "messages": []}}, "body.messages"),
        ({"output": "file:///x/"}, "output"),
        ({"template": {}}, "template"),
        ({"endpoint": "/v1/completions"}, "body.messages"),
        ({"endpoint": "/v1/embeddings", "body": {"model": CHAT_MODEL}}, "body.input"),
    ],
)
def test_a_wrong_field_of_an_online_job_is_named(shared_http, fields, param):
    answer = shared_http.post("/v1/jobs", json=online() | fields)

    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_an_unknown_model_is_not_found(http, bulk):
    for body in (online(), bulk | {"template": {"model": "gpt-9"}}):
        answer = http.post("/v1/jobs", json=body)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"


BESIDE_EACH_OTHER = [
    ("in/", "in-out/"),
    ("in/", "out/"),
    ("in/deep/*.jsonl", "in/out/"),
    ("in/x.jsonl", "in/"),
]
IN_EACH_OTHER = [
    ("in/", "in/"),
    ("in/", "in"),
    ("in/", "in/out/"),
    ("in/*.jsonl", "in/"),
    ("in/*.jsonl", "in/out"),
    ("in/a*/x.jsonl", "in/out/"),
    ("in.jsonl", "in.jsonl"),
]


def test_a_job_may_not_write_where_it_reads(http, tmp_path):
    allowed = (tmp_path / "allowed").as_uri()

    def answered(source: str, output: str) -> httpx.Response:
        places = {"input": f"{allowed}/{source}", "output": f"{allowed}/{output}"}
        return http.post("/v1/jobs", json={"endpoint": CHAT} | places)

    for places in IN_EACH_OTHER:
        refused = answered(*places)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "output"), places
    for places in BESIDE_EACH_OTHER:
        assert answered(*places).status_code == 202, places


def test_a_link_to_the_folder_that_is_read_is_that_folder(http, tmp_path, bulk):
    folder = tmp_path / "allowed" / "in"
    folder.mkdir(parents=True)
    (tmp_path / "allowed" / "link").symlink_to(folder)
    allowed = (tmp_path / "allowed").as_uri()

    for source in ("part-00000.jsonl", "*.jsonl", ""):
        body = bulk | {"input": f"{allowed}/link/{source}", "output": f"{allowed}/in/"}
        answer = http.post("/v1/jobs", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "output"), source


def test_a_list_of_objects_can_be_the_input_and_is_shown_as_it_was_sent(http, bulk):
    several = [bulk["input"], f"{bulk['input']}.csv"]

    accepted = http.post("/v1/jobs", json=bulk | {"input": several})

    assert accepted.status_code == 202, accepted.text
    assert http.get(f"/v1/jobs/{accepted.json()['id']}").json()["input"] == several
    alone = http.post("/v1/jobs", json=bulk | {"input": several[:1], "output": f"{bulk['output']}one/"})
    assert http.get(f"/v1/jobs/{alone.json()['id']}").json()["input"] == several[0]


def test_an_uploaded_file_can_be_the_input(client, client_of, http, bulk):
    ours = client.files.create(file=batch_lines(1), purpose="batch")
    theirs = client_of("other").files.create(file=batch_lines(1), purpose="batch")

    assert http.post("/v1/jobs", json=bulk | {"input": ours.id}).status_code == 202
    refused = http.post("/v1/jobs", json=bulk | {"input": theirs.id})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "file_not_found")


def test_a_webhook_secret_is_kept_encrypted_and_never_repeated(http, bulk, store, settings):
    secret = new_secret()
    webhook = {"url": "https://example.com/hook", "events": ["job.succeeded"], "secret": secret}
    job_id = http.post("/v1/jobs", json=bulk | {"webhook": webhook}).json()["id"]

    shown = http.get(f"/v1/jobs/{job_id}").json()
    with store.snapshot() as tx:
        kept = tx.jobs.webhook_secret(job_id)
    assert shown["webhook"] == {"url": "https://example.com/hook", "events": ["job.succeeded"]}
    assert kept is not None
    assert secret.encode() not in kept
    assert open_vault(settings.data.secret_key, settings.data.data_dir).decrypt(kept) == secret


def test_a_tenants_own_secret_is_made_once_and_shown_to_it_alone(http, stranger):
    first, second = (http.get("/v1/webhooks/secret") for _ in range(2))
    theirs = http.get("/v1/webhooks/secret", headers=stranger)

    assert first.json() == second.json()
    assert len(secret_key(first.json()["secret"])) >= 24
    assert first.headers["cache-control"] == "no-store"
    assert theirs.json()["secret"] != first.json()["secret"]


def test_a_template_has_a_limit_of_its_own(http, bulk):
    texts = ["x" * (64 * 1024 - len('{"t": ""}') + more) for more in (0, 1)]
    answers = [http.post("/v1/jobs", json=bulk | {"template": {"t": text}}) for text in texts]

    assert [answer.status_code for answer in answers] == [202, 400]
    assert answers[1].json()["error"]["param"] == "template"
    assert "65537 bytes" in answers[1].json()["error"]["message"]


def test_jobs_are_listed_newest_first_with_filters_and_pages(http, bulk):
    places = [{"output": f"{bulk['output']}{number}/"} for number in range(5)]
    ids = [http.post("/v1/jobs", json=bulk | place).json()["id"] for place in places[:4]]
    http.post("/v1/jobs", json=bulk | places[4] | {"priority": "background"})
    http.post(f"/v1/jobs/{ids[0]}/cancel")

    def listed(**params: object) -> list[str]:
        listed_ids: list[str] = []
        while True:
            page = http.get("/v1/jobs", params={"limit": 2, **params}).json()
            listed_ids += [job["id"] for job in page["data"]]
            if not page["has_more"]:
                return listed_ids
            params["after"] = page["last_id"]

    everything = listed()
    assert len(everything) == len(set(everything)) == 5
    assert sorted(listed(priority="standard")) == sorted(ids)
    assert listed(status="running") == []
    assert listed(kind="online") == []
    assert listed(status=["running", "queued"]) == everything
    assert listed(name="nightly") == []
    assert listed(model=CHAT_MODEL) == []  # not known before the input is read
    assert http.get("/v1/jobs", params={"after": "job_unknown"}).status_code == 404


def test_jobs_are_listed_by_name_model_and_time(http, bulk, worker):
    run = http.post("/v1/jobs", json=bulk | {"name": "nightly", "date": "2026-11-23"}).json()["id"]
    request = http.post("/v1/jobs", json=online()).json()["id"]
    made_at = http.get(f"/v1/jobs/{run}").json()["created_at"]

    def listed(**params: object) -> list[str]:
        return [job["id"] for job in http.get("/v1/jobs", params=params).json()["data"]]

    assert listed(name="nightly") == [run]
    assert listed(model=CHAT_MODEL) == [request]
    assert listed(created_after=made_at) == [request, run]
    assert listed(created_before=made_at) == []


@pytest.mark.parametrize(
    ("params", "wrong"),
    [
        ({"status": "asleep"}, "status"),
        ({"status": ["queued", "asleep"]}, "status"),
        ({"created_after": "yesterday"}, "created_after"),
        ({"created_before": "-1"}, "created_before"),
        ({"created_before": "99999999999999999999"}, "created_before"),
        ({"created_after": "5", "created_before": "5"}, "created_before"),
        ({"kind": "huge"}, "kind"),
    ],
)
def test_a_wrong_filter_is_named(shared_http, params, wrong):
    refused = shared_http.get("/v1/jobs", params=params)

    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == wrong
    assert f"'{wrong}'" in refused.json()["error"]["message"]


def test_another_tenants_job_is_not_found(http, stranger, bulk):
    job_id = http.post("/v1/jobs", json=bulk).json()["id"]
    reads, changes = ("", "/results", "/events"), ("/cancel", "/pause", "/resume", "/retry")
    routes = [("PATCH", ""), *(("GET", route) for route in reads), *(("POST", route) for route in changes)]
    for method, route in routes:
        body = {} if method == "PATCH" else None
        answer = http.request(method, f"/v1/jobs/{job_id}{route}", headers=stranger, json=body)
        assert answer.status_code == 404, route
        assert answer.json()["error"]["param"] == "id"
    assert http.get("/v1/jobs", headers=stranger).json()["data"] == []


def test_what_was_wrong_with_a_job_is_shown_the_first_of_it_twice(http, bulk, store):
    job_id = http.post("/v1/jobs", json=bulk).json()["id"]
    unharmed = http.get(f"/v1/jobs/{job_id}").json()
    errors = [InputError("invalid_json", "not JSON", line=2), InputError("empty_file", "empty")]
    end_job(store, job_id, errors=errors)
    shown = http.get(f"/v1/jobs/{job_id}").json()

    assert (unharmed["error"], unharmed["errors"]) == (None, [])
    assert shown["error"] == {"code": "invalid_json", "message": "not JSON", "line": 2, "param": None}
    assert [error["code"] for error in shown["errors"]] == ["invalid_json", "empty_file"]


def test_cancelling_is_idempotent_and_too_late_is_a_conflict(http, bulk, store):
    places = [{"output": f"{bulk['output']}{number}/"} for number in range(2)]
    ids = [http.post("/v1/jobs", json=bulk | place).json()["id"] for place in places]
    first = http.post(f"/v1/jobs/{ids[0]}/cancel")
    second = http.post(f"/v1/jobs/{ids[0]}/cancel")
    end_job(store, ids[1])
    late = http.post(f"/v1/jobs/{ids[1]}/cancel")

    assert first.status_code == second.status_code == 200
    assert first.json()["stop_reason"] == "cancelled"
    assert second.json()["stop_requested_at"] == first.json()["stop_requested_at"]
    assert late.status_code == 409
    assert late.headers["x-should-retry"] == "false"
    assert "status 'failed'" in late.json()["error"]["message"]


def test_an_online_job_not_claimed_yet_is_cancelled_at_once(http, worker, store):
    held, release = Event(), Event()

    def hold(worker: FakeWorker, claim: OnlineClaim) -> None:
        held.set()
        release.wait(30)
        worker.echo(claim)

    worker.behave = hold
    http.post("/v1/jobs", json=online())
    assert held.wait(30)
    waiting = http.post("/v1/jobs", json=online()).json()["id"]

    cancelled = http.post(f"/v1/jobs/{waiting}/cancel").json()
    release.set()

    assert cancelled["status"] == "cancelled"
    (row,) = http.get(f"/v1/jobs/{waiting}/results").json()["data"]
    assert (row["outcome"], row["response"]) == ("cancelled", None)
    assert row["error"]["code"] == "batch_cancelled"


def test_while_its_input_is_being_cut_a_job_does_not_say_how_many_rows_there_are(http, bulk, store):
    job_id = http.post("/v1/jobs", json=bulk).json()["id"]
    shards = [NewShard(shard_no=n, uri="file:///x", format="jsonl", start=n, end=n + 1) for n in range(2)]
    with store.transaction() as tx:
        job, next_page = tx.jobs.fetch(job_id), PlanCursor(page=1, after="x", shards=1)
        transitions.plan(
            tx, job, CHAT_MODEL, shards[:1], tx.now(), rows_estimated=9, tokens_estimated=5, next=next_page
        )
        assert tx.claims.bulk("worker_a", [CHAT_MODEL], tx.now(), 60) is not None
    shown = http.get(f"/v1/jobs/{job_id}").json()
    (listed,) = http.get("/v1/jobs").json()["data"]

    for seen in (shown, listed):
        assert (seen["status"], seen["model"], seen["queue_position"]) == ("running", CHAT_MODEL, None)
        assert (seen["planned_at"], seen["rows_estimated"], seen["eta_at"]) == (None, None, None)
        assert seen["counts"] == {"total": None, "succeeded": 0, "failed": 0}

    with store.transaction() as tx:
        job = tx.jobs.fetch(job_id)
        assert transitions.plan(tx, job, CHAT_MODEL, shards[1:], tx.now(), rows_estimated=1) is not None
    shown = http.get(f"/v1/jobs/{job_id}").json()
    assert shown["planned_at"] >= shown["started_at"]
    assert shown["rows_estimated"] == 10
