"""A running batch's output is read as it grows: by bytes or lines, without gap or change; and its events."""

import json
from collections.abc import Sequence

import httpx
import openai
import pytest
from openai.types import Batch

from api.services.services import AppSettings
from nightshift.bulk.results.row_results import RowResult
from nightshift.bulk.results.segments import encode_segment
from nightshift.jobs import BulkClaim, Counts, JobState, NewShard, Segment, Usage
from nightshift.jobs.ids import job_id_of_batch
from nightshift.lifecycle import transitions
from nightshift.objectstore import open_store
from nightshift.store import Store
from tests.helpers.fakes import a_row_result, a_shard_head
from tests.integration.api.conftest import batch_lines
from tests.integration.api.openai.test_batches import create, job_of

MODEL = "org/parrot"


def result(row: int, custom_id: str) -> RowResult:
    status_code = 400 if custom_id.startswith("bad") else 200
    return a_row_result(row, custom_id, status_code, body_text=json.dumps({"text": "größer " * row}))


class Running:
    """A batch whose rows a test answers."""

    def __init__(self, client: openai.OpenAI, store: Store, settings: AppSettings) -> None:
        self.store = store
        self.batch = create(client)
        self._objects = open_store(settings.data.resolved_storage_url)
        with store.transaction() as tx:
            now = tx.now()
            shard = NewShard(shard_no=0, uri=self.batch.input_file_id, format="jsonl", start=0, end=10)
            assert transitions.plan(tx, job_of(tx, self.batch), MODEL, [shard], now, rows_total=9)
            claim = tx.claims.bulk("worker_a", [MODEL], now, 60)
        assert claim is not None
        self._claim: BulkClaim = claim
        self._rows = self._segments = 0

    def answer(self, *custom_ids: str) -> None:
        """Lists a segment."""
        results = [result(self._rows + number, name) for number, name in enumerate(custom_ids)]
        encoded = encode_segment(a_shard_head(), results, is_measured=True)
        stored = self._objects.put(f"segments/x/{self._segments}", encoded.data)
        segment = Segment(
            key=stored.key,
            term=self._claim.lease.term,
            seq=self._segments,
            succeeded=sum(result.succeeded for result in results),
            failed=sum(not result.succeeded for result in results),
            usage=Usage(),
            size_bytes=stored.size_bytes,
            sha256=stored.sha256 or "",
            output_bytes=encoded.output_bytes,
        )
        with self.store.transaction() as tx:
            assert transitions.commit_segment(tx, self._claim.lease, segment, tx.now(), rows_total=None)
        self._rows += len(custom_ids)
        self._segments += 1

    def end(self, succeeded: int, failed: int = 0) -> None:
        counts = Counts(succeeded + failed, succeeded, failed)
        with self.store.transaction() as tx:
            now = tx.now()
            assert tx.jobs.mark_finalizing(job_of(tx, self.batch).id, now)
            assert transitions.finish(
                tx, job_of(tx, self.batch), JobState.SUCCEEDED, now, counts=counts, output_file_id="file-out"
            )


@pytest.fixture
def running(client: openai.OpenAI, store: Store, settings: AppSettings) -> Running:
    return Running(client, store, settings)


def extensions(batch: Batch) -> dict[str, object]:
    assert batch.model_extra is not None
    extras: dict[str, object] = batch.model_extra["nightshift"]
    return extras


@pytest.fixture
def path(client: openai.OpenAI, running: Running) -> str:
    file_id = extensions(client.batches.retrieve(running.batch.id))["partial_output_file_id"]
    return f"/v1/files/{file_id}/content"


def names(content: bytes | str) -> list[str]:
    return [json.loads(line)["custom_id"] for line in content.splitlines()]


def test_the_official_client_reads_what_is_done_so_far(client, running):
    running.answer("c", "bad", "a")
    shown = client.batches.retrieve(running.batch.id)
    file_id = str(extensions(shown)["partial_output_file_id"])

    content = client.files.content(file_id)

    assert shown.output_file_id is None
    assert names(content.content) == ["c", "a"]
    assert content.response.headers["x-nightshift-incomplete"] == "true"
    described = client.files.retrieve(file_id)
    assert (described.bytes, described.purpose, described.status) == (
        len(content.content),
        "batch_output",
        "uploaded",
    )
    assert file_id not in [file.id for file in client.files.list()]


