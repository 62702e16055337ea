"""Routes that give a handler its parameters themselves: FastAPI's resolver takes longer than a submission's
transaction.

    router = APIRouter(route_class=DirectRoute)

These parameters are the request, those of `api/dependencies.py` about the caller and the body, and headers
and path parameters that are text. They are declared and documented as everywhere else. A handler with any
other, and a request with a query, get all from FastAPI.
"""

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, Final, get_args, get_origin

from fastapi import Request
from fastapi.params import Depends, Header, Query
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from api.dependencies import authenticated, json_object, json_object_if_any, services_of

Handler = Callable[..., Any]
Read = Callable[[Request], Any]

_BODIES: Final = (json_object, json_object_if_any)


class DirectRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler, take, otherwise = self.endpoint, _taker(self.endpoint), super().get_route_handler()
        if take is None:
            return otherwise
        is_async = inspect.iscoroutinefunction(handler)

        async def handle(request: Request) -> Response:
            if request.scope["query_string"]:
                return await otherwise(request)
            values = await take(request)
            answer: Response = (
                await handler(**values) if is_async else await run_in_threadpool(handler, **values)
            )
            return answer

        return handle


def _taker(handler: Handler) -> Callable[[Request], Awaitable[dict[str, Any]]] | None:
    """What takes a handler's parameters from a request; None if it has others."""
    dependencies: dict[Any, str] = {}
    reads: dict[str, Read] = {}
    for name, parameter in inspect.signature(handler, eval_str=True).parameters.items():
        dependency = _dependency(parameter)
        read = _read(parameter)
        if dependency is not None:
            dependencies[dependency] = name
        elif read is not None:
            reads[name] = read
        else:
            return None
    services_as, caller_as = dependencies.pop(services_of, None), dependencies.pop(authenticated, None)
    body_of = next((body_of for body_of in _BODIES if body_of in dependencies), None)
    body_as = None if body_of is None else dependencies.pop(body_of)
    if dependencies:
        return None

    async def take(request: Request) -> dict[str, Any]:
        values: dict[str, Any] = {}
        services = await services_of(request)
        if services_as is not None:
            values[services_as] = services
        if caller_as is not None or body_of is not None:
            caller = await authenticated(request, services, request.headers.get("authorization"))
            if caller_as is not None:
                values[caller_as] = caller
            if body_of is not None and body_as is not None:
                values[body_as] = await body_of(request, services, caller)
        for name, read in reads.items():
            values[name] = read(request)
        return values

    return take


def _dependency(parameter: inspect.Parameter) -> Any:
    """What `Depends` names; None for a parameter without one."""
    if get_origin(parameter.annotation) is not Annotated:
        return None
    return next(
        (each.dependency for each in get_args(parameter.annotation) if isinstance(each, Depends)), None
    )


def _read(parameter: inspect.Parameter) -> Read | None:
    name, annotation, default = parameter.name, parameter.annotation, parameter.default
    if annotation is Request:
        return lambda request: request
    if annotation is str and default is parameter.empty:
        return lambda request: request.path_params[name]
    if get_origin(annotation) is Annotated and default is not parameter.empty:
        kind, *about = get_args(annotation)
        if any(isinstance(each, Query) for each in about):
            return lambda request: default
        if kind in (str, str | None) and any(isinstance(each, Header) for each in about):
            header = name.replace("_", "-")
            return lambda request: request.headers.get(header, default)
    return None
