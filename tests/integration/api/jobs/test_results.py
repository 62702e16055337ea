"""The jobs routes: results, row by row, of jobs that have not ended too."""

import json
from dataclasses import replace

import httpx
import pytest

from api.jobs import results
from api.services.services import AppSettings
from nightshift.bulk.results.row_results import RowResult
from nightshift.bulk.results.segments import encode_segment
from nightshift.client import Client
from nightshift.jobs import Counts, InputError, JobState, NewShard, Segment, Usage
from nightshift.lifecycle import transitions
from nightshift.objectstore import open_store
from nightshift.store import Store
from tests.helpers.fakes import a_row_result, a_shard_head
from tests.integration.api.asking import online
from tests.integration.api.fake_worker import CHAT_MODEL

NDJSON = {"accept": "application/x-ndjson"}


class TestResults:
    """A bulk job with two committed segments, one of them its only one yet."""

    @pytest.fixture
    def job_id(self, http: httpx.Client, bulk: dict[str, object], store: Store, settings: AppSettings) -> str:
        job_id: str = http.post("/v1/jobs", json=bulk).json()["id"]
        objects = open_store(settings.data.resolved_storage_url)
        with store.transaction() as tx:
            now = tx.now()
            shard = NewShard(shard_no=0, uri="file:///x", format="jsonl", start=0, end=10)
            transitions.plan(tx, tx.jobs.fetch(job_id), CHAT_MODEL, [shard], now)
            claim = tx.claims.bulk("worker_a", [CHAT_MODEL], now, 60)
            assert claim is not None
            for seq, names in enumerate((("a", "b", "bad"), ("c", "d"))):
                kept = (f'{{"doc":"{name}"}}' if seq else None for name in names)
                rows = zip((result(row, name) for row, name in enumerate(names)), kept, strict=True)
                results = [replace(row, kept=columns) for row, columns in rows]
                content = encode_segment(a_shard_head(), results).data
                key = f"segments/{job_id}/{seq}"
                stored = objects.put(key, content)
                segment = Segment(
                    key=key,
                    term=claim.lease.term,
                    seq=seq,
                    succeeded=len(names),
                    failed=0,
                    usage=Usage(),
                    size_bytes=stored.size_bytes,
                    sha256=stored.sha256 or "",
                )
                assert transitions.commit_segment(tx, claim.lease, segment, now, rows_total=None)
        return job_id

    def test_rows_are_read_page_by_page_without_gap_or_duplicate(self, http, job_id):
        for limit in (1, 2, 3, 4, 100):
            names, after = [], None
            while True:
                params = {"limit": limit} | ({"after": after} if after else {})
                answer = http.get(f"/v1/jobs/{job_id}/results", params=params)
                page = answer.json()
                names += [row["custom_id"] for row in page["data"]]
                after = page["last_id"] or after
                assert answer.headers["x-nightshift-incomplete"] == "true"
                if not page["has_more"]:
                    break
            assert names == ["a", "b", "bad", "c", "d"]

    def test_rows_have_the_columns_that_are_kept_and_others_none(self, http, job_id):
        rows = http.get(f"/v1/jobs/{job_id}/results").json()["data"]

        assert ["columns" in row for row in rows] == [False, False, False, True, True]
        assert [row["columns"] for row in rows[3:]] == [{"doc": "c"}, {"doc": "d"}]

    def test_a_failed_row_says_so(self, http, job_id):
        rows = http.get(f"/v1/jobs/{job_id}/results").json()["data"]

        assert [row["outcome"] for row in rows] == [
            "succeeded", "succeeded", "errored", "succeeded", "succeeded"
        ]  # fmt: skip

    @pytest.mark.parametrize("piece_bytes", [1, 300, 10_000])
    def test_all_rows_are_streamed_as_lines(self, http, job_id, monkeypatch, piece_bytes):
        monkeypatch.setattr(results, "PIECE_BYTES", piece_bytes)
        pages = http.get(f"/v1/jobs/{job_id}/results").json()["data"]

        def streamed(**params: object) -> list[object]:
            answer = http.get(f"/v1/jobs/{job_id}/results", params=params, headers=NDJSON)
            assert answer.headers["content-type"].startswith("application/x-ndjson")
            assert answer.headers["x-nightshift-incomplete"] == "true"
            return [json.loads(line) for line in answer.text.split("\n") if line]

        assert streamed() == pages
        assert streamed(after=pages[1]["id"]) == pages[2:]
        assert streamed(after=pages[4]["id"]) == []
        assert streamed(limit=2) == pages[:2]

    def test_a_stream_goes_on_from_page_to_page_of_segments(self, http, job_id, monkeypatch):
        monkeypatch.setattr(results, "SEGMENTS_READ", 1)

        assert len(http.get(f"/v1/jobs/{job_id}/results", headers=NDJSON).text.splitlines()) == 5

    def test_a_stream_of_anothers_job_or_after_an_unknown_row_is_not_found(self, http, job_id, make_key):
        stranger = NDJSON | {"authorization": f"Bearer {make_key('other')}"}

        assert http.get(f"/v1/jobs/{job_id}/results", headers=stranger).status_code == 404
        unknown = http.get(f"/v1/jobs/{job_id}/results", params={"after": "row_999_0"}, headers=NDJSON)
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "after")

    def test_the_client_streams_them(self, base_url, make_key, job_id):
        with Client(base_url, make_key()) as client:
            assert [row["custom_id"] for row in client.results(job_id)] == ["a", "b", "bad", "c", "d"]

    def test_an_unknown_row_is_no_cursor(self, http, job_id):
        for after in ("row_999_0", "17", "batch_req_x"):
            answer = http.get(f"/v1/jobs/{job_id}/results", params={"after": after})
            assert answer.status_code == 404
            assert answer.json()["error"]["param"] == "after"


def test_the_row_of_a_request_that_was_given_up_says_why(http, worker, store):
    worker.behave = lambda worker, claim: None  # it is never answered
    job_id = http.post("/v1/jobs", json=online()).json()["id"]
    why = InputError("interrupted", "The worker was lost.")
    with store.transaction() as tx:
        job = tx.jobs.fetch(job_id)
        assert transitions.finish(tx, job, JobState.FAILED, tx.now(), counts=Counts(1, 0, 1), errors=(why,))

    (row,) = http.get(f"/v1/jobs/{job_id}/results").json()["data"]

    assert (row["outcome"], row["response"]) == ("errored", None)
    assert row["error"] == {"code": "interrupted", "message": "The worker was lost."}


def result(row: int, name: str) -> RowResult:
    return a_row_result(row, name, 400 if name == "bad" else 200)
