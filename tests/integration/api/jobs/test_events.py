"""GET /v1/jobs/{id}/events: everything once, in order, and after a break exactly from there."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import httpx
import pytest

from nightshift.jobs import Counts, JobState, NewShard, OnlineClaim, Segment, Usage
from nightshift.lifecycle import transitions
from tests.integration.api.conftest import TIMEOUT_S
from tests.integration.api.fake_worker import CHAT_MODEL, FakeWorker, prompt_of, text_answer

TEXT = "one two three four five"


@dataclass(frozen=True)
class Seen:
    """One event as a client reads it."""

    id: str
    type: str
    data: dict[str, object]


def events(lines: Iterator[str]) -> Iterator[Seen]:
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield Seen(fields["id"], fields["event"], json.loads(fields["data"]))
            fields = {}


def follow(http: httpx.Client, job_id: str, after: str | None = None) -> list[Seen]:
    """Every event until the server ends the stream."""
    headers = {} if after is None else {"last-event-id": after}
    answer = http.get(f"/v1/jobs/{job_id}/events", headers=headers)
    assert answer.status_code == 200, answer.text
    return list(events(iter(answer.text.split("\n"))))


def submit_online(http: httpx.Client) -> str:
    body = {"model": CHAT_MODEL, "messages": [{"role": "user", "content": TEXT}]}
    return str(http.post("/v1/jobs", json={"endpoint": "chat", "body": body}).json()["id"])


@pytest.fixture
def bulk_job_id(http: httpx.Client, tmp_path: Path) -> str:
    folder = (tmp_path / "allowed").as_uri()
    body = {"endpoint": "chat", "input": f"{folder}/in.jsonl", "output": f"{folder}/out/"}
    return str(http.post("/v1/jobs", json=body).json()["id"])


def test_an_online_job_tells_its_states_and_its_tokens(http, worker):
    seen = follow(http, submit_online(http))

    types = [event.type for event in seen]
    assert types[0] == "job.queued"
    assert types[-1] == "job.succeeded"
    assert "".join(str(event.data["text"]) for event in seen if event.type == "job.delta") == TEXT
    assert len({event.id for event in seen}) == len(seen)
    assert seen[-1].data["counts"] == {"total": 1, "succeeded": 1, "failed": 0}


def test_a_stream_resumed_at_any_event_goes_on_exactly_there(http, worker):
    job_id = submit_online(http)
    whole = follow(http, job_id)

    for position, event in enumerate(whole):
        assert follow(http, job_id, after=event.id) == whole[position + 1 :], event


def test_a_reader_that_comes_back_while_tokens_flow_misses_none_and_gets_none_twice(http, worker):
    half_read = Event()

    def pause(worker: FakeWorker, claim: OnlineClaim) -> None:
        worker.stream(claim, "one two", 0)
        assert half_read.wait(TIMEOUT_S)
        worker.stream(claim, TEXT[len("one two") :], len("one two"))
        worker.record(claim, text_answer(claim, prompt_of(claim)))

    worker.behave = pause
    job_id = submit_online(http)
    seen: list[Seen] = []
    with http.stream("GET", f"/v1/jobs/{job_id}/events") as answer:
        for event in events(answer.iter_lines()):
            seen.append(event)
            if event.type == "job.delta":
                break  # and hang up
    half_read.set()
    seen += follow(http, job_id, after=seen[-1].id)

    assert "".join(str(event.data["text"]) for event in seen if event.type == "job.delta") == TEXT
    assert [event.type for event in seen].count("job.queued") == 1
    assert seen[-1].type == "job.succeeded"


def test_a_bulk_job_is_followed_live_to_its_end(http, bulk_job_id, store):
    with http.stream("GET", f"/v1/jobs/{bulk_job_id}/events") as answer:
        coming = events(answer.iter_lines())
        first = next(coming)
        with store.transaction() as tx:
            job, now = tx.jobs.fetch(bulk_job_id), tx.now()
            transitions.finish(tx, job, JobState.FAILED, now, counts=Counts(0))
        rest = list(coming)

    assert first.type == "job.queued"
    assert [event.type for event in rest] == ["job.failed"]


def test_of_several_progress_events_only_the_newest_is_sent(http, bulk_job_id, store):
    with store.transaction() as tx:
        now = tx.now()
        shard = NewShard(shard_no=0, uri="file:///x", format="jsonl", start=0, end=10)
        transitions.plan(tx, tx.jobs.fetch(bulk_job_id), CHAT_MODEL, [shard], now)
        claim = tx.claims.bulk("worker_a", [CHAT_MODEL], now, 60)
        for seq in range(700):  # more than is read at a time
            segment = Segment(
                key=f"k{seq}",
                term=claim.lease.term,
                seq=seq,
                succeeded=1,
                failed=0,
                usage=Usage(),
                size_bytes=1,
                sha256="0" * 64,
            )
            transitions.commit_segment(tx, claim.lease, segment, now, rows_total=None)
        transitions.finish(tx, tx.jobs.fetch(bulk_job_id), JobState.FAILED, now, counts=Counts(700, 700, 0))

    seen = follow(http, bulk_job_id)

    progress = [event for event in seen if event.type == "job.progress"]
    assert 1 <= len(progress) <= 2
    assert progress[-1].data["counts"] == {"total": None, "succeeded": 700, "failed": 0}
    assert seen[-1].type == "job.failed"


def test_a_reader_that_has_the_last_event_gets_no_more(http, worker):
    job_id = submit_online(http)
    last = follow(http, job_id)[-1]

    assert follow(http, job_id, after=last.id) == []


@pytest.mark.parametrize("after", ["7", "x-y", "-1-0", "1-1-1", "1000-0", "3000000000-0"])
def test_an_id_that_was_never_sent_is_refused(http, bulk_job_id, after):
    answer = http.get(f"/v1/jobs/{bulk_job_id}/events", headers={"last-event-id": after})

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "Last-Event-ID"
