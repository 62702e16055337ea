"""HEAD on every GET route: the status and headers that GET would have, without the body (RFC 9110, 9.3.2)."""

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ROUTED: Final = ("route", "endpoint", "path_params")  # what the router adds to a scope


class _HeadSent(Exception):
    """The headers are sent; the rest of the answer need not be made."""


class HeadRequests:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send(message)
            await send({"type": "http.response.body", "body": b""})
            raise _HeadSent

        as_get = dict(scope, method="GET")  # a copy: the server must still know that no body follows
        try:
            await self._app(as_get, receive, send_head)
        except* _HeadSent:  # a stream raises it from within a group
            pass
        finally:
            scope.update({name: as_get[name] for name in _ROUTED if name in as_get})
