"""The parameters of handlers, by type.

    def handler(services: ServicesDep, caller: CallerDep, body: BodyDep, listing: ListingDep) -> Response

The caller is authenticated before the body is read.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

from fastapi import Depends, Header, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError

from api.access import STREAMS, Authenticator, Caller, check_scope, scope_of, slots_of_request, take_rates
from api.middleware.boundary import RequestRecord
from api.middleware.request_bodies import parse_json_object
from api.middleware.turns import SMALL_BYTES
from api.responses.times import EPOCH_MAX_S, from_seconds
from api.services.services import Services
from nightshift.errors import InvalidRequest, NotFound
from nightshift.jobs import Job, JsonObject
from nightshift.store import Transaction
from nightshift.tenants.keys import Scope

LIST_LIMIT: Final = 20
LIST_LIMIT_MAX: Final = 100
LISTING_BYTES_MAX: Final = 998_000  # of a list's elements: with what is around them, less than 1 MB
FORM_TYPES: Final = ("application/x-www-form-urlencoded", "multipart/form-data")

_BOOL: Final = TypeAdapter(bool)

T = TypeVar("T")

EpochSeconds = Annotated[int, Query(ge=0, le=EPOCH_MAX_S)]

# Asynchronous where nothing blocks: FastAPI runs other functions in a thread, and the switch takes longer.


async def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(services_of)]


async def authenticated(
    request: Request, services: ServicesDep, authorization: Annotated[str | None, Header()] = None
) -> Caller:
    """The authenticated caller, who has one request more in progress until it is answered."""
    authenticator: Authenticator = request.app.state.authenticator
    record: RequestRecord = request.state.record
    if request.scope["query_string"]:
        _check_query(request)
    if "\0" in request.url.path or b"%00" in request.scope["query_string"]:
        raise InvalidRequest("A URL may not contain NUL characters.")  # PostgreSQL cannot look for one
    caller = await authenticator.caller(authorization)
    check_scope(request, caller)
    services.slots.hold(caller, slots_of_request(request), record.held)
    return caller


CallerDep = Annotated[Caller, Depends(authenticated)]


def _query_parameters(dependant: Dependant) -> dict[str, bool]:
    """The names in the OpenAPI document, which takes long to make, and whether each may be repeated."""
    known = {field.alias: _is_list(field.field_info.annotation) for field in dependant.query_params}
    for dependency in dependant.dependencies:
        known |= _query_parameters(dependency)
    return known


def _is_list(annotation: Any) -> bool:
    return any(get_origin(part) is list for part in (annotation, *get_args(annotation)))


def _check_query(request: Request) -> None:
    """Raises InvalidRequest for parameters that the route does not have, or has once: one that is misspelt or
    the first of two would be ignored, and the job would run.
    """
    known = _query_parameters(request.scope["route"].dependant)
    counts = Counter(name for name, _ in request.query_params.multi_items())
    unknown = next((name for name in counts if name not in known), None)
    repeated = next((name for name, count in counts.items() if count > 1 and not known.get(name)), None)
    if unknown is None and repeated is not None:
        raise InvalidRequest(f"'{repeated}' may be given once only.", param=repeated)
    if unknown is not None:
        raise InvalidRequest(
            f"Unknown parameter: '{unknown}'. Known are: {', '.join(sorted(known)) or 'none'}.",
            param=unknown,
            code="unknown_parameter",
        )


async def json_object(request: Request, services: ServicesDep, caller: CallerDep) -> JsonObject:
    """The body, counted in memory until the request is answered."""
    if request.headers.get("content-type", "").lower().startswith(FORM_TYPES):
        raise InvalidRequest(
            "The body must be JSON, under Content-Type: application/json.",
            param="Content-Type",
            code="invalid_content_type",
        )
    record: RequestRecord = request.state.record
    length, bytes_max = request.headers.get("content-length", ""), services.settings.api.body_bytes_max
    announced = min(int(length), bytes_max) if length.isdecimal() else bytes_max
    if announced > SMALL_BYTES:
        record.held.enter_context(services.body_memory.reserved(caller.tenant_id, announced))
    raw = await request.body()
    record.body_bytes = len(raw)
    if len(raw) <= SMALL_BYTES:
        body = parse_json_object(raw)
    else:
        body = await services.body_turns.run(caller.tenant_id, len(raw), lambda: parse_json_object(raw))
    if body.get("stream") is True:
        services.slots.hold(caller, (STREAMS,), record.held)
    await _take_rates(request, services, caller, body, len(raw))
    return body


BodyDep = Annotated[JsonObject, Depends(json_object)]


async def json_object_if_any(request: Request, services: ServicesDep, caller: CallerDep) -> JsonObject:
    """The body; an empty object where there is none."""
    if "transfer-encoding" not in request.headers and request.headers.get("content-length", "0") == "0":
        await _take_rates(request, services, caller, {}, 0)
        return {}
    return await json_object(request, services, caller)


OptionalBodyDep = Annotated[JsonObject, Depends(json_object_if_any)]


async def _take_rates(
    request: Request, services: Services, caller: Caller, body: JsonObject, size_bytes: int
) -> None:
    quotas = caller.quotas
    if quotas.requests_per_minute is None and quotas.tokens_per_minute is None:
        return
    is_submission = scope_of(request.method, request.scope["route"].path_format) is Scope.SUBMIT
    if request.method == "POST" and is_submission:
        body, size_bytes = ({}, 0) if is_dry_run(request) else (body, size_bytes)  # it costs no tokens
        headers = request.state.record.answer_headers
        await take_rates(services.rate_limits, caller, body, size_bytes, headers)


# -- the hot path --


@dataclass(frozen=True)
class Submission:
    """The parameters of a handler that submits."""

    request: Request
    services: Services
    caller: Caller
    body: JsonObject

    @classmethod
    async def read(cls, request: Request) -> "Submission":
        """Reads a request on a plain route: authenticates its caller first."""
        services: Services = request.app.state.services
        caller = await authenticated(request, services, request.headers.get("authorization"))
        return cls(request, services, caller, await json_object(request, services, caller))

    async def checked(self, check: Callable[[], T]) -> T:
        """Runs `check` in a thread, for a large body in its tenant's turn, and returns its result."""
        record: RequestRecord = self.request.state.record
        return await self.services.body_turns.run(self.caller.tenant_id, record.body_bytes, check)


