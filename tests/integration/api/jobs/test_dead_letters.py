"""/v1/dead_letters: rows that crash workers, listed, replayed and discarded by their tenant."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.app import create_app
from nightshift.fleet.workers import ExitCause
from nightshift.jobs import Job
from nightshift.jobs.dead_letters import DeadLetter
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle.transitions import plan
from nightshift.objectstore.directory import DirectoryStore
from nightshift.process.settings import ApiSettings, SubmissionSettings
from nightshift.store import Store, Transaction
from nightshift.store.shards.dead_letters import DeadLetters
from tests.helpers.fakes import a_dead_letter, a_shard, a_spec, submit
from tests.integration.api.asking import online
from tests.integration.api.conftest import plain_http
from tests.integration.api.fake_worker import CHAT_MODEL
from tests.integration.api.serving import serving
from tests.integration.scheduler.scheduling import a_line, jsonl


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where jobs may have their input."""
    allowed = tmp_path / "allowed"
    allowed.mkdir(exist_ok=True)
    return allowed


@pytest.fixture
def letter(store: Store, folder: Path) -> DeadLetter:
    """The second row of a bulk job's one shard."""
    lines = jsonl(a_line(f"r{number}", f"text {number}", model=CHAT_MODEL) for number in range(3))
    (folder / "in.jsonl").write_bytes(lines)
    uri = (folder / "in.jsonl").as_uri()
    stored = DirectoryStore(folder).head("in.jsonl")
    assert stored is not None
    spec = a_spec(endpoint="/v1/chat/completions", input=uri, max_runtime_s=7200, metadata={"who": "me"})
    job = submit(store, spec=spec, model=CHAT_MODEL, priority=PriorityClass.BACKGROUND)
    with store.transaction() as tx:
        shard = a_shard(uri=uri, format="jsonl", start=0, end=len(lines), source_etag=stored.etag)
        plan(tx, job, CHAT_MODEL, [shard], tx.now(), rows_total=3)
        [planned] = tx.shards.of_job(job.id, limit=1)
        return add_dead_letter(tx, job, planned.id, row=1)


def add_dead_letter(tx: Transaction, job: Job, shard_id: str, row: int) -> DeadLetter:
    dead = a_dead_letter(job, shard_id, row, custom_id="r1", cause=ExitCause.OUT_OF_MEMORY, died_at=tx.now())
    tx.dead_letters.insert(dead)
    return dead


def ended(http: httpx.Client, job_id: str) -> dict[str, Any]:
    """The job, once it has ended: its events go on until then."""
    http.get(f"/v1/jobs/{job_id}/events").raise_for_status()
    return dict(http.get(f"/v1/jobs/{job_id}").json())


def test_a_dead_letter_names_its_row_its_job_and_the_cause(http, letter):
    filters = {"status": "dead", "job_id": letter.job_id}
    (listed,) = http.get("/v1/dead_letters", params=filters).json()["data"]

    assert listed == http.get(f"/v1/dead_letters/{letter.id}").json()
    assert listed | {"died_at": 0} == {
        "id": letter.id,
        "object": "dead_letter",
        "status": "dead",
        "job_id": letter.job_id,
        "custom_id": "r1",
        "cause": "out_of_memory",
        "crashes": 3,
        "worker_id": letter.worker_id,
        "died_at": 0,
        "decided_at": None,
        "replay_job_id": None,
    }
    assert http.get("/v1/dead_letters", params={"job_id": "job_other"}).json()["data"] == []


def test_a_row_is_replayed_as_an_online_job_that_asks_for_what_its_job_did(http, worker, letter):
    replayed = http.post(f"/v1/dead_letters/{letter.id}/replay").json()
    again = ended(http, replayed["replay_job_id"])

    assert (replayed["status"], again["status"]) == ("replayed", "succeeded")
    assert (again["kind"], again["priority"], again["max_runtime"]) == ("online", "background", "2h")
    assert again["metadata"] == {"who": "me"}
    (line,) = http.get(f"/v1/jobs/{again['id']}/results").json()["data"]
    assert line["response"]["body"]["choices"][0]["message"]["content"] == "text 1"


