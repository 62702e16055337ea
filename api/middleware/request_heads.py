"""Refuses requests whose head is too large, or leaves open where the request ends.

A proxy and this server could read such a request as two different ones (RFC 9112, 6.3), so the connection
ends with the answer. It is checked here and not in the HTTP implementation, so that it holds for each.
"""

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from api.responses.errors import AmbiguousLength, HeadTooLarge, error_response

HEADERS_MAX: Final = 100  # as Apache's; browsers and the official clients send about 20
HEAD_BYTES_MAX: Final = 16 * 1024  # as Node's; h11 reads on until so many bytes if the end is missing


class RequestHeads:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = _refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await error_response(refusal)(scope, receive, send)


def _refusal(scope: Scope) -> HeadTooLarge | AmbiguousLength | None:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    if len(headers) > HEADERS_MAX:
        return HeadTooLarge(
            f"The request has {len(headers)} headers, more than the {HEADERS_MAX} accepted here."
        )
    target = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    if target + sum(len(name) + len(value) + 4 for name, value in headers) > HEAD_BYTES_MAX:
        return HeadTooLarge(
            f"The request's target and headers have more than the {HEAD_BYTES_MAX} bytes accepted here."
        )
    names = {name for name, _ in headers}
    if b"transfer-encoding" in names:
        if b"content-length" in names:
            return AmbiguousLength()
        if scope["http_version"] == "1.0":
            return AmbiguousLength("HTTP/1.0 has no Transfer-Encoding: send a Content-Length.")
    return None
