"""Completes the OpenAPI description with the request bodies, which we read ourselves, the key and the
errors.
"""

from collections.abc import Callable, Mapping, Set
from functools import cache
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api.access import scope_of
from api.bodies.files import UploadComplete, UploadCreate
from api.bodies.jobs import BatchCreate, JobCreate, JobRetry, JobUpdate
from api.bodies.schedules import SchedulePut
from api.bodies.tenants import KeyCreate, KeyRotate, TenantCreate, TenantUpdate
from api.bodies.webhooks import (
    WebhookEndpointCreate,
    WebhookEndpointReplay,
    WebhookEndpointRotate,
    WebhookEndpointTest,
    WebhookEndpointUpdate,
)
from nightshift import endpoints
from nightshift.endpoints.texts.generation import TextEndpoint

NEEDS_KEY: Final = frozenset({400, 401, 403, 429, 503})  # 429: a quota; 503: the database is away
NEEDS_JSON: Final = frozenset({408, 413})
NEEDS_OBJECT: Final = frozenset({404})
ASKS_MODEL: Final = frozenset({404, 409, 500, 504})
SUBMITS: Final = frozenset({404, 422})  # an unknown model; an idempotency key used for another request
CHANGES: Final = frozenset({409})

WITHOUT_KEY: Final = {
    "/healthz": frozenset({200}),
    "/readyz": frozenset({200, 503}),
    "/metrics": frozenset({200}),
}
_INFERENCE: Final = frozenset(endpoint.route for endpoint in endpoints.every())
_SUBMITS: Final = frozenset({"/v1/jobs", "/v1/batches"})
_NEVER_CONFLICT: Final = frozenset({"/v1/files", "/v1/files/{file_id}", "/v1/uploads"})
_FURTHER: Final = {
    ("get", "/v1/files/{file_id}/content"): frozenset({206, 416}),
    ("post", "/v1/files"): frozenset({408, 413}),
    ("post", "/v1/uploads/{upload_id}/parts"): frozenset({408, 413}),
    ("post", "/v1/jobs/{job_id}/retry"): frozenset({422}),
    # 200: `Prefer: wait`, and it has ended; 409: another job writes to the output
    ("post", "/v1/jobs"): frozenset({200, 409}),
}


def statuses(method: str, path: str, *, succeeds: Set[int], has_json: bool, has_after: bool) -> Set[int]:
    """Every status of a route. `succeeds`: those it declares; `has_after`: it lists objects after one."""
    if path in WITHOUT_KEY:
        return WITHOUT_KEY[path]
    codes = succeeds | NEEDS_KEY | _FURTHER.get((method, path), frozenset())
    if has_json:
        codes |= NEEDS_JSON
    if "{" in path or has_after:
        codes |= NEEDS_OBJECT
    if method == "post" and path in _INFERENCE:
        codes |= ASKS_MODEL
    if method == "post" and path in _SUBMITS:
        codes |= SUBMITS
    if method != "get" and path not in _INFERENCE | _SUBMITS | _NEVER_CONFLICT:
        codes |= CHANGES
    return codes


_ENDPOINT: Final = "/v1/webhook_endpoints/{webhook_endpoint_id}"

JSON_BODIES: Final[Mapping[str, type[BaseModel]]] = {
    "/v1/jobs": JobCreate,
    "/v1/jobs/{job_id}/retry": JobRetry,
    "/v1/batches": BatchCreate,
    "/v1/uploads": UploadCreate,
    "/v1/uploads/{upload_id}/complete": UploadComplete,
    "/v1/tenants": TenantCreate,
    "/v1/tenants/{tenant}/keys": KeyCreate,
    "/v1/tenants/{tenant}/keys/{key_id}/rotate": KeyRotate,
    "/v1/webhook_endpoints": WebhookEndpointCreate,
    _ENDPOINT: WebhookEndpointUpdate,
    f"{_ENDPOINT}/rotate_secret": WebhookEndpointRotate,
    f"{_ENDPOINT}/test": WebhookEndpointTest,
    f"{_ENDPOINT}/replay": WebhookEndpointReplay,
    **{endpoint.route: endpoint.request_type for endpoint in endpoints.every()},
}
ANSWERS: Final[Mapping[str, type[BaseModel]]] = {
    endpoint.route: endpoint.answer_type for endpoint in endpoints.every() if endpoint.answer_type is not None
}
OPTIONAL_BODIES: Final = frozenset({f"{_ENDPOINT}/rotate_secret", "/v1/jobs/{job_id}/retry"})
PATCHES: Final[Mapping[str, type[BaseModel]]] = {
    "/v1/jobs/{job_id}": JobUpdate,
    "/v1/tenants/{tenant}": TenantUpdate,
}
PUTS: Final[Mapping[str, type[BaseModel]]] = {"/v1/schedules/{schedule_name}": SchedulePut}

