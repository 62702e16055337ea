"""The endpoints' routes, whole or streamed."""

import math
from dataclasses import replace

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from api.dependencies import BodyDep, CallerDep, EncodedBody, ServicesDep, Submission, plain_route
from api.jobs.online import Waiting, answer
from api.openai.streaming import Wanted, streamed
from api.responses.streams import recorded
from nightshift import endpoints
from nightshift.endpoints import Endpoint
from nightshift.endpoints.requests import ModelRequest
from nightshift.endpoints.responses import Responses
from nightshift.endpoints.texts.generation import GenerationRequest, TextEndpoint
from nightshift.jobs import Face, JobSpec, JsonObject, NewJob
from nightshift.jobs.json_text import fingerprint
from nightshift.lifecycle.submission import new_job

router = APIRouter(tags=["OpenAI"])


def _route(endpoint: Endpoint, route: str, defaults: JsonObject) -> None:
    """One route of an endpoint, with the values of fields that are not given there."""

    async def answered(submission: Submission) -> Response:
        if defaults:
            submission = replace(submission, body=defaults | submission.body)
        return await _infer(endpoint, submission)

    async def create(request: Request, services: ServicesDep, caller: CallerDep, body: BodyDep) -> Response:
        return await answered(Submission(request, services, caller, body))

    async def plain(request: Request) -> Response:
        return await answered(await Submission.read(request))

    router.add_api_route(
        route,
        create,
        methods=["POST"],
        name=endpoint.operation,
        summary=endpoint.summary,
        include_in_schema=route == endpoint.route,
        route_class_override=plain_route(plain),
    )


for _endpoint in endpoints.every():
    if not isinstance(_endpoint, Responses):  # which are stored: `responses.py`
        _route(_endpoint, _endpoint.route, {})
    for _alias, _defaults in _endpoint.aliases.items():
        _route(_endpoint, _alias, _defaults)


async def _infer(endpoint: Endpoint, submission: Submission) -> Response:
    """Accepts a request, rings for it, and waits for its answer.

    Once it is accepted, it runs even if Redis fails.
    """
    services, is_disconnected = submission.services, submission.request.is_disconnected
    async with services.body_turns.beginning.hold(submission.caller.tenant_id):
        request, new = await submission.checked(lambda: _checked(endpoint, submission))
        accepted = await run_in_threadpool(services.group_commit.submit, new, submission.body)
    waiting = Waiting.on(accepted.submitted)
    if request.streams:
        assert isinstance(endpoint, TextEndpoint), "only requests for text can ask for a stream"
        assert isinstance(request, GenerationRequest), "parsed by this endpoint"
        return await streamed(services, waiting, Wanted(endpoint, request), is_disconnected)
    return await recorded(await answer(services, waiting, is_disconnected))


def _checked(endpoint: Endpoint, submission: Submission) -> tuple[ModelRequest, NewJob]:
    services, caller, body = submission.services, submission.caller, submission.body
    request = endpoint.parse(body)
    new = online_job(endpoint, request, body, caller.tenant_id, services.settings.api.online_wait_s)
    return request, services.submitter.check(new, caller.priority_ceiling, request=request)


def online_job(
    endpoint: Endpoint,
    request: ModelRequest,
    body: JsonObject,
    tenant_id: str,
    wait_s: float,
    *,
    storing: JsonObject | None = None,
) -> NewJob:
    """A job of one request, for whose answer the client waits `wait_s`."""
    encoded = EncodedBody.from_json(body)
    return new_job(
        tenant_id,
        Face.OPENAI,
        JobSpec(
            endpoint=endpoint.route,
            completion_window_s=math.ceil(wait_s),
            service_tier=request.service_tier,
            storing=storing,
        ),
        fingerprint=fingerprint(endpoint.route, {"body": encoded.sha256}),
        priority=request.priority_class,
        model=request.model,
        body_bytes=encoded.size_bytes,
    )