def test_a_row_longer_than_a_body_may_be_is_replayed(settings, make_key, worker, letter):
    limits = {"api": ApiSettings(body_bytes_max=100), "submission": SubmissionSettings(line_bytes_max=1000)}
    with serving(create_app(replace(settings, **limits))) as url, plain_http(url, make_key()) as http:
        replayed = http.post(f"/v1/dead_letters/{letter.id}/replay").json()

        assert ended(http, replayed["replay_job_id"])["status"] == "succeeded"


def test_an_online_request_is_replayed_from_the_database(http, worker, store):
    accepted = http.post("/v1/jobs", json=online()).json()
    with store.transaction() as tx:
        [shard] = tx.shards.of_job(accepted["id"], limit=1)
        dead = add_dead_letter(tx, tx.jobs.fetch(accepted["id"]), shard.id, row=0)

    replayed = http.post(f"/v1/dead_letters/{dead.id}/replay").json()

    again = ended(http, replayed["replay_job_id"])
    assert (again["status"], again["id"] != accepted["id"]) == ("succeeded", True)


@pytest.mark.parametrize("first", ["replay", "discard"])
@pytest.mark.parametrize("second", ["replay", "discard"])
def test_a_second_decision_is_refused_and_changes_nothing(http, worker, letter, first, second):
    decided = http.post(f"/v1/dead_letters/{letter.id}/{first}").json()
    jobs = http.get("/v1/jobs").json()["data"]

    refused = http.post(f"/v1/dead_letters/{letter.id}/{second}")

    assert refused.status_code == 409
    assert f"is {decided['status']} already" in refused.json()["error"]["message"]
    assert http.get(f"/v1/dead_letters/{letter.id}").json() == decided
    assert len(http.get("/v1/jobs").json()["data"]) == len(jobs)


def test_a_discard_that_comes_too_late_is_told_what_was_decided(http, letter, monkeypatch):
    def replayed_first(rows: DeadLetters, tenant_id: str, id: str, now: datetime) -> bool:
        assert rows.replay(tenant_id, id, "job_of_theirs", now)
        return False

    monkeypatch.setattr(DeadLetters, "discard", replayed_first)

    refused = http.post(f"/v1/dead_letters/{letter.id}/discard")

    assert refused.status_code == 409
    assert f"{letter.id} is replayed already, as job_of_theirs" in refused.json()["error"]["message"]


@pytest.mark.parametrize("what", ["deleted", "replaced"])
def test_a_row_whose_input_has_changed_is_not_replayed(http, worker, letter, folder, what):
    source = folder / "in.jsonl"
    if what == "deleted":
        source.unlink()
    else:
        source.write_bytes(jsonl(a_line(f"r{number}", "another", model=CHAT_MODEL) for number in range(3)))

    refused = http.post(f"/v1/dead_letters/{letter.id}/replay")

    assert (refused.status_code, refused.json()["error"]["type"]) == (409, "invalid_request_error")
    assert http.get(f"/v1/dead_letters/{letter.id}").json()["status"] == "dead"


def test_a_replay_that_is_refused_may_be_tried_again(http, store, letter):
    refused = http.post(f"/v1/dead_letters/{letter.id}/replay")

    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    assert http.get(f"/v1/dead_letters/{letter.id}").json()["status"] == "dead"


def test_another_tenants_dead_letters_are_not_found(http, letter, stranger):
    path = f"/v1/dead_letters/{letter.id}"

    assert http.get("/v1/dead_letters", headers=stranger).json()["data"] == []
    assert http.get("/v1/dead_letters", headers=stranger, params={"after": letter.id}).status_code == 404
    for method, address in [("GET", path), ("POST", f"{path}/replay"), ("POST", f"{path}/discard")]:
        assert http.request(method, address, headers=stranger).status_code == 404
    assert http.get(path).json()["status"] == "dead"


def test_metrics_count_dead_rows_and_lost_workers_by_cause(base_url, store):
    with store.transaction() as tx:
        tx.counters.add("rows_dead", 2)
        tx.counters.add("crashes.out_of_memory", 6)

    text = httpx.get(f"{base_url}/metrics", trust_env=False).text

    assert "nightshift_rows_dead_total 2.0" in text
    assert 'nightshift_worker_crashes_total{cause="out_of_memory"} 6.0' in text
    assert 'nightshift_worker_crashes_total{cause="killed"} 0.0' in text
    assert 'cause="drained"' not in text
