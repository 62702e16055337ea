"""Maps exceptions to statuses and the error envelope, without tracebacks, queries or secrets.

{"error": {"message": "…", "type": "invalid_request_error", "param": "limit", "code": "…"}}
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from nightshift import errors
from nightshift.endpoints.answers import error_body
from nightshift.errors import InvalidRequest, NightshiftError
from nightshift.jobs import JsonObject

log = logging.getLogger(__name__)

RETRY_AFTER_S: Final = 2  # while the database, Redis or the object store is away
CLIENT_CLOSED_REQUEST: Final = 499  # only in logs and metrics

# Without this header, the official client retries 409 and 5xx.
NEVER_AGAIN: Final = {"x-should-retry": "false"}


class WaitedTooLong(NightshiftError):
    """The answer did not come within the time this service waits for one. The request was stopped."""

    default_code = "timeout"


class RequestEnded(NightshiftError):
    """The request was cancelled before it had an answer."""

    default_code = "request_cancelled"


class HeadTooLarge(InvalidRequest):
    """The request's head is larger than this service accepts."""

    default_code = "headers_too_large"


class InvalidHttp(InvalidRequest):
    """The request is not HTTP as this service reads it."""

    default_code = "invalid_http"


class AmbiguousLength(InvalidHttp):
    """The request has both a Content-Length and a Transfer-Encoding: where its body ends is ambiguous."""


class StreamInterrupted(NightshiftError):
    """The answer had to be begun again by another worker and came out differently. Ask once more."""

    default_code = "stream_interrupted"


@dataclass(frozen=True)
class ErrorAnswer:
    """An error's status, type and headers."""

    status: int
    type: str
    headers: Mapping[str, str] = field(default_factory=dict)


_INVALID: Final = "invalid_request_error"
_SERVER: Final = "server_error"
_SOON: Final = {"retry-after": str(RETRY_AFTER_S)}

# The nearest base class decides.
_ANSWERS: Final[Mapping[type[BaseException], ErrorAnswer]] = {
    errors.InvalidRequest: ErrorAnswer(400, _INVALID),
    errors.UnknownModel: ErrorAnswer(404, _INVALID),
    errors.RequestTooLarge: ErrorAnswer(413, _INVALID),
    errors.RequestTimedOut: ErrorAnswer(408, _INVALID, {"connection": "close"}),
    HeadTooLarge: ErrorAnswer(431, _INVALID, {"connection": "close"}),
    AmbiguousLength: ErrorAnswer(400, _INVALID, {"connection": "close"}),
    errors.NotAuthenticated: ErrorAnswer(401, "authentication_error", {"www-authenticate": "Bearer"}),
    errors.PermissionDenied: ErrorAnswer(403, "permission_error"),
    errors.NotFound: ErrorAnswer(404, _INVALID),
    errors.ObjectNotFound: ErrorAnswer(404, _INVALID),
    errors.Conflict: ErrorAnswer(409, _INVALID, NEVER_AGAIN),
    errors.IdempotencyKeyReused: ErrorAnswer(422, _INVALID),
    errors.TooManyRequests: ErrorAnswer(429, "rate_limit_error"),
    errors.QuotaExceeded: ErrorAnswer(429, "insufficient_quota"),
    errors.StorageUnavailable: ErrorAnswer(503, _SERVER, _SOON),
    errors.DatabaseUnavailable: ErrorAnswer(503, _SERVER, _SOON),
    errors.DatabaseUnusable: ErrorAnswer(500, _SERVER, NEVER_AGAIN),
    errors.QueueUnavailable: ErrorAnswer(503, _SERVER, _SOON),
    WaitedTooLong: ErrorAnswer(504, _SERVER, NEVER_AGAIN),
    RequestEnded: ErrorAnswer(409, _INVALID, NEVER_AGAIN),
    NightshiftError: ErrorAnswer(500, _SERVER),
}

# Bare: what makes the others may be what has failed.
_PAGE: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Error · Nightshift</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<meta name="color-scheme" content="light dark">'
    '<h1>That did not work</h1><p class="big">{}</p></html>'
)

UNKNOWN_URL: Final = "unknown_url"
API_PREFIX: Final = "/v1/"
_FRAMEWORK_CODES: Final = {404: UNKNOWN_URL, 405: "method_not_allowed"}


