"""Holds answers against the OpenAPI document."""

import re
from functools import cache
from typing import Any

import httpx
from starlette.routing import compile_path

from api.app import create_app
from api.services.services import AppSettings


@cache
def described_paths() -> dict[str, Any]:
    """The operations of the OpenAPI document, by path and method."""
    paths: dict[str, Any] = create_app(AppSettings()).openapi()["paths"]
    return paths


@cache
def _declared() -> list[tuple[re.Pattern[str], dict[str, set[int]]]]:
    """The statuses by method of each path's pattern."""
    return [
        (
            compile_path(path)[0],
            {
                name.upper(): {int(status) for status in operation["responses"]}
                for name, operation in operations.items()
            },
        )
        for path, operations in sorted(described_paths().items(), key=lambda item: "{" in item[0])
    ]


def check_declared(answer: httpx.Response) -> None:
    """The status of a described route is one of those that are declared for it."""
    request = answer.request
    method = "GET" if request.method == "HEAD" else request.method
    for pattern, operations in _declared():
        if pattern.match(request.url.path) and method in operations:
            assert answer.status_code in operations[method], f"{method} {request.url.path}: {answer}"
            return