@dataclass(frozen=True)
class EncodedBody:
    """The size and digest of a request's body, from one encoding. The order of keys makes no difference."""

    size_bytes: int  # as JSON, in ASCII
    sha256: str

    @classmethod
    def from_json(cls, body: JsonObject) -> "EncodedBody":
        text = json.dumps(body, sort_keys=True)
        return cls(len(text), hashlib.sha256(text.encode()).hexdigest())


def plain_route(answer: Callable[[Request], Awaitable[Response]]) -> type[APIRoute]:
    """A route class whose requests without a query are answered by a function of the request alone.

    FastAPI's resolver of parameters adds a fifth to an admission's processor time. The handler is documented
    as everywhere else, and is given requests with a query.
    """

    class PlainRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            resolved = super().get_route_handler()

            async def handle(request: Request) -> Response:
                return await (resolved if request.scope["query_string"] else answer)(request)

            return handle

    return PlainRoute


# -- lists --


@dataclass(frozen=True)
class Listing:
    """Up to `limit` elements of a list, after the one with the id `after`."""

    limit: int
    after: str | None

    def start(self, find: Callable[[str], T]) -> T | None:
        """The element to go on after. `find` raises NotFound."""
        return None if self.after is None else find(self.after)

    def json(self, elements: Sequence[JsonObject]) -> JsonObject:
        """The list envelope. `elements` has one more than `limit` if there are more."""
        return list_json(elements, self.limit)


async def _listing(
    limit: Annotated[int, Query(ge=1, le=LIST_LIMIT_MAX)] = LIST_LIMIT, after: str | None = None
) -> Listing:
    return Listing(limit, after)


ListingDep = Annotated[Listing, Depends(_listing)]


async def _created_between(
    created_after: EpochSeconds | None = None, created_before: EpochSeconds | None = None
) -> tuple[datetime | None, datetime | None]:
    """The first is inclusive and the second exclusive, for periods side by side. Raises InvalidRequest."""
    if created_after is not None and created_before is not None and created_after >= created_before:
        raise InvalidRequest(
            f"Invalid 'created_before': {created_before} is not after 'created_after', {created_after}.",
            param="created_before",
        )
    first = None if created_after is None else from_seconds(created_after)
    return first, None if created_before is None else from_seconds(created_before)


CreatedBetweenDep = Annotated[tuple[datetime | None, datetime | None], Depends(_created_between)]
DryRunDep = Annotated[
    bool, Query(alias="dry_run", description="Check everything, look at the input, and submit nothing.")
]


def is_dry_run(request: Request) -> bool:
    """The value of `DryRunDep`; False for one that is refused."""
    try:
        return _BOOL.validate_python(request.query_params.get("dry_run", False))
    except ValidationError:
        return False


def get_job(tx: Transaction, caller: Caller, job_id: str, param: str = "id") -> Job:
    """A job of the caller's tenant. Raises NotFound."""
    job = tx.jobs.get(caller.tenant_id, job_id)
    if job is None:
        raise NotFound(f"No such Job object: {job_id}", param=param)
    return job


def list_json(elements: Sequence[JsonObject], limit: int) -> JsonObject:
    """The list envelope around `elements`, cut to `limit` and `LISTING_BYTES_MAX`.

    `elements` has one more than `limit` if there are more.
    """
    data = list(_within(LISTING_BYTES_MAX, elements[:limit]))
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(elements) > len(data),
    }


def _within(bytes_max: int, elements: Iterable[JsonObject]) -> Iterator[JsonObject]:
    """The first elements whose JSON has at most so many bytes together, but at least one."""
    total_bytes = 0
    for number, element in enumerate(elements):
        total_bytes += len(json.dumps(element, ensure_ascii=False).encode(errors="surrogatepass"))
        if number and total_bytes > bytes_max:
            return
        yield element