def test_a_batch_whose_rows_do_not_run_has_no_partial_output(client, running):
    assert extensions(create(client))["partial_output_file_id"] is None
    running.answer("a")
    running.end(1)
    assert extensions(client.batches.retrieve(running.batch.id))["partial_output_file_id"] is None


def test_a_reader_that_goes_on_where_it_was_gets_every_byte_once(http, running, path):
    read = b""
    for step in (("a", "b"), ("bad1", "bad2"), ("c",), ("d", "bad3", "e")):
        running.answer(*step)
        for _ in range(2):
            answer = http.get(path, headers={"range": f"bytes={len(read)}-{len(read) + 149}"})
            if answer.status_code == 206:
                read += answer.content
            else:
                assert answer.headers["content-range"] == f"bytes */{len(read)}"
                assert answer.headers["x-nightshift-incomplete"] == "true"
    running.end(5, 3)
    rest = http.get(path, headers={"range": f"bytes={len(read)}-"})

    assert rest.headers["content-range"].startswith(f"bytes {len(read)}-")
    assert "x-nightshift-incomplete" not in rest.headers
    whole = http.get(path)
    assert read + rest.content == whole.content
    assert names(whole.content) == ["a", "b", "c", "d", "e"]
    assert int(whole.headers["content-length"]) == len(whole.content)


def test_lines_can_be_read_after_a_line(http, running, path):
    running.answer("a", "bad", "b")
    running.answer("bad2")
    running.answer("c", "d")

    read_after = {line: names(http.get(path, params={"after_line": line}).content) for line in range(6)}

    assert read_after == {0: ["a", "b", "c", "d"], 1: ["b", "c", "d"], 2: ["c", "d"], 3: ["d"], 4: [], 5: []}


def test_a_place_that_makes_no_sense_is_refused_by_name(client, http, running, path):
    running.answer("a")
    of_a_file = f"/v1/files/{running.batch.input_file_id}/content"

    both = http.get(path, params={"after_line": 1}, headers={"range": "bytes=0-"})
    negative = http.get(path, params={"after_line": -1})
    another = http.get(of_a_file, params={"after_line": 1})

    assert [answer.status_code for answer in (both, negative, another)] == [400, 400, 400]
    assert {answer.json()["error"]["param"] for answer in (both, negative, another)} == {"after_line"}


def test_results_that_are_kept_no_longer_are_not_an_empty_file(http, running, path):
    running.answer("a")
    running.end(1)
    with running.store.database.write() as connection:
        connection.exec_driver_sql("UPDATE job SET results_deleted_at = 1")

    answer = http.get(path)

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "results_deleted")
    assert "The whole output is file-out." in answer.json()["error"]["message"]


def test_another_tenants_partial_output_and_events_are_not_found(client_of, running, path, base_url):
    running.answer("a")
    other = client_of("other")
    headers = {"authorization": f"Bearer {other.api_key}"}

    for route in (path, path.removesuffix("/content"), f"/v1/batches/{running.batch.id}/events"):
        answer = httpx.get(base_url + route, headers=headers, trust_env=False)
        assert answer.status_code == 404
        assert answer.json()["error"]["param"] == "id"


def events_of(http: httpx.Client, path: str, after: str | None = None) -> Sequence[str]:
    answer = http.get(path, headers={} if after is None else {"last-event-id": after})
    assert answer.status_code == 200, answer.text
    return answer.text.split("\n\n")


def test_a_batchs_events_are_its_jobs_and_resume_alike(http, running):
    running.answer("a")
    running.end(1)
    of_batch = f"/v1/batches/{running.batch.id}/events"
    of_job = f"/v1/jobs/{job_id_of_batch(running.batch.id)}/events"

    assert events_of(http, of_batch) == events_of(http, of_job)
    assert events_of(http, of_batch, "1-0") == events_of(http, of_job, "1-0")
    assert len(events_of(http, of_batch, "1-0")) < len(events_of(http, of_batch))
    refused = http.get(of_batch, headers={"last-event-id": "1000-0"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Last-Event-ID")


@pytest.mark.parametrize(
    ("order", "param"), [("input", None), (None, None), ("output", "nightshift.output_order")]
)
def test_a_batch_may_ask_for_its_output_in_the_inputs_order(client, order, param):
    file = client.files.create(file=batch_lines(1), purpose="batch")
    body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    extra = {"nightshift": {"output_order": order}}

    if param is None:
        assert client.batches.create(**body, extra_body=extra).status == "validating"
    else:
        with pytest.raises(openai.BadRequestError) as refused:
            client.batches.create(**body, extra_body=extra)
        assert refused.value.param == param
