"""Bad inputs of every model kind: online, in a batch file, and in tables that `nightshift run` takes.

Each is an error that names the field, and what lies beside it is answered.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightshift.cli.demo import demo_model_path
from tests.e2e.models.bad_inputs import (
    MODELS,
    QUESTIONS,
    TABLES,
    Question,
    Table,
    check_error,
    each_of,
    save_models,
)
from tests.e2e.service import JOB_TIMEOUT_S, Service, batch_of, forked, nightshift

LONG = pytest.mark.exhaustive
QUICK = ("chats", "photos-of-a-table")  # of the tables, one of texts and one of images


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad-inputs")
    save_models(folder)
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    models = [word for name in MODELS for word in ("--model", str(folder / name))]
    models += ["--model", demo_model_path()]
    with forked(folder / "data", *models, FILE_ROOTS=str(folder), DTYPE="float32") as service:
        yield service


@pytest.fixture
def http(service: Service) -> Iterator[httpx.Client]:
    with service.http() as client:
        client.timeout = JOB_TIMEOUT_S
        yield client


@each_of(QUESTIONS)
def test_online_each_is_a_400_that_names_the_field(http: httpx.Client, question: Question) -> None:
    good, *bad = (http.post(question.route.removeprefix("/v1"), json=body) for body in question.bodies)

    assert good.status_code == 200, good.text
    for answer, wanted in zip(bad, question.bad, strict=True):
        assert answer.status_code == 400, (wanted, answer.text)
        check_error(answer.json()["error"], wanted)


@each_of(QUESTIONS)
def test_a_batch_file_has_an_error_for_each_row_and_an_answer_for_the_one_beside_them(
    service: Service, http: httpx.Client, question: Question
) -> None:
    numbers = [number for number in range(len(question.bodies)) if number not in question.refused_early]
    batch = batch_of(service, question.route, {str(number): question.bodies[number] for number in numbers})
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": len(numbers), "completed": 1, "failed": len(numbers) - 1}

    if len(numbers) > 1:
        content = http.get(f"/files/{batch['error_file_id']}/content").text.splitlines()
        errors = {
            int(line["custom_id"]): line["response"]["body"]["error"] for line in map(json.loads, content)
        }
        assert sorted(errors) == numbers[1:]
        for number, error in errors.items():
            check_error(error, question.bad[number - 1])


@each_of([question for question in QUESTIONS if question.refused_early], kept=1)
def test_a_batch_file_is_refused_for_the_rows_that_are_bad_at_first_sight(
    service: Service, question: Question
) -> None:
    batch = batch_of(service, question.route, {str(n): body for n, body in enumerate(question.bodies)})

    assert batch["status"] == "failed"
    assert {error["line"] - 1 for error in batch["errors"]["data"]} == question.refused_early


def rows_of_run(service: Service, folder: Path, *arguments: str, failed: int) -> dict[str, Any]:
    """The output of `nightshift run`, by the rows' ids: one row is answered, the others are errors."""
    output = f"from-{arguments[0].strip('/')}-{arguments[2].strip('/').replace('/', '-')}"
    ended = nightshift(
        service,
        *("run", *arguments, "--output", output, "--max-error-rate", "1", "--wait"),
        cwd=folder,
    )

    assert ended.returncode == 3, ended.stdout + ended.stderr
    assert f"1 row succeeded, {failed} failed" in ended.stdout
    assert ended.stderr.startswith("nightshift: rows failed, most often: ")
    assert "Traceback" not in ended.stderr
    parts = sorted((folder / output).glob("*.jsonl"))  # answers, and errors
    rows = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    responses = {row["custom_id"]: row["response"] for row in rows}
    assert len(rows) == len(responses) == 1 + failed
    return responses


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(table, id=table.name, marks=() if table.name in QUICK else pytest.mark.exhaustive)
        for table in TABLES
    ],
)
def test_a_table_with_a_template_has_an_error_for_each_bad_row(
    service: Service, folder: Path, table: Table
) -> None:
    name, ids = f"{table.name}.parquet", [*map(str, range(table.rows))]
    pq.write_table(pa.table({"id": ids, **table.columns}), folder / name)
    (folder / f"{table.name}.json").write_text(json.dumps(table.template))

    rows = rows_of_run(
        service,
        folder,
        *(name, "--endpoint", table.endpoint, "--template", f"{table.name}.json", "--id-column", "id"),
        failed=table.rows - 1,
    )

    assert rows["0"]["status_code"] == 200
    for number, (param, said) in enumerate(table.bad, 1):
        check_error(rows[str(number)]["body"]["error"], ({"row": number}, param, said))


@pytest.mark.parametrize(
    ("template", "code", "said"),
    [
        pytest.param("{", 2, "cannot be read as JSON", marks=LONG),
        pytest.param("[1]", 2, "is not a JSON object", marks=LONG),
        ('{"model": "single", "input": "{{txt}}"}', 4, "txt"),
        ('{"model": "single", "input": "{{text}}", "temperature": 1}', 3, "temperature"),
        pytest.param('{"model": "single", "input": {"image": "{{text}}"}}', 3, "image", marks=LONG),
        pytest.param('{"model": "embedder", "input": "{{text}}"}', 1, "embedder", marks=LONG),
        pytest.param('{"model": "no-such", "input": "{{text}}"}', 1, "no-such", marks=LONG),
        pytest.param('{"input": "{{text}}"}', 4, "model", marks=LONG),
    ],
)
def test_a_template_that_suits_no_row_ends_the_command_with_what_is_wrong(
    service: Service, folder: Path, template: str, code: int, said: str
) -> None:
    pq.write_table(pa.table({"text": ["w1", "w2"]}), folder / "right.parquet")
    (folder / "wrong.json").write_text(template)

    ended = nightshift(
        service,
        *("run", "right.parquet", "--endpoint", "classifications", "--template", "wrong.json"),
        *("--output", "wrong", "--wait"),
        cwd=folder,
    )

    assert (ended.returncode, said in ended.stderr + ended.stdout) == (code, True), (
        ended.stdout + ended.stderr
    )
    assert "Traceback" not in ended.stderr
