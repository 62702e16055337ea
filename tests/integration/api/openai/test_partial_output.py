"""A running batch's output is read as it grows: by bytes or lines, without gap or change; and its events."""

import json
from collections.abc import Sequence

import httpx
import openai
import pytest
from openai.types import Batch

from api.services.services import AppSettings
from nightshift.jobs import Counts, JobState
from nightshift.jobs.ids import job_id_of_batch
from nightshift.lifecycle import transitions
from nightshift.objectstore import open_store
from nightshift.store import Store
from tests.helpers.fakes import a_row_result, a_shard
from tests.integration.api.asking import end_job, store_segment
from tests.integration.api.fake_worker import CHAT_MODEL
from tests.integration.api.openai.test_batches import create, job_of, move_to


class Running:
    """A batch whose rows a test answers."""

    def __init__(self, client: openai.OpenAI, store: Store, settings: AppSettings) -> None:
        self.store = store
        self.batch = create(client)
        self._objects = open_store(settings.data.resolved_storage_url)
        with store.transaction() as tx:
            assert transitions.plan(
                tx, job_of(tx, self.batch), CHAT_MODEL, [a_shard()], tx.now(), rows_total=9
            )
            claim = tx.claims.bulk("worker_a", [CHAT_MODEL], tx.now(), 60)
        assert claim is not None
        self._lease = claim.lease
        self._rows = self._segments = 0

    def answer(self, *custom_ids: str) -> None:
        """Lists a segment."""
        results = [
            a_row_result(
                row,
                custom_id,
                400 if custom_id.startswith("bad") else 200,
                body_text=json.dumps({"text": "größer " * row}),
            )
            for row, custom_id in enumerate(custom_ids, self._rows)
        ]
        with self.store.transaction() as tx:
            store_segment(tx, self._objects, self._lease, results, self._segments)
        self._rows += len(custom_ids)
        self._segments += 1

    def end(self, succeeded: int, failed: int = 0) -> None:
        move_to(self.store, self.batch, JobState.FINALIZING)
        with self.store.snapshot() as tx:
            job_id = job_of(tx, self.batch).id
        counts = Counts(succeeded + failed, succeeded, failed)
        end_job(self.store, job_id, JobState.SUCCEEDED, counts=counts, output_file_id="file-out")


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
    assert (described.bytes, described.status) == (len(content.content), "uploaded")
    assert described.purpose == "batch_output"
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


def test_another_tenants_partial_output_and_events_are_not_found(http, stranger, running, path):
    running.answer("a")

    for route in (path, path.removesuffix("/content"), f"/v1/batches/{running.batch.id}/events"):
        answer = http.get(route, headers=stranger)
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
    extra = {"nightshift": {"output_order": order}}

    if param is None:
        assert create(client, extra_body=extra).status == "validating"
    else:
        with pytest.raises(openai.BadRequestError) as refused:
            create(client, extra_body=extra)
        assert refused.value.param == param
