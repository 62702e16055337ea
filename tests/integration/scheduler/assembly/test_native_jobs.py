"""A native job's output: a part per shard, a manifest, and a success, in the place it named."""

import io
import json

import pyarrow.parquet as pq

from nightshift.bulk.rows.requests import RowRequest
from nightshift.fleet.models import ModelKind
from nightshift.jobs import JobState, JsonObject, StopReason
from nightshift.jobs.part import part_name
from tests.helpers.fakes import MODEL
from tests.integration.scheduler.assembly.conftest import TEXTS, a_native_job, assembled, ids, planned, stop
from tests.integration.scheduler.scheduling import TEMPLATE, Place, jsonl


def test_a_native_job_ends_with_parts_a_manifest_and_success(place: Place) -> None:
    job = a_native_job(place, [*TEXTS, "bad"])
    place.work_off()
    ended = assembled(place, job)
    [part], [errors] = place.part_names(), place.part_names("errors")
    assert ended.state is JobState.SUCCEEDED
    assert [line["outcome"] for line in place.part_lines()] == ["succeeded"] * 12
    assert [line["outcome"] for line in place.part_lines("errors")] == ["errored"]
    assert (ended.counts.total, ended.counts.succeeded, ended.counts.failed) == (13, 12, 1)

    manifest = json.loads(place.out("_manifest.json"))
    assert [file["name"] for file in manifest["parts"]] == [part]
    assert [file["name"] for file in manifest["errors"]] == [errors]
    assert (manifest["status"], manifest["complete"]) == ("succeeded", True)
    assert manifest["counts"] == {"total": 13, "succeeded": 12, "failed": 1}
    assert [file["rows"] for file in (*manifest["parts"], *manifest["errors"])] == [12, 1]
    assert manifest["parts"][0]["prompt_tokens"] == 12 * 3
    assert manifest["parts"][0]["size_bytes"] == len(place.out(part))
    assert manifest["model"] == {"id": MODEL, "revision": "1", "dtype": None, "dimensions": None}
    assert [read["uri"] for read in manifest["inputs"]["objects"]] == [place.uri("in.jsonl")]
    assert manifest["inputs"]["objects"][0]["etag"]
    assert manifest["settings"]["template"] == TEMPLATE
    assert place.out("_SUCCESS") == b""


def test_a_native_job_without_a_place_of_its_own_has_its_parts_in_ours(place: Place) -> None:
    file = place.upload(jsonl([{"text": "hello"}]))
    job = planned(place, place.native(input=file.id, output=None, template=TEMPLATE, model=MODEL))
    place.work_off()
    assert assembled(place, job).state is JobState.SUCCEEDED
    names = [info.key.rpartition("/")[2] for info in place.objects.list(f"results/default/{job.id}/")]
    assert names == ["_SUCCESS", "_manifest.json", part_name(0, job.id, "jsonl")]


def test_rows_are_called_by_the_column_that_names_them(place: Place) -> None:
    (place.bucket / "in.jsonl").write_bytes(jsonl([{"text": "a", "doc": 7}, {"text": "b", "doc": "x"}]))
    job = planned(place, place.native(model=MODEL, template=TEMPLATE, id_column="doc"))
    stop(place, job, StopReason.EXPIRED)
    assembled(place, job)
    assert ids(place.part_lines("errors")) == ["7", "x"]


def test_parts_may_be_parquet_with_the_answer_in_a_column(place: Place) -> None:
    job = a_native_job(place, ["hello", "bad"], format="parquet", keep_body=True)
    place.work_off()
    assembled(place, job)
    files = [place.out(name) for kind in ("part", "errors") for name in place.part_names(kind)]
    rows = [row for file in files for row in pq.read_table(io.BytesIO(file)).to_pylist()]
    assert [(row["outcome"], row["status_code"], row["text"]) for row in rows] == [
        ("succeeded", 200, "hello"),
        ("errored", 400, None),
    ]
    assert (rows[1]["error_code"], rows[0]["prompt_tokens"]) == ("context_length_exceeded", 3)
    assert json.loads(rows[0]["body"])["choices"][0]["message"]["content"] == "hello"


def test_embeddings_are_a_column_of_float32(place: Place) -> None:
    def embedded(request: RowRequest) -> tuple[int, JsonObject]:
        text = request.body["input"]
        vectors: list[object] = ["AACAPwAAAEA="] if text == "base64" else [[0.5, 0.25]]
        return 200, {"data": [{"embedding": vector} for vector in vectors]}

    place.serve_model("encoder", kind=ModelKind.ENCODER)
    template = {"model": "encoder", "input": "{{text}}"}
    (place.bucket / "in.jsonl").write_bytes(jsonl([{"text": "floats"}, {"text": "base64"}]))
    wishes = {"endpoint": "/v1/embeddings", "template": template, "format": "parquet"}
    job = planned(place, place.native(model="encoder", **wishes))
    with place.store.transaction() as tx:
        claim = tx.claims.bulk("worker_1", ["encoder"], tx.now(), 30)
    assert claim is not None
    place.run_shard(claim, embedded)
    assembled(place, job)
    table = pq.read_table(io.BytesIO(place.out(part_name(0, job.id, "parquet"))))
    assert str(table.schema.field("embedding").type) == "list<element: float>"
    assert table["embedding"].to_pylist() == [[0.5, 0.25], [1.0, 2.0]]
    assert "body" not in table.column_names