def error_response(error: NightshiftError) -> JSONResponse:
    return JSONResponse(error_json(error), status_of(error), headers_of(error))


def error_json(error: NightshiftError) -> JsonObject:
    """The envelope, for errors within a stream."""
    return error_body(message_of(error), _answer(error).type, param=error.param, code=error.code)


def message_of(error: NightshiftError) -> str:
    """The message for a client: without the words of a database's driver, which name addresses and users. The
    log has those.
    """
    kinds = (errors.DatabaseUnavailable, errors.DatabaseUnusable)
    if isinstance(error, kinds) and error.__cause__ is not None:
        log.warning("database unavailable", extra={"action": error.code, "error": error.message})
        return type(error)().message
    return error.message


def status_of(error: NightshiftError) -> int:
    return _answer(error).status


def headers_of(error: NightshiftError) -> dict[str, str]:
    headers = dict(_answer(error).headers)
    if isinstance(error, errors.TooManyRequests):
        headers |= _when_to_retry(error)
    return headers


def unexpected_error(request_id: str, *, as_page: bool = False) -> Response:
    """The 500 for an unexpected error, which the log has under the request's id."""
    message = f"Something went wrong on our side. The operator finds it in the log under {request_id}."
    if as_page:
        return HTMLResponse(_PAGE.format(message), 500, {"content-security-policy": "default-src 'none'"})
    return JSONResponse(error_body(message, _SERVER, code="internal_error"), 500)


def install_error_handlers(app: FastAPI) -> None:
    """Puts the framework's errors in the envelope."""
    app.add_exception_handler(NightshiftError, _on_nightshift_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_parameter)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)


def _when_to_retry(error: errors.TooManyRequests) -> Mapping[str, str]:
    if not error.retry_helps:
        return NEVER_AGAIN
    return {
        "retry-after": str(math.ceil(error.retry_after_s)),
        "retry-after-ms": str(math.ceil(1000 * error.retry_after_s)),
    }


def _answer(error: NightshiftError) -> ErrorAnswer:
    return next(_ANSWERS[kind] for kind in type(error).__mro__ if kind in _ANSWERS)


def _on_nightshift_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, NightshiftError)
    return error_response(error)


def _on_invalid_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(_invalid_parameter(error.errors()[0]))


def on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own errors: unknown routes, wrong methods, invalid forms."""
    assert isinstance(error, HTTPException)
    type = _INVALID if error.status_code < 500 else _SERVER
    code = _FRAMEWORK_CODES.get(error.status_code)
    message = f"{error.detail}: {request.method} {request.url.path}" if code else str(error.detail)
    body = error_body(message, type, code=code)
    return JSONResponse(body, error.status_code, error.headers)


def _on_disconnect(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


def _invalid_parameter(refused: Mapping[str, Any]) -> InvalidRequest:
    """A query parameter or header that FastAPI refused, in OpenAI's words where known."""
    name = str(refused["loc"][1])  # after "query" or "header"; of a repeated one, its place follows
    limits = refused.get("ctx", {})
    match refused["type"]:
        case "less_than_equal":
            text = (
                f"integer above maximum value. Expected a value <= {limits['le']}, but got {refused['input']}"
            )
            return _invalid(name, text + " instead.", "integer_above_max_value")
        case "greater_than_equal":
            text = (
                f"integer below minimum value. Expected a value >= {limits['ge']}, but got {refused['input']}"
            )
            return _invalid(name, text + " instead.", "integer_below_min_value")
        case "missing":
            return InvalidRequest(
                f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter"
            )
        case kind if kind.endswith(("_parsing", "_type")):
            return _invalid(name, f"{refused['msg']}.", "invalid_type")
        case _:
            return _invalid(name, f"{refused['msg']}.", "invalid_value")


def _invalid(name: str, text: str, code: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{name}': {text}", param=name, code=code)


def route_path(scope: Scope) -> str:
    """The path without the prefix at which a proxy has the service."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"


def wants_page(scope: Scope) -> bool:
    """Whether a browser asks, and not at one of the API's routes: it gets a page, also where it fails."""
    accepts = Headers(scope=scope).get("accept", "")
    return "text/html" in accepts and not route_path(scope).startswith(API_PREFIX)
