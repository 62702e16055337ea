"""Bodies of OpenAI's routes that ask no model: none of the official client's fields is ignored."""

import pytest
from openai.types import batch_create_params, upload_create_params
from pydantic import BaseModel

from api.bodies.files import UploadCreate
from api.bodies.jobs import BatchCreate, parse_batch

BATCH = {"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"}


@pytest.mark.parametrize(
    ("body", "parameters"),
    [
        (BatchCreate, batch_create_params.BatchCreateParams),
        (UploadCreate, upload_create_params.UploadCreateParams),
    ],
)
def test_no_field_of_the_official_client_is_ignored(body: type[BaseModel], parameters: type) -> None:
    assert set(parameters.__annotations__) <= body.model_fields.keys()


def test_a_field_of_a_batch_that_is_not_known_is_ignored() -> None:
    labels = {"metadata": {"any": "label"}, "user": "u", "custom_field": {"a": [1]}}

    assert parse_batch(BATCH | labels) == parse_batch(BATCH | {"metadata": {"any": "label"}})
