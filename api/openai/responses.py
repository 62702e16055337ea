"""/v1/responses: create, describe, follow, cancel and delete responses. A stored one is an online job.

Responses in the background outlive the request that created them, and can be read from any event on.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from api.access import STREAMS, Caller, take_rates
from api.dependencies import (
    LIST_LIMIT,
    LIST_LIMIT_MAX,
    BodyDep,
    CallerDep,
    ServicesDep,
    Submission,
    list_json,
    plain_route,
)
from api.jobs.controls import delete_ended
from api.jobs.online import Waiting, answer, outcome_of
from api.openai.inference import online_job
from api.openai.streaming import Wanted, streamed
from api.responses.streams import recorded
from api.services.services import Services
from nightshift import endpoints
from nightshift.endpoints.responses import storing
from nightshift.endpoints.responses.answers import ResponseObject, begun, broken
from nightshift.endpoints.responses.request import ResponsesRequest
from nightshift.endpoints.responses.storing import Storing
from nightshift.endpoints.texts.generation import TextEndpoint
from nightshift.endpoints.texts.streams import StreamEvent
from nightshift.errors import InvalidRequest, NotFound
from nightshift.jobs import Job, JobState, JsonObject, NewJob, RecordedAnswer, StopReason
from nightshift.jobs.json_text import json_bytes, json_text
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle import transitions
from nightshift.store import Transaction

BACKGROUND_WINDOW_S: Final = 86400  # as that of a job of one request

router = APIRouter(tags=["OpenAI"])

_ROUTE: Final = "/v1/responses"
_ENDPOINT: Final = endpoints.get(_ROUTE)


# -- creating --


@dataclass(frozen=True)
class Prepared:
    """A checked request, and the body that its worker gets: with the conversation that it goes on from."""

    request: ResponsesRequest
    storing: Storing
    body: JsonObject
    new: NewJob

    @property
    def wanted(self) -> Wanted:
        return _wanted(self.request, self.storing)


async def create(request: Request, services: ServicesDep, caller: CallerDep, body: BodyDep) -> Response:
    return await _create(Submission(request, services, caller, body))


async def _plain(request: Request) -> Response:
    return await _create(await Submission.read(request))


router.add_api_route(
    _ROUTE,
    create,
    methods=["POST"],
    name=_ENDPOINT.operation,
    summary=_ENDPOINT.summary,
    route_class_override=plain_route(_plain),
)


async def _create(submission: Submission) -> Response:
    services, is_disconnected = submission.services, submission.request.is_disconnected
    tenant_id, turns = submission.caller.tenant_id, services.body_turns
    async with turns.beginning.hold(tenant_id):
        goes_on = submission.body.get("previous_response_id") is not None
        # A short body may go on from a conversation as long as any body may be.
        size = services.settings.api.body_bytes_max if goes_on else submission.request.state.record.body_bytes
        prepared = await turns.run(tenant_id, size, lambda: _prepared(submission))
        await _take_conversation(submission, prepared)
        accepted = await run_in_threadpool(services.group_commit.submit, prepared.new, prepared.body)
    waiting, wanted = Waiting.on(accepted.submitted), prepared.wanted
    if prepared.request.streams:
        return await streamed(services, waiting, wanted, is_disconnected)
    if wanted.outlives_client:
        return JSONResponse(_view(waiting.job, prepared.request, None))
    outcome = await answer(services, waiting, is_disconnected)
    if not (outcome.succeeded and prepared.storing.store):
        return await recorded(outcome)
    return await recorded(await turns.run(tenant_id, len(outcome.text), lambda: _with(outcome, wanted.also)))


async def _take_conversation(submission: Submission, prepared: Prepared) -> None:
    """Counts the tokens of the conversation before a request, which its body does not have."""
    record, caller = submission.request.state.record, submission.caller
    if prepared.storing.previous_response_id is not None:
        more = max(0, prepared.new.body_bytes - record.body_bytes)
        alone = replace(caller, quotas=replace(caller.quotas, requests_per_minute=None))
        rates, body = submission.services.rate_limits, {"model": prepared.request.model}
        await take_rates(rates, alone, body, more, record.answer_headers)


def _prepared(submission: Submission) -> Prepared:
    services, caller, given = submission.services, submission.caller, submission.body
    how = Storing.read(given)
    body, num_before = storing.without_storing(given), 0
    if how.previous_response_id is not None:
        own, body = body, _continued(services, caller, body, how.previous_response_id)
        num_before = len(body["input"]) - len(storing.items_of(own["input"]))
    try:
        request = _parsed(body).stored_as(how)
    except InvalidRequest as error:
        raise storing.about_own(error, num_before) from error
    new = _new_job(services, caller, request, body, how)
    return Prepared(
        request, how, body, services.submitter.check(new, caller.priority_ceiling, request=request)
    )


def _new_job(
    services: Services, caller: Caller, request: ResponsesRequest, body: JsonObject, how: Storing
) -> NewJob:
    """A request in the background has no client who waits: it is of the class standard."""
    wait_s = services.settings.api.online_wait_s
    if how.background:
        wait_s = min(BACKGROUND_WINDOW_S, services.settings.submission.completion_window_max_s)
        if request.priority is None and request.service_tier is None:
            request.priority = PriorityClass.STANDARD
    kept = how.to_json() if how.store else None
    return online_job(endpoints.get(_ROUTE), request, body, caller.tenant_id, math.ceil(wait_s), storing=kept)


def _continued(services: Services, caller: Caller, body: JsonObject, previous_id: str) -> JsonObject:
    """The request with the conversation that it goes on from. Raises InvalidRequest."""
    try:
        previous = _Stored.find(services, caller, previous_id)
    except NotFound as error:
        raise storing.not_found(previous_id) from error
    if previous.outcome is None or not previous.outcome.succeeded:
        status = _view(previous.job, previous.request, previous.outcome)["status"]
        raise InvalidRequest(
            f"Invalid 'previous_response_id': the response '{previous_id}' has the status '{status}', and no "
            "answer to go on from.",
            param="previous_response_id",
            code="invalid_value",
        )
    whole = storing.continued(body, previous.body, previous.outcome.body["output"])
    bytes_max = services.settings.api.body_bytes_max
    if json_bytes(whole) > bytes_max:
        raise InvalidRequest(
            f"The conversation has more than {bytes_max} bytes with the responses before it.",
            param="previous_response_id",
            code="request_too_large",
        )
    return whole


def _parsed(body: JsonObject) -> ResponsesRequest:
    request = endpoints.get(_ROUTE).parse(body)
    assert isinstance(request, ResponsesRequest), "parsed by its endpoint"
    return request


def _wanted(request: ResponsesRequest, how: Storing) -> Wanted:
    endpoint = endpoints.get(_ROUTE)
    assert isinstance(endpoint, TextEndpoint), "a response is a text"
    return Wanted(endpoint, request, how.to_json(), outlives_client=how.background)


def _with(outcome: RecordedAnswer, also: Mapping[str, Any]) -> RecordedAnswer:
    return RecordedAnswer(outcome.status_code, json_text({**outcome.body, **also}), outcome.usage)


# -- what is stored --


@dataclass(frozen=True)
class _Stored:
    """A stored response: its job, its request, and the outcome once there is one."""

    job: Job
    shard_id: str
    body: JsonObject
    request: ResponsesRequest
    outcome: RecordedAnswer | None

    @classmethod
    def find(cls, services: Services, caller: Caller, response_id: str) -> "_Stored":
        """Raises NotFound, also once its time is over."""
        with services.store.snapshot() as tx:
            job = _job(tx, caller, response_id)
            shard = next(iter(tx.shards.of_job(job.id, limit=1)), None)
            body = None if shard is None else tx.shards.request_body(caller.tenant_id, shard.id)
        if shard is None or body is None:
            raise _not_found(response_id)
        assert job.spec.storing is not None, "it is a stored one"
        request = _parsed(body).stored_as(Storing.from_json(job.spec.storing))
        outcome = outcome_of(services, Waiting(caller.tenant_id, job, shard.id))
        if outcome is not None:  # the job may have ended in between
            with services.store.snapshot() as tx:
                job = _job(tx, caller, response_id)
        return cls(job, shard.id, body, request, outcome)

    @property
    def waiting(self) -> Waiting:
        return Waiting(self.job.tenant_id, self.job, self.shard_id)

    def shown(self) -> RecordedAnswer:
        """The response as it is now."""
        return RecordedAnswer(200, json_text(_view(self.job, self.request, self.outcome)), self.job.usage)


def _job(tx: Transaction, caller: Caller, response_id: str) -> Job:
    job_id = storing.job_id_of(response_id)
    job = None if job_id is None else tx.jobs.get(caller.tenant_id, job_id)
    if job is None or job.spec.storing is None or job.results_deleted_at is not None:
        raise _not_found(response_id)
    return job


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id}' not found.", param="response_id")


def _view(job: Job, request: ResponsesRequest, outcome: RecordedAnswer | None) -> JsonObject:
    """The response as it is now."""
    how = request.storing
    assert how is not None, "it is a request of its own"
    if outcome is not None and outcome.succeeded:
        return outcome.body | how.to_json()
    return _unanswered(job, request, outcome).model_dump()


def _unanswered(job: Job, request: ResponsesRequest, outcome: RecordedAnswer | None) -> ResponseObject:
    head = _wanted(request, request.storing or Storing(False, False, None)).head(job)
    is_cancelled = job.stop_reason is StopReason.CANCELLED and (outcome is None or not outcome.succeeded)
    if outcome is not None and not is_cancelled:
        return broken(request, head, outcome.body)
    response = begun(request, head)
    if is_cancelled:
        response.status = "cancelled"
    elif job.state is JobState.QUEUED:
        response.status = "queued"
    return response


# -- the routes of a stored response --


@router.get(
    "/v1/responses/{response_id}", summary="Describe a stored response", response_model=ResponseObject
)
async def describe(
    response_id: str,
    request: Request,
    services: ServicesDep,
    caller: CallerDep,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0)] = None,
    include: Annotated[list[str] | None, Query()] = None,
    include_obfuscation: bool | None = None,
) -> Response:
    """`stream` sends the events of a background response, those behind `starting_after` alone."""
    if starting_after is not None and not stream:
        raise InvalidRequest(
            "Invalid 'starting_after': it is only allowed when 'stream' is true.", param="starting_after"
        )
    stored = await run_in_threadpool(_Stored.find, services, caller, response_id)
    if not stream:
        size = 0 if stored.outcome is None else len(stored.outcome.text)
        return await recorded(await services.body_turns.run(caller.tenant_id, size, stored.shown))
    how = stored.request.storing
    if how is None or not how.background:
        raise InvalidRequest(
            "Only a response with 'background' can be streamed after its creation.", param="stream"
        )
    services.slots.hold(caller, (STREAMS,), request.state.record.held)
    wanted = _wanted(stored.request, how)
    after = -1 if starting_after is None else starting_after
    return await streamed(
        services, stored.waiting, wanted, request.is_disconnected, lambda event: behind(event, after)
    )


def behind(event: StreamEvent, number: int) -> StreamEvent | None:
    """The part of an event that comes after the one with this number; None: there is none.

    A delta's number is that of its last character (`ResponseEvents`).
    """
    data: JsonObject = json.loads(event.data)
    new = data["sequence_number"] - number
    if new <= 0:
        return None
    delta = data.get("delta", "")
    if new >= len(delta):
        return event
    cut = {"delta": delta[len(delta) - new :]} | ({"logprobs": []} if "logprobs" in data else {})
    return StreamEvent.from_json(data | cut, event.type)


@router.post(
    "/v1/responses/{response_id}/cancel",
    summary="Cancel a background response",
    response_model=ResponseObject,
)
def cancel(response_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    def stop(tx: Transaction) -> None:
        job = _job(tx, caller, response_id)
        if not Storing.from_json(job.spec.storing or {}).background:
            raise InvalidRequest("Cannot cancel a synchronous response.", param="response_id")
        transitions.cancel(tx, job, tx.now())  # one that has ended stays as it is

    services.store.run(stop)
    services.ring_sender.hint()
    stored = _Stored.find(services, caller, response_id)
    return JSONResponse(_view(stored.job, stored.request, stored.outcome))


class DeletedResponse(BaseModel):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


@router.delete(
    "/v1/responses/{response_id}",
    summary="Delete a stored response that has ended",
    response_model=DeletedResponse,
)
def delete(response_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    services.store.run(lambda tx: delete_ended(tx, lambda: _job(tx, caller, response_id)))
    return JSONResponse(DeletedResponse(id=response_id).model_dump())


class InputItems(BaseModel):
    object: Literal["list"]
    data: list[JsonObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


@router.get(
    "/v1/responses/{response_id}/input_items",
    summary="List the items that a stored response answers",
    response_model=InputItems,
)
def list_input_items(
    response_id: str,
    services: ServicesDep,
    caller: CallerDep,
    limit: Annotated[int, Query(ge=1, le=LIST_LIMIT_MAX)] = LIST_LIMIT,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
    include: Annotated[list[str] | None, Query()] = None,
) -> Response:
    """The whole conversation: also what came before, where the request names a previous response."""
    stored = _Stored.find(services, caller, response_id)
    items = storing.input_items(response_id, stored.body["input"])
    if order == "desc":
        items.reverse()
    if after is not None:
        start = next((n for n, item in enumerate(items, 1) if item["id"] == after), None)
        if start is None:
            raise NotFound(f"No such item: {after}", param="after")
        items = items[start:]
    return JSONResponse(list_json(items, limit))
