"""An endpoint that an encoder serves is one module as well: this file has one."""

from collections.abc import Iterator, Mapping, Sequence

import pytest

from nightshift.endpoints.encoders.encoding import EncoderEndpoint, EncoderRequest
from nightshift.endpoints.endpoint import ColumnType
from nightshift.endpoints.requests import ModelRequest
from nightshift.endpoints.results import Values
from nightshift.jobs import JsonObject
from tests.helpers.fakes import offered
from tests.unit.workers.serving.conftest import submit
from workers.serving.models import Models

ROUTE = "/v1/sizes"


class SizeRequest(EncoderRequest):
    texts: list[str]

    @property
    def inputs(self) -> Sequence[str]:
        return self.texts


class Sizes(EncoderEndpoint):
    """POST /v1/sizes: texts in, the size of each vector out."""

    route = ROUTE
    name = "sizes"
    operation = "create_sizes"
    summary = "Measure vectors"
    request_type = SizeRequest
    input_field = "texts"
    columns: Mapping[str, ColumnType] = {"size": ColumnType.TEXT}

    def row_template(self, model: str, placeholder: str) -> JsonObject:
        return {"model": model, "texts": [placeholder]}

    def check_line(self, body: JsonObject) -> int:
        return len(body["texts"])

    def answer(self, request: ModelRequest, embeddings: Sequence[bytes], prompt_tokens: int) -> JsonObject:
        return {"model": request.model, "sizes": [len(vector) // 4 for vector in embeddings]}

    def values(self, body: JsonObject) -> Values:
        sizes = body.get("sizes") or [None]
        return {"size": str(sizes[0])}


@pytest.fixture(autouse=True)
def sizes() -> Iterator[None]:
    with offered(Sizes()):
        yield


def test_a_new_endpoint_is_served_by_an_encoder(models: Models) -> None:
    answer = submit(models, ROUTE, {"model": models.ids[1], "texts": ["one", "two"]}).wait()

    assert answer.body == {"model": models.ids[1], "sizes": [384, 384]}
    assert answer.usage.prompt_tokens > 0
