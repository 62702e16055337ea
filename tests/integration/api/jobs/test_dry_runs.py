"""A dry run answers with what a submission would do, and writes nothing."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import func, select

from api.app import create_app
from nightshift.process.settings import QuotaSettings
from nightshift.store import Store, tables
from nightshift.tenants.keys import Scope
from tests.helpers.hub import FakeDataset, fake_hub
from tests.integration.api.asking import CHAT, online
from tests.integration.api.conftest import batch_lines, plain_http
from tests.integration.api.fake_worker import CHAT_MODEL
from tests.integration.api.serving import serving

pytestmark = pytest.mark.usefixtures("forked_previews")
MORE = pytest.mark.exhaustive
DRY = {"dry_run": "true"}
TEMPLATE = {"model": CHAT_MODEL, "messages": [{"role": "user", "content": "Sum up: {{text}}"}]}


def a_bulk_job(allowed: Path, name: str = "in/", **fields: object) -> dict[str, object]:
    (allowed / "in").mkdir(parents=True, exist_ok=True)
    source = (allowed / name).as_uri() + ("/" if name.endswith("/") else "")
    output = (allowed / "out").as_uri() + "/"
    return {"endpoint": CHAT, "input": source, "output": output, "template": TEMPLATE} | fields


@pytest.fixture
def allowed(tmp_path: Path) -> Path:
    (tmp_path / "allowed" / "in").mkdir(parents=True)
    return tmp_path / "allowed"


def everything(store: Store) -> dict[str, int]:
    """How many rows each table has."""
    with store.database.read() as connection:
        return {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in tables.metadata.sorted_tables
        }


def write_each_format(folder: Path) -> None:
    rows = [{"id": f"doc-{number}", "text": f"text {number}"} for number in range(5)]
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    (folder / "a.jsonl").write_bytes(lines)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / "c.csv").write_text("id,text\n" + "".join(f"{row['id']},{row['text']}\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), folder / "d.parquet")


def dry_run(http: httpx.Client, body: dict[str, object], **headers: str) -> dict[str, Any]:
    """The answer to a dry run of this."""
    answer = http.post("/v1/jobs", params=DRY, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_it_describes_the_input_and_the_first_requests_and_writes_nothing(http, store, allowed, worker):
    write_each_format(allowed / "in")
    before, files_before = everything(store), sorted(allowed.rglob("*"))
    shown = dry_run(http, a_bulk_job(allowed, id_column="id"), **{"idempotency-key": "one"})

    assert (shown["object"], shown["would_be_accepted"], shown["problems"]) == ("job.dry_run", True, [])
    assert (shown["model"], shown["priority"], shown["kind"]) == (CHAT_MODEL, "standard", "bulk")
    assert (shown["input"]["objects"], shown["input"]["is_whole"]) == (4, True)
    sizes = [path.stat().st_size for path in (allowed / "in").iterdir()]
    assert shown["input"]["size_bytes"] == sum(sizes)
    assert shown["rows_checked"] == 20
    assert [request["custom_id"] for request in shown["requests"]] == ["doc-0", "doc-1", "doc-2"]
    assert shown["requests"][0]["body"]["messages"] == [{"role": "user", "content": "Sum up: text 0"}]
    assert everything(store) == before
    assert sorted(allowed.rglob("*")) == files_before


@pytest.mark.parametrize(
    "name",
    [pytest.param("a.jsonl", marks=MORE), "b.jsonl.gz", pytest.param("c.csv", marks=MORE), "d.parquet"],
)
def test_every_format_is_read_as_a_worker_reads_it(http, allowed, worker, name):
    write_each_format(allowed / "in")
    shown = dry_run(http, a_bulk_job(allowed, f"in/{name}"))

    assert shown["rows_checked"] == 5
    assert shown["requests"][2]["body"]["messages"][0]["content"] == "Sum up: text 2"


def test_a_delta_table_is_looked_at_within_the_limits_of_a_dry_run(http, allowed, worker):
    deltalake = pytest.importorskip("deltalake", reason="the extra `delta` is not installed")
    for text in ("a", "b"):
        deltalake.write_deltalake(str(allowed / "in"), pa.table({"text": [text, "gone"]}), mode="append")
    deltalake.DeltaTable(str(allowed / "in")).delete("text = 'gone'")

    shown = dry_run(http, a_bulk_job(allowed, input_format="delta"))

    assert (shown["problems"], shown["rows_checked"]) == ([], 2)
    assert (shown["input"]["objects"], shown["input"]["formats"]) == (1, ["parquet"])


def test_a_dataset_is_looked_at_on_the_hub_of_the_environment(http, allowed, worker, monkeypatch):
    with fake_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.datasets["org/docs"] = FakeDataset()
        commit = hub.datasets["org/docs"].push({"data/a.jsonl": b'{"text": "a"}\n', "README.md": b"# a"})
        shown = dry_run(http, a_bulk_job(allowed, input="hf://datasets/org/docs/"))

    assert (shown["problems"], shown["rows_checked"]) == ([], 1)
    assert shown["requests"][0]["object"] == f"hf://datasets/org/docs@{commit}/data/a.jsonl"


def test_problems_name_the_object_and_the_row(http, allowed, worker):
    good, no_column = b'{"text": "a"}\n', b'{"other": "a"}\n'
    (allowed / "in" / "one.jsonl").write_bytes(good + no_column + b"{\n" + good)
    shown = dry_run(http, a_bulk_job(allowed))

    named = [(problem["code"], problem["row"]) for problem in shown["problems"]]
    assert named == [("missing_column", 2), ("invalid_json_line", 3)]
    assert {problem["object"] for problem in shown["problems"]} == {(allowed / "in" / "one.jsonl").as_uri()}
    assert (shown["rows_checked"], shown["rows_with_problems"]) == (4, 2)
    assert shown["would_be_accepted"]


def test_rows_that_a_worker_would_refuse_for_their_size_are_problems(http, allowed, worker):
    """The rule is the same: an answer may be too large, and token ids more than the context has."""
    (allowed / "in" / "a.jsonl").write_text('{"text": "a"}\n')
    large = TEMPLATE | {"n": 128, "logprobs": True, "top_logprobs": 20}
    (problem,) = dry_run(http, a_bulk_job(allowed, template=large))["problems"]
    assert (problem["code"], problem["param"], problem["row"]) == ("answer_too_large", "n", 1)

    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions"}
    body = {"model": CHAT_MODEL, "prompt": [1] * 513}
    (allowed / "in" / "a.jsonl").write_text(json.dumps(line | {"body": body}) + "\n")
    (problem,) = dry_run(http, a_bulk_job(allowed, endpoint="/v1/completions", template=None))["problems"]
    assert (problem["code"], problem["param"]) == ("context_length_exceeded", "prompt")


def test_an_input_that_begins_empty_and_is_too_long_to_be_read_is_not_called_empty(http, allowed, worker):
    for number, content in enumerate([b""] * 1_001 + [b'{"text": "a"}\n']):
        (allowed / "in" / f"{number:04}.jsonl").write_bytes(content)
    shown = dry_run(http, a_bulk_job(allowed))

    assert shown["input"] is not None
    assert (shown["rows_checked"], shown["problems"]) == (0, [])


@pytest.mark.parametrize(
    ("content", "fields", "code"),
    [
        pytest.param(b"", {}, "empty_input", marks=MORE),
        (b"\n\n", {}, "empty_input"),
        pytest.param(None, {}, "object_not_found", marks=MORE),
        pytest.param(b'{"body": {}}\n', {"template": None}, "missing_required_parameter", marks=MORE),
        (batch_lines(2, "other"), {"template": None}, "model_not_found"),
    ],
)
def test_what_planning_would_refuse_is_a_problem_of_the_job(http, allowed, worker, content, fields, code):
    if content is not None:
        (allowed / "in" / "one.jsonl").write_bytes(content)
    shown = dry_run(http, a_bulk_job(allowed, **fields))

    assert [problem["code"] for problem in shown["problems"] if problem["row"] is None] == [code]


def test_an_uploaded_file_is_looked_at(http, allowed, worker):
    files = {"file": ("rows.jsonl", batch_lines(3)), "purpose": (None, "batch")}
    file_id = http.post("/v1/files", files=files).json()["id"]
    shown = dry_run(http, a_bulk_job(allowed, template=None) | {"input": file_id})

    assert (shown["rows_checked"], shown["problems"], shown["model"]) == (3, [], CHAT_MODEL)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"webhook": {"url": "http://127.0.0.1/"}}, "webhook.url"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"input": "file:///etc/passwd"}, "input"),
        ({"output": "file:///etc/"}, "output"),
        ({"input": "file-unknown"}, "input"),
        ({"template": {"model": "no-such-model"}}, "model"),
    ],
)
def test_what_a_submission_refuses_is_refused_with_the_same_error(http, allowed, worker, change, param):
    body = a_bulk_job(allowed) | change
    dry, wet = http.post("/v1/jobs", params=DRY, json=body), http.post("/v1/jobs", json=body)

    assert (dry.status_code, dry.json()) == (wet.status_code, wet.json())
    assert dry.is_client_error
    assert dry.json()["error"]["param"] == param


def test_an_online_request_is_checked_and_not_run(http, store, worker):
    before = everything(store)
    shown = dry_run(http, online())

    assert (shown["kind"], shown["priority"], shown["input"]) == ("online", "interactive", None)
    assert shown["would_be_accepted"]
    assert everything(store) == before


def test_it_names_the_job_that_the_same_key_made(http, allowed, worker):
    headers, other = {"idempotency-key": "one"}, a_bulk_job(allowed, priority="background")
    made = http.post("/v1/jobs", json=a_bulk_job(allowed), headers=headers).json()

    assert dry_run(http, a_bulk_job(allowed), **headers)["existing_job_id"] == made["id"]
    assert http.post("/v1/jobs", params=DRY, json=other, headers=headers).status_code == 422


def test_a_key_that_may_not_read_gets_no_rows(http_of, allowed):
    answer = http_of(scopes=frozenset({Scope.SUBMIT})).post("/v1/jobs", params=DRY, json=a_bulk_job(allowed))

    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "missing_scope")


def test_long_requests_are_shown_in_part(http, allowed, worker):
    (allowed / "in" / "one.jsonl").write_text(json.dumps({"text": "x" * 1_000_000}) + "\n")
    answer = http.post("/v1/jobs", params=DRY, json=a_bulk_job(allowed))
    (shown,) = answer.json()["requests"]

    assert shown["body"] is None
    assert shown["body_start"].startswith('{"model"')
    assert shown["body_bytes"] > 1_000_000
    assert len(answer.content) < 20_000


def test_quotas_are_shown_and_nothing_is_taken_of_them(settings, make_key, allowed, worker):
    quotas = QuotaSettings(quota_queued_rows=3, quota_requests_per_minute=1000, quota_tokens_per_minute=50)
    write_each_format(allowed / "in")
    with serving(create_app(replace(settings, quotas=quotas))) as url, plain_http(url, make_key()) as http:
        job = dry_run(http, a_bulk_job(allowed, "in/d.parquet"))
        for _ in range(4):
            dry_run(http, online())

    assert job["limits"]["queued_rows"] == {"limit": 3, "used": 0, "needed": 5}
    assert [problem["code"] for problem in job["problems"]] == ["insufficient_quota"]


def test_it_says_that_another_job_writes_to_the_output(http, allowed, worker):
    write_each_format(allowed / "in")
    made = http.post("/v1/jobs", json=a_bulk_job(allowed, id_column="id")).json()

    shown = dry_run(http, a_bulk_job(allowed, id_column="id"))

    assert shown["would_be_accepted"] is False
    assert shown["refusal"]["code"] == "output_in_use"
    assert made["id"] in shown["refusal"]["message"]
