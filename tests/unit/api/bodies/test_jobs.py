"""What the bodies of jobs, batches and model requests take as given."""

import pytest

from api.bodies.jobs import parse_batch, parse_job
from nightshift.endpoints.texts.chat import Chat
from nightshift.errors import InvalidRequest
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


def test_an_input_that_is_no_files_id_is_told_what_one_looks_like() -> None:
    with pytest.raises(InvalidRequest, match="Expected an ID that begins with 'file-'") as refused:
        parse_batch(BATCH | {"input_file_id": "abc"})
    assert refused.value.param == "input_file_id"


@pytest.mark.parametrize(
    ("given", "kept"), [(None, None), ("all", "all"), (["all"], ("all",)), (["b", "a.b[0]"], ("b", "a.b[0]"))]
)
def test_columns_to_keep_are_names_in_their_order_or_all(given: object, kept: object) -> None:
    assert parse_job(JOB | {"keep_columns": given}).options().keep_columns == kept


@pytest.mark.parametrize(
    ("given", "param", "says"),
    [
        ("doc", "keep_columns", "'all', or a list"),
        ([], "keep_columns", "1 to 1000 names"),
        ([f"c{n}" for n in range(1001)], "keep_columns", "1 to 1000 names"),
        ({"a": 1}, "keep_columns", "'all', or a list"),
        ([f"{n:0200}" for n in range(164)], "keep_columns", "32768 characters together"),
        (["a", "b", "a"], "keep_columns", "'a' is named twice"),
        (["a", ""], "keep_columns[1]", "1 to 255 characters"),
        ([7], "keep_columns[0]", "a text"),
        (["x" * 256], "keep_columns[0]", "1 to 255 characters"),
        (["a\0b"], "keep_columns[0]", "not NUL"),
        (["\ud83d"], "keep_columns[0]", "of Unicode"),
    ],
)
def test_columns_that_cannot_be_kept_are_named(given: object, param: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as refused:
        parse_job(JOB | {"keep_columns": given})
    assert refused.value.param == param


def test_columns_are_kept_of_native_bulk_jobs_alone() -> None:
    with pytest.raises(InvalidRequest, match="'keep_columns' is for bulk jobs"):
        parse_job({"endpoint": "chat", "body": {}, "keep_columns": ["a"]})
    with pytest.raises(InvalidRequest) as refused:
        parse_batch(BATCH | {"nightshift": {"keep_columns": ["a"]}})
    assert refused.value.param == "nightshift.keep_columns"


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"tags": ["a"]}, "Invalid type for 'metadata.tags': expected a string, but got an array instead."),
        ({"tags": 1}, "Invalid type for 'metadata.tags': expected a string, but got an integer instead."),
        ("x", "Invalid type for 'metadata': expected an object, but got a string instead."),
    ],
)
def test_a_wrong_type_is_said_in_openais_sentence(metadata: object, says: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_batch(BATCH | {"metadata": metadata})
    assert (refused.value.message, refused.value.code) == (says, "invalid_type")
