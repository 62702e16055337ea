"""The jobs routes: results, row by row, of jobs that have not ended too."""

import json

import httpx
import pytest

from api.jobs import results
from api.services.services import AppSettings
from nightshift.client import Client
from nightshift.jobs import Counts, InputError
from nightshift.lifecycle import transitions
from nightshift.objectstore import open_store
from nightshift.store import Store
from tests.helpers.fakes import a_row_result, a_shard
from tests.integration.api.asking import end_job, online, store_segment
from tests.integration.api.fake_worker import CHAT_MODEL

NDJSON = {"accept": "application/x-ndjson"}


@pytest.fixture
def job_id(http: httpx.Client, bulk: dict[str, object], store: Store, settings: AppSettings) -> str:
    """A bulk job with two committed segments, one of them its only one yet."""
    job_id: str = http.post("/v1/jobs", json=bulk).json()["id"]
    objects = open_store(settings.data.resolved_storage_url)
    with store.transaction() as tx:
        transitions.plan(tx, tx.jobs.fetch(job_id), CHAT_MODEL, [a_shard()], tx.now())
        claim = tx.claims.bulk("worker_a", [CHAT_MODEL], tx.now(), 60)
        assert claim is not None
        for seq, names in enumerate((("a", "b", "bad"), ("c", "d"))):
            results = [
                a_row_result(
                    row, name, 400 if name == "bad" else 200, kept=f'{{"doc":"{name}"}}' if seq else None
                )
                for row, name in enumerate(names)
            ]
            store_segment(tx, objects, claim.lease, results, seq)
    return job_id


def test_rows_are_read_page_by_page_without_gap_or_duplicate(http, job_id):
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


def test_failed_rows_are_read_alone(http, job_id):
    page = http.get(f"/v1/jobs/{job_id}/results", params={"outcome": "errored"}).json()
    [failed] = page["data"]
    after = http.get(f"/v1/jobs/{job_id}/results", params={"outcome": "errored", "after": failed["id"]})
    assert (failed["custom_id"], page["has_more"]) == ("bad", False)
    assert after.json()["data"] == []
    assert http.get(f"/v1/jobs/{job_id}/results", params={"outcome": "good"}).status_code == 400


def test_rows_say_how_they_ended_and_have_the_columns_that_are_kept(http, job_id):
    rows = http.get(f"/v1/jobs/{job_id}/results").json()["data"]

    ok = "succeeded"
    assert [row["outcome"] for row in rows] == [ok, ok, "errored", ok, ok]
    assert [row.get("columns") for row in rows] == [None, None, None, {"doc": "c"}, {"doc": "d"}]
    assert not any("columns" in row for row in rows[:3])


@pytest.mark.parametrize("piece_bytes", [1, 300, 10_000])
def test_all_rows_are_streamed_as_lines(http, job_id, monkeypatch, piece_bytes):
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


def test_a_stream_goes_on_from_page_to_page_of_segments(http, job_id, monkeypatch):
    monkeypatch.setattr(results, "SEGMENTS_READ", 1)

    assert len(http.get(f"/v1/jobs/{job_id}/results", headers=NDJSON).text.splitlines()) == 5


@pytest.mark.parametrize("form", [{}, NDJSON], ids=["list", "stream"])
def test_anothers_job_and_an_unknown_row_are_not_found(http, job_id, stranger, form):
    assert http.get(f"/v1/jobs/{job_id}/results", headers=form | stranger).status_code == 404
    for after in ("row_999_0", "17", "batch_req_x"):
        unknown = http.get(f"/v1/jobs/{job_id}/results", params={"after": after}, headers=form)
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "after")


def test_the_client_streams_them(base_url, make_key, job_id):
    with Client(base_url, make_key()) as client:
        assert [row["custom_id"] for row in client.results(job_id)] == ["a", "b", "bad", "c", "d"]


def test_the_row_of_a_request_that_was_given_up_says_why(http, worker, store):
    worker.behave = lambda worker, claim: None  # it is never answered
    job_id = http.post("/v1/jobs", json=online()).json()["id"]
    why = InputError("interrupted", "The worker was lost.")
    end_job(store, job_id, counts=Counts(1, 0, 1), errors=(why,))

    (row,) = http.get(f"/v1/jobs/{job_id}/results").json()["data"]

    assert (row["outcome"], row["response"]) == ("errored", None)
    assert row["error"] == {"code": "interrupted", "message": "The worker was lost."}
