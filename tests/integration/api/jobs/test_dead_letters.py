"""/v1/dead_letters: rows that crash workers, listed, replayed and discarded by their tenant."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.jobs import dead_letters
from api.services.services import AppSettings
from nightshift.fleet.workers import ExitCause
from nightshift.jobs.dead_letters import DeadLetter
from nightshift.jobs.ids import new_id
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle.replay import replay
from nightshift.lifecycle.transitions import Submitted, plan
from nightshift.objectstore.directory import DirectoryStore
from nightshift.process.settings import ApiSettings, SubmissionSettings
from nightshift.store import Store, Transaction
from nightshift.store.shards.dead_letters import DeadLetters
from tests.helpers.fakes import a_shard, a_spec, submit
from tests.integration.api.fake_worker import CHAT_MODEL
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
        return add_dead_letter(tx, job.id, planned.id, row=1)


def add_dead_letter(tx: Transaction, job_id: str, shard_id: str, row: int) -> DeadLetter:
    dead = DeadLetter(
        id=new_id("dlq"),
        tenant_id="default",
        job_id=job_id,
        shard_id=shard_id,
        row=row,
        custom_id="r1",
        cause=ExitCause.OUT_OF_MEMORY,
        crashes=3,
        worker_id="wrk_1",
        died_at=tx.now(),
    )
    tx.dead_letters.insert(dead)
    return dead


def ended(http: httpx.Client, job_id: str) -> dict[str, Any]:
    """The job, once it has ended: its events go on until then."""
    http.get(f"/v1/jobs/{job_id}/events").raise_for_status()
    return dict(http.get(f"/v1/jobs/{job_id}").json())


def test_a_dead_letter_names_its_row_its_job_and_the_cause(http, letter):
    (listed,) = http.get("/v1/dead_letters", params={"status": "dead", "job_id": letter.job_id}).json()[
        "data"
    ]

    assert listed == http.get(f"/v1/dead_letters/{letter.id}").json()
    assert listed | {"died_at": 0} == {
        "id": letter.id,
        "object": "dead_letter",
        "status": "dead",
        "job_id": letter.job_id,
        "custom_id": "r1",
        "cause": "out_of_memory",
        "crashes": 3,
        "worker_id": "wrk_1",
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


class TestWithShortBodiesAndLongRows:
    @pytest.fixture
    def settings(self, settings: AppSettings) -> AppSettings:
        """A body may have less than a row of the letter's job, and a row more."""
        return replace(
            settings, api=ApiSettings(body_bytes_max=100), submission=SubmissionSettings(line_bytes_max=1000)
        )

    def test_a_row_longer_than_a_body_may_be_is_replayed(self, http, worker, letter):
        replayed = http.post(f"/v1/dead_letters/{letter.id}/replay").json()

        assert ended(http, replayed["replay_job_id"])["status"] == "succeeded"


def test_an_online_request_is_replayed_from_the_database(http, worker, store):
    body = {"model": CHAT_MODEL, "messages": [{"role": "user", "content": "once more"}]}
    accepted = http.post("/v1/jobs", json={"endpoint": "chat", "body": body}).json()
    with store.transaction() as tx:
        [shard] = tx.shards.of_job(accepted["id"], limit=1)
        dead = add_dead_letter(tx, accepted["id"], shard.id, row=0)

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


def test_the_slower_of_two_replays_is_told_as_which_job_the_row_runs(http, worker, letter, monkeypatch):
    def replay_twice(*args: Any) -> Submitted:
        replay(*args)
        return replay(*args)

    monkeypatch.setattr(dead_letters, "replay", replay_twice)

    refused = http.post(f"/v1/dead_letters/{letter.id}/replay")

    (job_id,) = {job["id"] for job in http.get("/v1/jobs").json()["data"]} - {letter.job_id}
    assert refused.status_code == 409
    assert f"is replayed already, as {job_id}" in refused.json()["error"]["message"]


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


def test_another_tenants_dead_letters_are_not_found(http, letter, make_key):
    other_tenant = {"authorization": f"Bearer {make_key('other')}"}
    path = f"/v1/dead_letters/{letter.id}"

    assert http.get("/v1/dead_letters", headers=other_tenant).json()["data"] == []
    assert http.get("/v1/dead_letters", headers=other_tenant, params={"after": letter.id}).status_code == 404
    for method, address in [("GET", path), ("POST", f"{path}/replay"), ("POST", f"{path}/discard")]:
        assert http.request(method, address, headers=other_tenant).status_code == 404
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
