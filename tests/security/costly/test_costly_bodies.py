"""A body with very many mistakes costs at most 30 times its size and a second of CPU, and is refused."""

import json
from functools import partial
from typing import Any

import pytest

from api.bodies import parsed
from api.bodies.files import UploadComplete
from api.bodies.jobs import BatchCreate, JobCreate
from nightshift import endpoints
from nightshift.errors import InvalidRequest
from tests.security.costly.children import in_child

COST_FACTOR = 30
MANY = 400_000
NUMBERED = {f"a{number}": 1 for number in range(MANY // 4)}
PAIRED = "a" * 2048
EMBEDDINGS, CHAT, COMPLETIONS = "/v1/embeddings", "/v1/chat/completions", "/v1/completions"
RESPONSES, LABELS, RERANK, SCORE = "/v1/responses", "/v1/classifications", "/v1/rerank", "/v1/score"


def chat(**fields: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": [{"role": "user", "content": "a"}], **fields}


def said(*content: Any) -> list[Any]:
    return [{"role": "user", "content": list(content)}]


TEXT_PART = {"type": "input_text", "text": ""}
CALL = {"type": "function_call", "call_id": "", "name": "f", "arguments": ""}
WEBHOOK = {"url": "https://a.example", "events": [1] * MANY}
PLACES = {"input": "file:///a", "output": "file:///b"}
QUICK: dict[str, tuple[str | type, dict[str, Any]]] = {
    "chat content": chat(messages=said(*[1] * MANY)),
    "chat messages": chat(messages=[1] * MANY),
    "chat logit_bias": chat(logit_bias=NUMBERED),
    "completions tokens": (COMPLETIONS, {"prompt": [-1] * MANY}),
    "completions tokens without an end": (COMPLETIONS, {"prompt": [[1], [*[1] * MANY, -1]]}),
    "responses parts without an end": (RESPONSES, {"input": said(*[TEXT_PART] * MANY, 1)}),
    "responses calls": (RESPONSES, {"input": [CALL] * MANY}),
    "embeddings tokens": (EMBEDDINGS, {"input": [[*[1] * MANY, "a"]]}),
    "score text_2": (SCORE, {"text_1": PAIRED * 1000, "text_2": ["a"] * 2048}),
    "rerank documents": (RERANK, {"query": "a", "documents": [1] * MANY}),
    "job unknown fields": (JobCreate, {"endpoint": EMBEDDINGS, **NUMBERED}),
    "upload part_ids": (UploadComplete, {"part_ids": [1] * MANY}),
}
MORE: dict[str, tuple[str | type, dict[str, Any]]] = {
    "chat content parts": chat(messages=said(*[{}] * MANY)),
    "chat empty messages": chat(messages=[{}] * MANY),
    "chat stop": chat(stop=[1] * MANY),
    "completions prompts": (COMPLETIONS, {"prompt": [[]] * MANY}),
    "completions texts": (COMPLETIONS, {"prompt": [""] * MANY}),
    "responses items": (RESPONSES, {"input": [1] * MANY}),
    "responses messages without an end": (
        RESPONSES,
        {"input": [{"role": "user", "content": ""}] * MANY + [1]},
    ),
    "responses parts": (RESPONSES, {"input": said(*[{}] * MANY)}),
    "responses include": (RESPONSES, {"input": "a", "include": [1] * MANY}),
    "responses metadata": (RESPONSES, {"input": "a", "metadata": NUMBERED}),
    "responses tools": (RESPONSES, {"input": "a", "tools": [{}] * MANY}),
    "embeddings inputs": (EMBEDDINGS, {"input": [{}] * MANY}),
    "labels inputs": (LABELS, {"input": [{}] * MANY}),
    "labels pairs": (LABELS, {"input": [{"text": "a", "text_pair": 1}] * 2048}),
    "rerank document texts": (RERANK, {"query": "a", "documents": ["a"] * MANY}),
    "rerank a long query": (RERANK, {"query": PAIRED * 1000, "documents": ["a"] * 2048}),
    "score text_1": (SCORE, {"text_1": [1] * MANY, "text_2": "a"}),
    "job metadata": (JobCreate, {"endpoint": EMBEDDINGS, **PLACES, "metadata": NUMBERED}),
    "job events": (JobCreate, {"endpoint": EMBEDDINGS, "body": {}, "webhook": WEBHOOK}),
    "batch metadata": (
        BatchCreate,
        {
            "input_file_id": "file-1",
            "endpoint": EMBEDDINGS,
            "completion_window": "24h",
            "metadata": NUMBERED,
        },
    ),
    "upload numbers": (UploadComplete, {"part_ids": [1] * 10_000}),
}


def refusal(kind: str | type, text: str) -> str:
    """The message with which a body is refused, of a route for models or of one of ours."""
    parse: Any = endpoints.named(kind).parse if isinstance(kind, str) else partial(parsed, kind)
    with pytest.raises(InvalidRequest) as refused:
        parse(json.loads(text))
    return refused.value.message


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in MORE)]
)
def test_a_body(name: str) -> None:
    kind, body = (QUICK | MORE)[name]
    text = json.dumps({"model": "m"} | body if isinstance(kind, str) else body)

    in_child(refusal, kind, text, cpu_s=1, memory_bytes=COST_FACTOR * len(text))
