"""Requests as endpoints read them, and the fields that are refused."""

from typing import Any

import pytest

from nightshift import endpoints
from nightshift.errors import InvalidRequest

MESSAGE = {"role": "user", "content": "a"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": [MESSAGE]},
    "/v1/completions": {"model": "m", "prompt": "p"},
    "/v1/detokenize": {"model": "m", "tokens": [5]},
    "/v1/rerank": {"model": "m", "query": "a", "documents": ["b"]},
    "/v1/score": {"model": "m", "text_1": "a", "text_2": "b"},
}


def body_of(route: str) -> dict[str, Any]:
    """The smallest request of an endpoint."""
    return BODIES.get(route) or endpoints.get(route).row_template("m", "a")


def parsed(route: str, **fields: Any) -> Any:
    """The smallest request with these fields as well, or instead."""
    return endpoints.get(route).parse(body_of(route) | fields)


def refused(route: str, **fields: Any) -> InvalidRequest:
    """The refusal of such a request."""
    with pytest.raises(InvalidRequest) as refusal:
        parsed(route, **fields)
    return refusal.value
