"""Vectors and scores of an upstream as ours, checked: one for each input, and every one a number. Pure.

What is no answer raises ValueError, KeyError, TypeError or OverflowError.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nightshift.endpoints.encoders.embeddings import EmbeddingRequest, Embeddings, vector_bytes
from nightshift.endpoints.encoders.rerank import RerankRequest
from nightshift.endpoints.encoders.scoring import Scored, ScoringEndpoint, ScoringRequest, floats, packed
from nightshift.endpoints.results import Result
from nightshift.jobs import JsonObject, Usage
from workers.serving.model_server import Inference
from workers.upstreams.faults import RowRefused

FLOAT_BYTES: Final = 4
LABELS: Final[Mapping[str, tuple[str, str, str]]] = {
    "classify": ("data", "probs", "classify-"),
    "moderations": ("results", "category_scores", "modr-"),
}
"""The fields of an answer's entries and of their scores, and the beginning of its id."""


def encoder_result(inference: Inference, body: JsonObject, usage: Usage) -> Result:
    """Raises RowRefused for vectors of another size than the request's."""
    endpoint, request, identity = inference.endpoint, inference.request, inference.identity
    if isinstance(endpoint, Embeddings):
        assert isinstance(request, EmbeddingRequest), "parsed by this endpoint"
        return endpoint.result(request, _vectors(request, body), usage.prompt_tokens, None)
    assert isinstance(endpoint, ScoringEndpoint), "no other endpoint has upstreams"
    assert isinstance(request, ScoringRequest), "parsed by this endpoint"
    count = len(request.texts)
    if endpoint.ranks:  # one score each
        if isinstance(request, RerankRequest):
            scores = _document_scores(body["results"], count, request.top_n or count)
        else:
            scores = [entry["score"] for entry in _in_order(body["data"], count)]
        scored = Scored(identity, (), [_packed([score]) for score in scores], usage.prompt_tokens)
        return endpoint.result(request, scored)
    entries, values, prefix = LABELS[endpoint.name]
    for entry in _in_order(body[entries], count):
        scores = entry[values]
        _packed([*scores.values()] if isinstance(scores, dict) else scores)
    ours = {"id": identity.id(prefix), "created": identity.created_s, "model": request.model}
    body = {name: ours.get(name, value) for name, value in body.items()}
    return Result(200, usage, endpoint.values(body), body)


def _vectors(request: EmbeddingRequest, body: JsonObject) -> list[bytes]:
    """float32, of one size."""
    vectors = [vector_bytes(entry["embedding"]) for entry in _in_order(body["data"], len(request.inputs))]
    sizes = {len(_packed(floats(vector))) // FLOAT_BYTES for vector in vectors}
    if len(sizes) > 1 or 0 in sizes:
        raise ValueError(f"vectors of {sizes} numbers")
    if request.dimensions not in (None, *sizes):
        said = f"The upstream's vectors have {sizes.pop()} numbers, and cannot have {request.dimensions}."
        raise RowRefused(400, said, "dimensions", "unsupported_parameter")
    return vectors


def _document_scores(results: list[Any], count: int, top_n: int) -> list[float]:
    """The score of each document; of one beyond `top_n`, which may be left out, less than any."""
    scores: dict[int, float] = {result["index"]: result["relevance_score"] for result in results}
    if len(scores) < min(count, top_n) or not scores.keys() <= {*range(count)}:
        raise ValueError(f"the documents {sorted(scores)} of {count}")
    least = min(scores.values()) - 1
    return [scores.get(index, least) for index in range(count)]


def _in_order(entries: list[Any], count: int) -> list[Any]:
    """The entries of all inputs."""
    by_index = {entry.get("index", at): entry for at, entry in enumerate(entries)}
    if by_index.keys() != {*range(count)}:
        raise ValueError(f"{len(entries)} entries for {count} inputs")
    return [by_index[index] for index in range(count)]


def _packed(numbers: Sequence[float]) -> bytes:
    """float32, of which none is too large."""
    data = packed(numbers)
    if not all(map(math.isfinite, floats(data))):
        raise ValueError("a number is not finite")
    return data
