"""POST /v1/rerank, in the shape that Cohere, Jina and vLLM share."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from nightshift.endpoints.answer_objects import RerankObject
from nightshift.endpoints.answers import ANSWER_HEAD_BYTES, AnswerSize
from nightshift.endpoints.encoders.scoring import (
    ENTRY_BYTES,
    RankingRequest,
    Scored,
    ScoredText,
    ScoringEndpoint,
    check_count,
    check_repeated,
    checked_text,
    floats,
    json_text,
    no_values,
    packed,
    usage_json,
)
from nightshift.endpoints.endpoint import ColumnType
from nightshift.endpoints.requests import Count, ModelRequest, null_means
from nightshift.endpoints.results import Identity, Origin, Result, Values
from nightshift.fleet.models import Model
from nightshift.jobs import JsonObject, Usage
from nightshift.jobs.json_text import json_bytes


class RerankRequest(RankingRequest):
    """POST /v1/rerank."""

    query: Annotated[str, Field(min_length=1)]
    documents: Any
    top_n: Count | None = None
    return_documents: Annotated[bool, null_means(False)] = False

    @field_validator("documents")
    @classmethod
    def _documents(cls, value: object, info: ValidationInfo) -> object:
        for field in ("query", "instruction"):
            check_repeated(info.data.get(field) or "", len(_texts_of(value)), field)
        return value

    @property
    def document_texts(self) -> Sequence[str]:
        return _texts_of(self.documents)

    @property
    def texts(self) -> Sequence[ScoredText]:
        return [
            ScoredText(self.query, text, f"documents[{index}]", "query")
            for index, text in enumerate(self.document_texts)
        ]


class Rerank(ScoringEndpoint):
    route = "/v1/rerank"
    aliases: Mapping[str, JsonObject] = {"/rerank": {"return_documents": True}, "/v2/rerank": {}}
    name = "rerank"
    operation = "create_rerank"
    summary = "Order documents by what they have to do with a query"
    request_type = RerankRequest
    answer_type = RerankObject
    ranks = True
    texts_field = "documents"
    columns: Mapping[str, ColumnType] = {"ranking": ColumnType.TEXT, "scores": ColumnType.FLOATS}

    def count(self, texts: object) -> int:
        return len(_texts_of(texts))

    def answer_size(self, request: ModelRequest, model: Model) -> AnswerSize | None:
        assert isinstance(request, RerankRequest), "parsed by this endpoint"
        texts = request.document_texts
        head_bytes = ANSWER_HEAD_BYTES + json_bytes(request.model)
        head_bytes += json_bytes(texts) if request.return_documents else 0
        return AnswerSize(
            ENTRY_BYTES, {self.texts_field: min(len(texts), request.top_n or len(texts))}, head_bytes
        )

    def row_template(self, model: str, placeholder: str) -> JsonObject:
        """The query of a row is its column `query`."""
        return {"model": model, "query": "{{query}}", "documents": placeholder}

    def result(self, request: ModelRequest, scored: Scored) -> Result:
        assert isinstance(request, RerankRequest), "parsed by this endpoint"
        scores = scored.first_scores
        ranking = sorted(range(len(scores)), key=lambda index: -scores[index])[: request.top_n]
        values = _values(ranking, [scores[index] for index in ranking])
        usage = Usage(scored.prompt_tokens)
        if not request.return_documents:
            return Result(200, usage, values)
        results, texts = _results(values), request.document_texts
        for result in results:
            result["document"] = {"text": texts[result["index"]]}
        return Result(200, usage, values, _body(scored.identity, request.model, results, usage))

    def values(self, body: JsonObject) -> Values:
        results = body.get("results")
        if not results:
            return no_values(self.columns)
        ranking = [result["index"] for result in results]
        return _values(ranking, [result["relevance_score"] for result in results])

    def body(self, origin: Origin, values: Values, usage: Usage) -> JsonObject:
        return _body(origin.identity, origin.model, _results(values), usage)


def _values(ranking: Sequence[int], scores: Sequence[float]) -> Values:
    return {"ranking": json_text(ranking), "scores": packed(scores)}


def _results(values: Values) -> list[JsonObject]:
    ranking, scores = values["ranking"], values["scores"]
    assert isinstance(ranking, str), "every answer has a ranking"
    assert isinstance(scores, bytes), "and its scores"
    return [
        {"index": index, "relevance_score": score}
        for index, score in zip(json.loads(ranking), floats(scores), strict=True)
    ]


def _body(identity: Identity, model: str, results: Sequence[JsonObject], usage: Usage) -> JsonObject:
    return {
        "id": identity.id("rerank-"),
        "model": model,
        "results": results,
        "usage": usage_json(usage),
    }


def _texts_of(documents: object) -> list[str]:
    """Texts, or objects with a text; one text is a list of one. Raises ValueError."""
    given = [documents] if isinstance(documents, str) else documents
    if not isinstance(given, list):
        raise ValueError("documents must be a list of texts")
    check_count(len(given), "documents")
    return [
        checked_text(document.get("text") if isinstance(document, dict) else document, f"documents[{index}]")
        for index, document in enumerate(given)
    ]
