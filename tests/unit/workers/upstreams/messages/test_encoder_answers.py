"""Vectors and scores are checked, and answered in our shape."""

import base64
from array import array
from typing import Any

import pytest

from nightshift.jobs import JsonObject, Usage
from tests.unit.workers.upstreams.messages.test_answers import answered, result_of
from workers.upstreams.faults import RowRefused
from workers.upstreams.messages.answers import NoAnswer

TWO: JsonObject = {"input": ["a", "b"]}
RANKING: JsonObject = {"query": "q", "documents": ["a", "b", "c"]}
PAIRS: JsonObject = {"text_1": "q", "text_2": ["a", "b"]}


def vectors(*given: Any) -> JsonObject:
    data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(given)]
    return {"object": "list", "data": data, "usage": {"prompt_tokens": 4, "total_tokens": 4}}


def in_base64(*numbers: float) -> str:
    return base64.b64encode(array("f", numbers).tobytes()).decode()


def ranked(*scores: tuple[int, float], **more: Any) -> JsonObject:
    return {"id": "x", "results": [{"index": at, "relevance_score": score} | more for at, score in scores]}


def scored(*scores: Any) -> JsonObject:
    return {"data": [{"index": at, "object": "score", "score": score} for at, score in enumerate(scores)]}


@pytest.mark.parametrize("encoding", ["float", "base64"])
@pytest.mark.parametrize("given", [([1.0, 2.0], [3.0, 4.0]), (in_base64(1, 2), in_base64(3, 4))])
def test_vectors_are_encoded_as_was_asked_whatever_the_upstream_gives(encoding: str, given: Any) -> None:
    answer = vectors(*given)
    answer["data"].reverse()
    body = answered("embeddings", TWO | {"encoding_format": encoding}, answer)
    wanted: list[Any] = [[1.0, 2.0], [3.0, 4.0]]
    if encoding == "base64":
        wanted = [in_base64(*vector) for vector in wanted]
    assert [entry["embedding"] for entry in body["data"]] == wanted
    assert body["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


def test_a_row_with_one_input_has_its_vector_as_a_value() -> None:
    result = result_of("embeddings", {"input": "a"}, vectors([1.0, 2.0]))
    assert result.values["embedding"] == array("f", [1, 2]).tobytes()
    assert result.usage == Usage(4)


def test_how_many_inputs_were_cut_is_not_made_up() -> None:
    request = {"input": "a", "truncate_prompt_tokens": 8}
    assert "truncated_inputs" not in answered("embeddings", request, vectors([1.0]))["usage"]


def test_vectors_of_another_size_than_asked_for_end_the_row() -> None:
    with pytest.raises(RowRefused, match="have 2 numbers, and cannot have 4") as refused:
        result_of("embeddings", {"input": "a", "dimensions": 4}, vectors([1.0, 2.0]))
    assert refused.value.param == "dimensions"


@pytest.mark.parametrize(
    ("endpoint_name", "request_body", "answer"),
    [
        ("embeddings", TWO, vectors([1.0])),
        ("embeddings", TWO, vectors([1.0], [1.0], [1.0])),
        ("embeddings", TWO, vectors([1.0], [1.0, 2.0])),
        ("embeddings", TWO, vectors([1.0], [])),
        ("embeddings", TWO, vectors([1.0], [float("nan")])),
        ("embeddings", TWO, vectors([1.0], [1e300])),  # no float32
        ("embeddings", TWO, vectors([1.0], None)),
        ("embeddings", TWO, vectors([1.0], "no base64")),
        ("embeddings", TWO, {"data": [{"index": 0, "embedding": [1.0]}] * 2}),
        ("embeddings", TWO, {"data": None}),
        ("embeddings", TWO, {}),
        ("rerank", RANKING, ranked((0, 0.5), (1, 0.1))),
        ("rerank", RANKING | {"top_n": 2}, ranked((0, 0.5), (0, 0.1))),
        ("rerank", RANKING | {"top_n": 1}, ranked((3, 0.5))),
        ("rerank", RANKING | {"top_n": 1}, ranked((-1, 0.5))),
        ("rerank", RANKING | {"top_n": 1}, ranked((0, float("inf")))),
        ("rerank", RANKING, {"results": []}),
        ("score", PAIRS, scored(0.5)),
        ("score", PAIRS, scored(0.5, None)),
        ("score", PAIRS, scored(0.5, float("nan"))),
        ("score", PAIRS, scored(1e308, 1e308)),
        ("score", PAIRS, scored(0.5, 10**400)),
        ("classify", TWO, {"data": [{"index": 0, "label": "a", "probs": [0.5, 0.5]}]}),
        ("classify", {"input": "a"}, {"data": [{"index": 0, "label": "a", "probs": [float("nan")]}]}),
        ("moderations", {"input": "a"}, {"results": [{"flagged": True}]}),
    ],
)
def test_an_answer_that_lacks_a_number_is_the_upstreams_fault(
    endpoint_name: str, request_body: JsonObject, answer: Any
) -> None:
    with pytest.raises(NoAnswer):
        result_of(endpoint_name, request_body, answer)


@pytest.mark.parametrize(
    ("fields", "answer", "results"),
    [
        ({}, ranked((1, 0.75), (2, 0.5), (0, -3.0)), [(1, 0.75), (2, 0.5), (0, -3.0)]),
        ({}, ranked((0, -3.0), (1, 0.75), (2, 0.5)), [(1, 0.75), (2, 0.5), (0, -3.0)]),  # llama.cpp
        ({"top_n": 1}, ranked((2, -8.0)), [(2, -8.0)]),
        ({"top_n": 1}, ranked((0, 0.5), (1, 0.75), (2, 0.25)), [(1, 0.75)]),
    ],
)
def test_documents_come_best_first(fields: JsonObject, answer: JsonObject, results: list[Any]) -> None:
    body = answered("rerank", RANKING | fields, answer)
    assert [(result["index"], result["relevance_score"]) for result in body["results"]] == results
    assert all("document" not in result for result in body["results"])


def test_documents_are_returned_where_that_is_asked_for() -> None:
    request = RANKING | {"top_n": 1, "return_documents": True}
    (result,) = answered("rerank", request, ranked((2, 0.5), document={"text": "c"}))["results"]
    assert result["document"] == {"text": "c"}


def test_pairs_have_their_scores() -> None:
    body = answered("score", PAIRS, scored(0.5, 0.25))
    assert [entry["score"] for entry in body["data"]] == [0.5, 0.25]


def test_a_classifiers_probabilities_stay_as_vllm_gives_them() -> None:
    entry = {"index": 0, "label": "good", "probs": [0.25, 0.75], "num_classes": 2}
    answer = {"id": "classify-1", "object": "list", "created": 5, "model": "there", "data": [entry]}
    result = result_of("classify", {"input": "a"}, answer)
    body = answered("classify", {"input": "a"}, answer)
    assert body["data"] == [entry]
    assert (body["model"], body["created"]) == ("here", 1)
    assert body["id"] != "classify-1"
    assert result.values["label"] == "good"


def test_moderations_stay_as_openai_gives_them() -> None:
    entry = {
        "flagged": False,
        "categories": {"violence": False},
        "category_scores": {"violence": 0.75},  # a threshold of its own
        "category_applied_input_types": {"violence": ["text"]},
    }
    answer = {"id": "modr-1", "model": "there", "results": [entry]}
    body = answered("moderations", {"input": "a"}, answer)
    assert body["results"] == [entry]
    assert body["model"] == "here"
