"""Routes whose requests without a query are answered by a function of the request alone.

For the paths that submit: FastAPI's resolver of parameters adds a fifth to an admission's processor time.
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

Answer = Callable[[Request], Awaitable[Response]]


def plain_route(answer: Answer) -> type[APIRoute]:
    """A route class: the handler is documented as everywhere else, and is given requests with a query."""

    class PlainRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            resolved = super().get_route_handler()

            async def handle(request: Request) -> Response:
                return await (resolved if request.scope["query_string"] else answer)(request)

            return handle

    return PlainRoute
