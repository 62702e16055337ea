"""The bodies of jobs, batches and uploads: absent fields, columns, durations, refusals."""

import json

import pytest
from openai.types import batch_create_params, upload_create_params

from api.bodies import parsed
from api.bodies.files import UploadCreate
from api.bodies.jobs import BatchCreate, JobCreate, parse_duration
from api.dependencies import EncodedBody
from api.responses.times import window_text
from nightshift.endpoints.texts.chat import Chat
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject

JOB: JsonObject = {"endpoint": "chat", "input": "s3://in/x.jsonl", "output": "s3://out/"}
BATCH: JsonObject = {
    "input_file_id": "file-1",
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
}


def test_null_means_that_a_field_is_absent():
    for name in ("retry_on_interrupt", "capacity", "format"):
        assert parsed(JobCreate, JOB | {name: None}) == parsed(JobCreate, JOB)
    for given in (None, {"retry_on_interrupt": None, "capacity": None}):
        assert parsed(BatchCreate, BATCH | {"nightshift": given}) == parsed(BatchCreate, BATCH)
    body: JsonObject = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    assert Chat().parse(body | {"ignore_eos": None}) == Chat().parse(body)


def test_an_input_that_is_no_files_id_is_told_what_one_looks_like():
    with pytest.raises(InvalidRequest, match="Expected an ID that begins with 'file-'") as refused:
        parsed(BatchCreate, BATCH | {"input_file_id": "abc"})
    assert refused.value.param == "input_file_id"


@pytest.mark.parametrize(
    ("given", "kept"), [(None, None), ("all", "all"), (["all"], ("all",)), (["b", "a.b[0]"], ("b", "a.b[0]"))]
)
def test_columns_to_keep_are_names_in_their_order_or_all(given, kept):
    assert parsed(JobCreate, JOB | {"keep_columns": given}).options().keep_columns == kept


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
def test_columns_that_cannot_be_kept_are_named(given, param, says):
    with pytest.raises(InvalidRequest, match=says) as refused:
        parsed(JobCreate, JOB | {"keep_columns": given})
    assert refused.value.param == param


def test_columns_are_kept_of_native_bulk_jobs_alone():
    with pytest.raises(InvalidRequest, match="'keep_columns' is for bulk jobs"):
        parsed(JobCreate, {"endpoint": "chat", "body": {}, "keep_columns": ["a"]})
    with pytest.raises(InvalidRequest) as refused:
        parsed(BatchCreate, BATCH | {"nightshift": {"keep_columns": ["a"]}})
    assert refused.value.param == "nightshift.keep_columns"


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"tags": ["a"]}, "Invalid type for 'metadata.tags': expected a string, but got an array instead."),
        ({"tags": 1}, "Invalid type for 'metadata.tags': expected a string, but got an integer instead."),
        ("x", "Invalid type for 'metadata': expected an object, but got a string instead."),
    ],
)
def test_a_wrong_type_is_said_in_openais_sentence(metadata, says):
    with pytest.raises(InvalidRequest) as refused:
        parsed(BatchCreate, BATCH | {"metadata": metadata})
    assert (refused.value.message, refused.value.code) == (says, "invalid_type")


@pytest.mark.parametrize(
    ("body", "parameters"),
    [
        (BatchCreate, batch_create_params.BatchCreateParams),
        (UploadCreate, upload_create_params.UploadCreateParams),
    ],
)
def test_no_field_of_the_official_client_is_ignored(body, parameters):
    assert set(parameters.__annotations__) <= body.model_fields.keys()


def test_a_field_of_a_batch_that_is_not_known_is_ignored():
    labels = {"metadata": {"any": "label"}, "user": "u", "custom_field": {"a": [1]}}

    assert parsed(BatchCreate, BATCH | labels) == parsed(BatchCreate, BATCH | {"metadata": {"any": "label"}})


@pytest.mark.parametrize(
    ("text", "window_s", "shown"),
    [
        ("1m", 60, "1m"),
        ("90m", 5400, "90m"),
        ("60m", 3600, "1h"),
        ("24h", 86400, "24h"),
        ("1d", 86400, "24h"),
    ],
)
def test_a_window_is_read_and_written(text, window_s, shown):
    assert parse_duration(text, "completion_window", 86400) == window_s
    assert window_text(window_s) == shown


@pytest.mark.parametrize(
    "text", ["", "8", "h", "0h", "-1h", "1.5h", "8 h", "8H", "1w", "25h", "9" * 30 + "d", "1٣h"]
)
def test_anything_else_is_refused_by_name(text):
    with pytest.raises(InvalidRequest) as refused:
        parse_duration(text, "completion_window", 86400)
    assert refused.value.param == "completion_window"


def test_a_body_is_the_same_in_another_order_of_its_keys_and_as_long_as_its_json():
    one, other = ({"model": "m", "n": 1, "text": "é"}, {"text": "é", "n": 1, "model": "m"})

    assert EncodedBody.from_json(one) == EncodedBody.from_json(other)
    assert EncodedBody.from_json(one).size_bytes == len(json.dumps(one))
    assert EncodedBody.from_json(one) != EncodedBody.from_json(one | {"n": 2})
