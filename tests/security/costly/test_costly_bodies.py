"""A body with very many mistakes costs at most 30 times its size and a second of CPU, and is refused."""

import json
from collections.abc import Callable
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


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "a"}], **fields}


NUMBERED = {f"a{number}": 1 for number in range(MANY // 4)}
CHATS = {
    "content": chat(messages=[{"role": "user", "content": [1] * MANY}]),
    "content parts": chat(messages=[{"role": "user", "content": [{}] * MANY}]),
    "messages": chat(messages=[1] * MANY),
    "empty messages": chat(messages=[{}] * MANY),
    "stop": chat(stop=[1] * MANY),
    "logit_bias": chat(logit_bias=NUMBERED),
}
COMPLETIONS = {
    "tokens": {"model": "m", "prompt": [-1] * MANY},
    "prompts": {"model": "m", "prompt": [[]] * MANY},
    "texts": {"model": "m", "prompt": [""] * MANY},
    "tokens without an end": {"model": "m", "prompt": [[1], [*[1] * MANY, -1]]},
}
RESPONSES = {
    "items": {"model": "m", "input": [1] * MANY},
    "messages without an end": {"model": "m", "input": [{"role": "user", "content": ""}] * MANY + [1]},
    "parts": {"model": "m", "input": [{"role": "user", "content": [{}] * MANY}]},
    "parts without an end": {
        "model": "m",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": ""}] * MANY + [1]}],
    },
    "calls": {
        "model": "m",
        "input": [{"type": "function_call", "call_id": "", "name": "f", "arguments": ""}] * MANY,
    },
    "include": {"model": "m", "input": "a", "include": [1] * MANY},
    "metadata": {"model": "m", "input": "a", "metadata": NUMBERED},
    "tools": {"model": "m", "input": "a", "tools": [{}] * MANY},
}
EMBEDDINGS = {
    "tokens": {"model": "m", "input": [[*[1] * MANY, "a"]]},
    "inputs": {"model": "m", "input": [{}] * MANY},
}
PAIRED = "a" * 2048
SCORES = {
    "inputs": ("/v1/classifications", {"model": "m", "input": [{}] * MANY}),
    "pairs": ("/v1/classifications", {"model": "m", "input": [{"text": "a", "text_pair": 1}] * 2048}),
    "documents": ("/v1/rerank", {"model": "m", "query": "a", "documents": [1] * MANY}),
    "document texts": ("/v1/rerank", {"model": "m", "query": "a", "documents": ["a"] * MANY}),
    "a long query": ("/v1/rerank", {"model": "m", "query": PAIRED * 1000, "documents": ["a"] * 2048}),
    "text_1": ("/v1/score", {"model": "m", "text_1": [1] * MANY, "text_2": "a"}),
    "text_2": ("/v1/score", {"model": "m", "text_1": PAIRED * 1000, "text_2": ["a"] * 2048}),
}
JOBS = {
    "unknown fields": {"endpoint": "/v1/embeddings", **NUMBERED},
    "metadata": {
        "endpoint": "/v1/embeddings",
        "input": "file:///a",
        "output": "file:///b",
        "metadata": NUMBERED,
    },
    "events": {
        "endpoint": "/v1/embeddings",
        "body": {},
        "webhook": {"url": "https://a.example", "events": [1] * MANY},
    },
}
BATCHES = {
    "metadata": {"input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h"}
    | {"metadata": NUMBERED},
}
UPLOADS = {"part_ids": {"part_ids": [1] * MANY}, "numbers": {"part_ids": [1] * 10_000}}


def refusal(parse: Callable[[dict[str, Any]], object], text: str) -> str:
    with pytest.raises(InvalidRequest) as refused:
        parse(json.loads(text))
    return refused.value.message


def refusal_of_model_request(route: str, text: str) -> str:
    return refusal(endpoints.named(route).parse, text)


@pytest.mark.parametrize(
    ("route", "body"),
    [
        *(pytest.param("/v1/chat/completions", body, id=f"chat {name}") for name, body in CHATS.items()),
        *(
            pytest.param("/v1/completions", body, id=f"completions {name}")
            for name, body in COMPLETIONS.items()
        ),
        *(pytest.param("/v1/responses", body, id=f"responses {name}") for name, body in RESPONSES.items()),
        *(pytest.param("/v1/embeddings", body, id=f"embeddings {name}") for name, body in EMBEDDINGS.items()),
        *(pytest.param(route, body, id=f"scores {name}") for name, (route, body) in SCORES.items()),
    ],
)
def test_a_model_request(route: str, body: dict[str, Any]) -> None:
    text = json.dumps(body)

    in_child(refusal_of_model_request, route, text, cpu_s=1, memory_bytes=COST_FACTOR * len(text))


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        *(pytest.param(partial(parsed, JobCreate), body, id=f"job {name}") for name, body in JOBS.items()),
        *(
            pytest.param(partial(parsed, BatchCreate), body, id=f"batch {name}")
            for name, body in BATCHES.items()
        ),
        *(
            pytest.param(partial(parsed, UploadComplete), body, id=f"upload {name}")
            for name, body in UPLOADS.items()
        ),
    ],
)
def test_a_job(parse: Callable[[dict[str, Any]], object], body: dict[str, Any]) -> None:
    text = json.dumps(body)

    in_child(refusal, parse, text, cpu_s=1, memory_bytes=COST_FACTOR * len(text))