STREAMED: Final = frozenset(known.route for known in endpoints.every() if isinstance(known, TextEndpoint))
CONTENT_TYPES: Final = {
    "/metrics": "text/plain",
    "/v1/files/{file_id}/content": "application/octet-stream",
    "/v1/jobs/{job_id}/events": "text/event-stream",
    "/v1/batches/{batch_id}/events": "text/event-stream",
}

_TEXT: Final = {"schema": {"type": "string"}}
_REFERENCE: Final = "#/components/schemas/{model}"

_UPLOAD: Final = {
    "type": "object",
    "required": ["purpose", "file"],
    "properties": {
        "purpose": {"type": "string", "example": "batch"},
        "file": {"type": "string", "format": "binary"},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
    },
}

_PART: Final = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string", "format": "binary"}},
}
_FORMS: Final = {"/v1/files": _UPLOAD, "/v1/uploads/{upload_id}/parts": _PART}

_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def document(app: FastAPI) -> None:
    """Completes the description when it is first requested, and encodes it once."""
    app.openapi = _completing(app.openapi)  # type: ignore[method-assign]
    encoded = cache(lambda: bytes(JSONResponse(app.openapi()).body))

    async def openapi(request: Request) -> Response:
        return Response(encoded(), media_type="application/json")

    app.add_route("/openapi.json", openapi, include_in_schema=False)


def _completing(describe: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    def completed() -> dict[str, Any]:
        description = describe()  # cached by FastAPI
        if "Error" not in description.setdefault("components", {}).setdefault("schemas", {}):
            _complete(description)
        return description

    return completed


def _complete(description: dict[str, Any]) -> None:
    components = description["components"]
    _, defined = models_json_schema(
        [
            *((model, "validation") for model in (*JSON_BODIES.values(), *PATCHES.values(), *PUTS.values())),
            *((model, "serialization") for model in ANSWERS.values()),
        ],
        ref_template=_REFERENCE,
    )
    components["schemas"] |= defined["$defs"] | {"Error": _ERROR}
    for outdated in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(outdated, None)
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            _complete_operation(path, method, operation)


def _complete_operation(path: str, method: str, operation: dict[str, Any]) -> None:
    if path not in WITHOUT_KEY:
        operation["security"] = [{"key": [scope_of(method.upper(), path)]}]
    bodies = {"post": JSON_BODIES, "patch": PATCHES, "put": PUTS}.get(method, {})
    if path in bodies:
        reference = _REFERENCE.format(model=bodies[path].__name__)
        is_required = path not in OPTIONAL_BODIES
        operation["requestBody"] = _body("application/json", {"$ref": reference}, is_required=is_required)
    if method == "post" and path in _FORMS:
        operation["requestBody"] = _body("multipart/form-data", _FORMS[path])
    _complete_responses(path, method, operation, has_json=path in bodies)


def _complete_responses(path: str, method: str, operation: dict[str, Any], *, has_json: bool) -> None:
    """Every status that occurs, and no other."""
    described: dict[str, Any] = operation["responses"]
    described.pop("422", None)  # FastAPI's status for what is a 400 here
    succeeds = {int(status) for status in described}
    query = {field["name"] for field in operation.get("parameters", ()) if field["in"] == "query"}
    error = {"application/json": {"schema": {"$ref": _REFERENCE.format(model="Error")}}}
    success = next(iter(described.values()))
    codes = statuses(method, path, succeeds=succeeds, has_json=has_json, has_after="after" in query)
    for status in sorted(codes - succeeds):
        is_error = status >= 400 and path != "/readyz"
        about = {"description": HTTPStatus(status).phrase, "content": error} if is_error else success
        described.setdefault(str(status), about)
    for code in ("200", "206"):
        if code in described:
            _complete_content(path, method, described[code])


def _complete_content(path: str, method: str, answer: dict[str, Any]) -> None:
    """The content types of an answer that is no JSON, or not always."""
    if method == "post" and path in ANSWERS:
        schema = {"$ref": _REFERENCE.format(model=ANSWERS[path].__name__)}
        streamed = {"text/event-stream": _TEXT} if path in STREAMED else {}
        answer["content"] = {"application/json": {"schema": schema}, **streamed}
    if path in CONTENT_TYPES:
        answer["content"] = {CONTENT_TYPES[path]: _TEXT}


def _body(content_type: str, schema: Mapping[str, Any], *, is_required: bool = True) -> dict[str, Any]:
    return {"required": is_required, "content": {content_type: {"schema": schema}}}
