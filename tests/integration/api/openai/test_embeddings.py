"""POST /v1/embeddings with the official client, which asks for base64 unless told otherwise."""

import base64
import struct

import pytest

from tests.integration.api.fake_worker import EMBEDDING_MODEL

ROUTE = "/v1/embeddings"


@pytest.mark.parametrize("encoding", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_vectors_come_back_in_input_order_in_either_encoding(client, worker, encoding):
    answer = client.embeddings.create(model=EMBEDDING_MODEL, input=["a", "bbb", "cc"], **encoding)

    vectors = [item.embedding for item in answer.data]
    if encoding.get("encoding_format") == "base64":
        vectors = [list(struct.unpack("<2f", base64.b64decode(vector))) for vector in vectors]
    assert vectors == [[1, 1], [3, 1], [2, 1]]
    assert [item.index for item in answer.data] == [0, 1, 2]
    assert answer.usage.prompt_tokens == 3


@pytest.mark.parametrize("given", ["text", ["text"], [1, 2, 3], [[1, 2], [3]]])
def test_all_four_shapes_of_an_input_are_understood(http, worker, given):
    answer = http.post(ROUTE, json={"model": EMBEDDING_MODEL, "input": given})

    assert answer.status_code == 200, answer.text
    assert all(isinstance(item["embedding"], list) for item in answer.json()["data"])


@pytest.mark.parametrize("given", ["", [], [""], [[]], 7, ["a", 1], ["a"] * 2049, [True]])
def test_an_input_that_cannot_be_embedded_is_refused(shared_http, given):
    answer = shared_http.post(ROUTE, json={"model": EMBEDDING_MODEL, "input": given})

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "input"
