"""The parameters of handlers, by type.

    def handler(services: ServicesDep, caller: CallerDep, body: BodyDep, page: PageDep) -> Response

The caller is authenticated before the body is read.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

from fastapi import Depends, Header, Query, Request
from fastapi.dependencies.models import Dependant
from pydantic import TypeAdapter, ValidationError

from api.access.authentication import Authenticator, Caller
from api.access.quotas import take_rates
from api.access.scopes import check_scope, needed_scope
from api.access.slots import slots_of_body, slots_of_request
from api.middleware.boundary import answer_headers, held
from api.middleware.request_bodies import parse_json_object
from api.responses.times import EPOCH_MAX_S
from api.services.body_turns import SMALL_BYTES
from api.services.services import Services
from nightshift.errors import InvalidRequest, NotFound
from nightshift.jobs import Job, JsonObject
from nightshift.store import Transaction
from nightshift.tenants.keys import Scope

LIST_LIMIT: Final = 20
LIST_LIMIT_MAX: Final = 100
PAGE_BYTES_MAX: Final = 998_000  # of a list's elements: with what is around them, less than 1 MB
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
    _check_query(request)
    if "\0" in request.url.path or b"%00" in request.scope["query_string"]:
        raise InvalidRequest("A URL may not contain NUL characters.")  # PostgreSQL cannot look for one
    caller = await authenticator.caller(authorization)
    check_scope(request, caller)
    services.slots.hold(caller, slots_of_request(request), held(request))
    return caller


CallerDep = Annotated[Caller, Depends(authenticated)]


def _query_parameters(dependant: Dependant) -> dict[str, bool]:
    """The names in the OpenAPI document, which takes long to make, and whether each may be repeated."""
    known = {field.alias: _is_list(field.field_info.annotation) for field in dependant.query_params}
    for each in dependant.dependencies:
        known |= _query_parameters(each)
    return known


def _is_list(annotation: Any) -> bool:
    return any(get_origin(each) is list for each in (annotation, *get_args(annotation)))


def _check_query(request: Request) -> None:
    """Raises InvalidRequest for parameters that the route does not have, or has once: one that is misspelt or
    the first of two would be ignored, and the job would run.
    """
    if not request.query_params:
        return
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
    length = request.headers.get("content-length", "")
    bytes_max = services.settings.api.body_bytes_max
    announced = min(int(length), bytes_max) if length.isdecimal() else bytes_max
    held(request).enter_context(services.body_memory.reserved(caller.tenant_id, announced))
    raw = await request.body()
    request.state.body_bytes = len(raw)
    if len(raw) <= SMALL_BYTES:
        body = parse_json_object(raw)
    else:
        body = await services.body_turns.run(caller.tenant_id, len(raw), lambda: parse_json_object(raw))
    if names := slots_of_body(body):
        services.slots.hold(caller, names, held(request))
    await _take_rates(request, services, caller, body, len(raw))
    return body


BodyDep = Annotated[JsonObject, Depends(json_object)]


async def submission(request: Request) -> tuple[Services, Caller, JsonObject]:
    """The parameters of a handler that submits, for a plain route (`api/plain_routes.py`)."""
    services = await services_of(request)
    caller = await authenticated(request, services, request.headers.get("authorization"))
    return services, caller, await json_object(request, services, caller)


async def checked(request: Request, services: Services, caller: Caller, check: Callable[[], T]) -> T:
    """Runs `check` in a thread, for a large body in its tenant's turn, and returns its result."""
    size_bytes: int = request.state.body_bytes
    return await services.body_turns.run(caller.tenant_id, size_bytes, check)


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
    if request.method == "POST" and needed_scope(request) is Scope.SUBMIT:
        body, size_bytes = ({}, 0) if is_dry_run(request) else (body, size_bytes)  # it costs no tokens
        await take_rates(services.rate_limits, caller, body, size_bytes, answer_headers(request))


@dataclass(frozen=True)
class Page:
    """Up to `limit` elements after the one with the id `after`."""

    limit: int
    after: str | None


async def _page(
    limit: Annotated[int, Query(ge=1, le=LIST_LIMIT_MAX)] = LIST_LIMIT, after: str | None = None
) -> Page:
    return Page(limit, after)


PageDep = Annotated[Page, Depends(_page)]
DryRunDep = Annotated[
    bool, Query(alias="dry_run", description="Check everything, look at the input, and submit nothing.")
]


def is_dry_run(request: Request) -> bool:
    """What `DryRunDep` is; False for a value that is refused."""
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
    """A page in the list envelope, cut to `PAGE_BYTES_MAX`.

    `elements` has one more than `limit` if there is a next page.
    """
    data = list(within(PAGE_BYTES_MAX, elements[:limit]))
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(elements) > len(data),
    }


def within(bytes_max: int, elements: Iterable[JsonObject]) -> Iterator[JsonObject]:
    """The first elements whose JSON is at most so long together, but at least one."""
    held_bytes = 0
    for number, element in enumerate(elements):
        held_bytes += len(json.dumps(element, ensure_ascii=False).encode(errors="surrogatepass"))
        if number and held_bytes > bytes_max:
            return
        yield element
