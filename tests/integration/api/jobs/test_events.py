"""GET /v1/jobs/{id}/events: everything once, in order, and after a break exactly from there."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Event

import httpx
import pytest

from nightshift.jobs import Counts, OnlineClaim
from nightshift.lifecycle import transitions
from tests.helpers.fakes import a_segment, a_shard
from tests.integration.api.asking import end_job, online
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
    return str(http.post("/v1/jobs", json=online(TEXT)).json()["id"])


@pytest.fixture
def bulk_job_id(http: httpx.Client, bulk: dict[str, object]) -> str:
    return str(http.post("/v1/jobs", json=bulk).json()["id"])


def texts(seen: Sequence[Seen]) -> str:
    """The text of an answer, from its pieces."""
    return "".join(str(event.data["text"]) for event in seen if event.type == "job.delta")


def test_an_online_job_tells_its_states_and_its_tokens(http, worker):
    seen = follow(http, submit_online(http))

    types = [event.type for event in seen]
    assert types[0] == "job.queued"
    assert types[-1] == "job.succeeded"
    assert texts(seen) == TEXT
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

    assert texts(seen) == TEXT
    assert [event.type for event in seen].count("job.queued") == 1
    assert seen[-1].type == "job.succeeded"


def test_a_bulk_job_is_followed_live_to_its_end(http, bulk_job_id, store):
    with http.stream("GET", f"/v1/jobs/{bulk_job_id}/events") as answer:
        coming = events(answer.iter_lines())
        first = next(coming)
        end_job(store, bulk_job_id)
        rest = list(coming)

    assert first.type == "job.queued"
    assert [event.type for event in rest] == ["job.failed"]


def test_of_several_progress_events_only_the_newest_is_sent(http, bulk_job_id, store):
    with store.transaction() as tx:
        now = tx.now()
        transitions.plan(tx, tx.jobs.fetch(bulk_job_id), CHAT_MODEL, [a_shard()], now)
        claim = tx.claims.bulk("worker_a", [CHAT_MODEL], now, 60)
        for seq in range(700):  # more than is read at a time
            segment = a_segment(claim.lease, seq, rows=1)
            transitions.commit_segment(tx, claim.lease, segment, now, rows_total=None)
    end_job(store, bulk_job_id, counts=Counts(700, 700, 0))

    seen = follow(http, bulk_job_id)

    progress = [event for event in seen if event.type == "job.progress"]
    assert 1 <= len(progress) <= 2
    assert progress[-1].data["counts"] == {"total": None, "succeeded": 700, "failed": 0}
    assert seen[-1].type == "job.failed"


@pytest.mark.parametrize("after", ["7", "x-y", "-1-0", "1-1-1", "1000-0", "3000000000-0"])
def test_an_id_that_was_never_sent_is_refused(http, bulk_job_id, after):
    answer = http.get(f"/v1/jobs/{bulk_job_id}/events", headers={"last-event-id": after})

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "Last-Event-ID"
