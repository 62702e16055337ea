"""What the bodies of jobs, batches and model requests take as given."""

import pytest

from api.jobs.bodies import parse_batch, parse_job
from nightshift.endpoints.chat import Chat
from nightshift.jobs import JsonObject

JOB: JsonObject = {"endpoint": "chat", "input": "s3://in/x.jsonl", "output": "s3://out/"}
BATCH: JsonObject = {
    "input_file_id": "file-1",
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
}


@pytest.mark.parametrize("name", ["retry_on_interrupt", "capacity", "format"])
def test_null_in_a_job_means_that_the_field_is_absent(name: str) -> None:
    assert parse_job(JOB | {name: None}) == parse_job(JOB)


@pytest.mark.parametrize("given", [None, {"retry_on_interrupt": None, "capacity": None}])
def test_null_in_a_batchs_extension_means_that_the_field_is_absent(given: object) -> None:
    assert parse_batch(BATCH | {"nightshift": given}) == parse_batch(BATCH)


def test_null_in_a_model_request_means_that_the_field_is_absent() -> None:
    body: JsonObject = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    assert Chat().parse(body | {"ignore_eos": None}) == Chat().parse(body)
