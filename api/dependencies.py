"""The parameters of handlers, by type.

    def handler(services: ServicesDep, caller: CallerDep, body: BodyDep, page: PageDep) -> Response

The caller is authenticated before the body is read.
"""

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, Header, Query, Request
from starlette.concurrency import run_in_threadpool

from api.authentication import Authenticator, Caller
from api.middleware.limits import parse_json_object
from api.services import Services
from api.tenants.scopes import check_scope
from nightshift.errors import InvalidRequest, NotFound
from nightshift.jobs import Job, JsonObject
from nightshift.store import Transaction

LIST_LIMIT: Final = 20
LIST_LIMIT_MAX: Final = 100
PAGE_BYTES_MAX: Final = 998_000  # of a list's elements: with what is around them, less than 1 MB
FORM_TYPES: Final = ("application/x-www-form-urlencoded", "multipart/form-data")
PARSE_INLINE_BYTES_MAX: Final = 64 * 1024  # larger bodies are parsed in a thread


# Asynchronous where nothing blocks: FastAPI runs other functions in a thread, and the switch takes longer.


async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


ServicesDep = Annotated[Services, Depends(_services)]


async def _caller(request: Request, authorization: Annotated[str | None, Header()] = None) -> Caller:
    authenticator: Authenticator = request.app.state.authenticator
    _check_query(request)
    if "\0" in request.url.path or b"%00" in request.scope["query_string"]:
        raise InvalidRequest("A URL may not contain NUL characters.")  # PostgreSQL cannot look for one
    caller = await authenticator.caller(authorization)
    check_scope(request, caller)
    return caller


CallerDep = Annotated[Caller, Depends(_caller)]


def _check_query(request: Request) -> None:
    """Raises InvalidRequest for parameters that the route does not have: one that is misspelt would be
    ignored, and the job would run.
    """
    if not request.query_params:
        return
    operation = request.app.openapi()["paths"][request.scope["route"].path_format][request.method.lower()]
    known = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}
    unknown = next((name for name in request.query_params if name not in known), None)
    if unknown is not None:
        raise InvalidRequest(
            f"Unknown parameter: '{unknown}'. Known are: {', '.join(sorted(known)) or 'none'}.",
            param=unknown,
            code="unknown_parameter",
        )


async def _json_object(
    request: Request, services: ServicesDep, caller: CallerDep
) -> AsyncIterator[JsonObject]:
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
    with services.body_memory.reserved(caller.tenant_id, announced):
        raw = await request.body()
        if len(raw) <= PARSE_INLINE_BYTES_MAX:
            yield parse_json_object(raw)
        else:
            yield await run_in_threadpool(parse_json_object, raw)


BodyDep = Annotated[JsonObject, Depends(_json_object)]


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
