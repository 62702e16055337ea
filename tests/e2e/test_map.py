"""A prompt over the rows of a table, against the whole service: answers joined, reused, taken up again."""

import asyncio
import subprocess
import sys
from typing import Annotated, Any, Literal

import pandas
import polars
import pyarrow as pa
import pytest
from pydantic import BaseModel, Field

import nightshift
from nightshift.cli.demo import DEMO_MODEL_ID, number_in_words
from nightshift.client import http_client
from tests.e2e.service import JOB_TIMEOUT_S, Service

ACCURACY_MIN = 0.95  # of so few rows


TERSE = {"logit_bias": {"203": -100, "204": -100, "226": -100}}
"""Without white space, which the demo model would fill its context with."""


class Verdict(BaseModel):
    """Answers of the demo model have this form, and mean nothing."""

    parity: Literal["even", "odd"]
    is_large: bool
    near: Annotated[list[Literal["a", "b"]], Field(max_length=2)]


def right(answers: list[str], numbers: list[int]) -> float:
    pairs = zip(answers, numbers, strict=True)
    return sum(answer == number_in_words(number) for answer, number in pairs) / len(numbers)


def test_a_frame_comes_back_with_its_answers_and_changed_rows_alone_are_computed(service, numbers):
    frame = pandas.DataFrame(
        {"doc_id": [f"d{number}" for number in numbers[:40]], "figure": numbers[:40]},
        index=[f"i{place}" for place in range(40)],
    )
    with service.client() as client:
        first = client.map(frame, "{{figure}}", model=DEMO_MODEL_ID, key="doc_id", name="amounts")
        again = client.map(frame, "{{figure}}", model=DEMO_MODEL_ID, key="doc_id", name="amounts")
        changed = frame.assign(figure=[*numbers[40:43], *numbers[3:40]])
        second = client.map(changed, "{{figure}}", model=DEMO_MODEL_ID, key="doc_id", name="amounts")

    assert first.failed == []
    assert first.data.drop(columns="answer").equals(frame)
    assert right(first.data["answer"].to_list(), numbers[:40]) >= ACCURACY_MIN
    assert again.job.id == first.job.id
    assert second.job.data["reused_job"] == first.job.id
    assert second.job.data["rows_reused"] == 37
    assert right(second.data["answer"].to_list(), changed["figure"].to_list()) >= ACCURACY_MIN


def test_answers_have_the_columns_of_a_schema_in_every_kind_of_table(service, numbers):
    texts = [str(number) for number in numbers[50:53]]
    kinds: list[Any] = [
        polars.DataFrame({"text": texts}),
        pa.table({"text": texts}),
        [{"text": text} for text in texts],
    ]
    with service.client() as client:
        results = [
            client.map(
                data, "Is it even? {{text}}", model=DEMO_MODEL_ID, output_schema=Verdict, parameters=TERSE
            )
            for data in kinds
        ]

    rows = [results[0].data.to_dicts(), results[1].data.to_pylist(), results[2].data]
    assert [result.failed for result in results] == [[], [], []]
    assert rows[0] == rows[1] == rows[2]
    assert list(rows[0][0]) == ["text", "parity", "is_large", "near"]
    assert {row["parity"] for row in rows[0]} <= {"even", "odd"}
    assert {type(row["is_large"]) for row in rows[0]} == {bool}
    assert results[0].job.id == results[1].job.id == results[2].job.id  # the same rows, whatever holds them


ATTACHING = """
import nightshift
result = nightshift.Client().attach("later").result()
print(len(result.failed), *sorted(row["n"] for row in result.data))
"""


def test_another_process_takes_a_call_up_by_its_name(service, numbers):
    rows = [{"n": number} for number in numbers[60:64]]
    with service.client() as client:
        client.map(rows, "{{n}}", model=DEMO_MODEL_ID, key="n", name="later", wait=False)

    attached = subprocess.run(
        [sys.executable, "-c", ATTACHING],
        env=service.environment(),
        capture_output=True,
        text=True,
        timeout=JOB_TIMEOUT_S,
        check=True,
    )

    assert attached.stdout.split() == ["0", *sorted(str(number) for number in numbers[60:64])]


def test_a_row_that_fails_is_null_and_says_why_and_the_same_call_runs_it_again(service, numbers):
    rows = [{"n": str(numbers[70])}, {"n": "9" * 20_000}]
    with service.client() as client:
        first = client.map(rows, "{{n}}", model=DEMO_MODEL_ID, name="too-long")
        again = client.map(rows, "{{n}}", model=DEMO_MODEL_ID, name="too-long")

    [failed] = first.failed
    assert (failed.key, failed.code) == ("1", "context_length_exceeded")
    assert first.data[1]["answer"] is None
    assert first.data[0]["answer"] == again.data[0]["answer"] is not None
    assert again.job.id != first.job.id
    assert again.job.data["rows_reused"] == 1


def test_the_asynchronous_client_does_the_same(service, numbers):
    async def mapped_rows(service: Service) -> list[dict[str, Any]]:
        async with nightshift.AsyncClient(service.base_url, service.api_key) as client:
            rows = [{"n": number} for number in numbers[80:84]]
            handle = await client.map(rows, "{{n}}", model=DEMO_MODEL_ID, name="async", wait=False)
            attached = await client.attach("async")
            assert attached.job_id == handle.job_id
            return (await attached.result(rows)).data

    rows = asyncio.run(mapped_rows(service))
    assert right([row["answer"] for row in rows], numbers[80:84]) == 1


def test_rows_at_a_location_are_answered_in_a_folder(service, workplace, numbers):
    lines = "".join(f"{number}\n" for number in numbers[90:94])
    (workplace / "map.csv").write_text(f"n\n{lines}")
    with service.client() as client:
        result = client.map(
            (workplace / "map.csv").as_uri(),
            "{{n}}",
            model=DEMO_MODEL_ID,
            key="n",
            name="located",
            output=(workplace / "mapped").as_uri() + "/",
        )

    answers = pandas.read_parquet(workplace / "mapped")
    assert result.failed == []
    assert result.data == (workplace / "mapped").as_uri() + "/"
    assert answers["custom_id"].to_list() == [str(number) for number in numbers[90:94]]


def test_a_large_table_comes_in_parts(service, numbers, monkeypatch):
    monkeypatch.setattr(http_client, "PART_BYTES", 50)
    rows = [{"n": number} for number in numbers[110:118]]
    with service.client() as client:
        result = client.map(rows, "{{n}}", model=DEMO_MODEL_ID, key="n")
    assert right([row["answer"] for row in result.data], numbers[110:118]) == 1


def test_a_model_that_is_not_served_is_said_with_its_name(service):
    with service.client() as client, pytest.raises(nightshift.client.ApiError) as refused:
        client.map([{"n": 1}], "{{n}}", model="nobody")
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
