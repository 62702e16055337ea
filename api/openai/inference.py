"""The endpoints' routes, whole or streamed."""

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from api.access.authentication import Caller
from api.dependencies import BodyDep, CallerDep, ServicesDep, checked, submission
from api.jobs.online import accept, answer
from api.openai.adapter import online_request
from api.openai.streaming import Wanted, streamed
from api.plain_routes import plain_route
from api.responses.large import recorded
from api.services.services import Services
from nightshift import endpoints
from nightshift.endpoints import Endpoint
from nightshift.endpoints.requests import ModelRequest
from nightshift.endpoints.texts.generation import GenerationRequest, TextEndpoint
from nightshift.jobs import JsonObject, NewJob

router = APIRouter(tags=["OpenAI"])


def _route(endpoint: Endpoint) -> None:
    async def create(request: Request, services: ServicesDep, caller: CallerDep, body: BodyDep) -> Response:
        return await _infer(endpoint, request, services, caller, body)

    async def plain(request: Request) -> Response:
        return await _infer(endpoint, request, *await submission(request))

    router.add_api_route(
        endpoint.route,
        create,
        methods=["POST"],
        name=endpoint.operation,
        summary=endpoint.summary,
        route_class_override=plain_route(plain),
    )


for _endpoint in endpoints.every():
    _route(_endpoint)


async def _infer(
    endpoint: Endpoint, request: Request, services: Services, caller: Caller, body: JsonObject
) -> Response:
    async with services.body_turns.beginning.hold(caller.tenant_id):
        asked, new = await checked(
            request, services, caller, lambda: _checked(endpoint, services, caller, body)
        )
        waiting = await run_in_threadpool(accept, services, new, body)
    if asked.streams:
        assert isinstance(endpoint, TextEndpoint), "only requests for text can ask for a stream"
        assert isinstance(asked, GenerationRequest), "parsed by this endpoint"
        return await streamed(services, waiting, Wanted(endpoint, asked), request.is_disconnected)
    outcome = await answer(services, waiting, request.is_disconnected)
    return await recorded(outcome)


def _checked(
    endpoint: Endpoint, services: Services, caller: Caller, body: JsonObject
) -> tuple[ModelRequest, NewJob]:
    asked = endpoint.parse(body)
    wait_s = services.settings.api.online_wait_s
    new = services.submitter.check(
        online_request(endpoint, asked, body, caller.tenant_id, wait_s), caller.priority_ceiling
    )
    return asked, new
