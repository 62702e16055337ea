"""POST /v1/chat/completions, /v1/completions, /v1/embeddings: one request, one answer, whole or streamed."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from api.authentication import Caller
from api.dependencies import BodyDep, CallerDep, ServicesDep
from api.jobs.online import Waiting, accept, answer
from api.openai.adapter import online_request
from api.openai.streaming import Wanted, streamed
from api.services import Services
from nightshift.endpoints.requests import Request as ModelRequest
from nightshift.endpoints.requests import parse_request
from nightshift.jobs import Endpoint, JsonObject

router = APIRouter(tags=["OpenAI"])


@router.post(Endpoint.CHAT, summary="Answer a conversation")
async def create_chat_completion(
    request: Request, services: ServicesDep, caller: CallerDep, body: BodyDep
) -> Response:
    return await _infer(Endpoint.CHAT, request, services, caller, body)


@router.post(Endpoint.COMPLETIONS, summary="Continue a text")
async def create_completion(
    request: Request, services: ServicesDep, caller: CallerDep, body: BodyDep
) -> Response:
    return await _infer(Endpoint.COMPLETIONS, request, services, caller, body)


@router.post(Endpoint.EMBEDDINGS, summary="Turn texts into vectors")
async def create_embeddings(
    request: Request, services: ServicesDep, caller: CallerDep, body: BodyDep
) -> Response:
    return await _infer(Endpoint.EMBEDDINGS, request, services, caller, body)


async def _infer(
    endpoint: Endpoint, request: Request, services: Services, caller: Caller, body: JsonObject
) -> Response:
    asked, waiting = await run_in_threadpool(_accept, endpoint, services, caller, body)
    if asked.streams:
        wanted = Wanted(asked.num_choices, asked.include_usage)
        return await streamed(services, waiting, wanted, request.is_disconnected)
    outcome = await answer(services, waiting, request.is_disconnected)
    return JSONResponse(outcome.body, outcome.status_code)


def _accept(
    endpoint: Endpoint, services: Services, caller: Caller, body: JsonObject
) -> tuple[ModelRequest, Waiting]:
    """Check and record a request. In a thread: a body of megabytes takes its time, and so does a database."""
    asked = parse_request(endpoint, body)
    wait_s = services.settings.api.online_wait_s
    new = services.submitter.check(online_request(endpoint, asked, body, caller.tenant_id, wait_s))
    return asked, accept(services, new, body)
