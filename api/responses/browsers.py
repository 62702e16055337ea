"""Which requests are answered with a page, also where they fail."""

from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

API: Final = "/v1/"


def route_path(scope: Scope) -> str:
    """Without the path at which a proxy has the service."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"


def wants_page(scope: Scope) -> bool:
    """Whether a browser asks, and not at one of the API's routes."""
    accepts = Headers(scope=scope).get("accept", "")
    return "text/html" in accepts and not route_path(scope).startswith(API)
