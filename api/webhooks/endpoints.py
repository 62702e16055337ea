"""/v1/webhook_endpoints: register receivers of events, rotate their secrets, test them, replay what they
missed. /v1/webhook_event_types: the events there are.
"""

from datetime import datetime

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from api.access import Caller
from api.bodies import parsed
from api.bodies.objects import WebhookSecretObject
from api.bodies.webhooks import (
    DeletedWebhookEndpoint,
    WebhookEndpointCreate,
    WebhookEndpointObject,
    WebhookEndpointPage,
    WebhookEndpointReplay,
    WebhookEndpointReplayResult,
    WebhookEndpointRotate,
    WebhookEndpointTest,
    WebhookEndpointTestResult,
    WebhookEndpointUpdate,
    WebhookEndpointWithSecretObject,
    WebhookEventTypeList,
)
from api.dependencies import BodyDep, CallerDep, ListingDep, OptionalBodyDep, ServicesDep
from api.responses.times import from_seconds
from api.services.services import Services
from nightshift.errors import InvalidRequest
from nightshift.jobs.ids import new_id
from nightshift.lifecycle.submission import check_webhook_url
from nightshift.lifecycle.webhooks.endpoints import (
    EndpointChanges,
    EndpointRegistry,
    EndpointWithSecret,
    get_endpoint,
)
from nightshift.lifecycle.webhooks.replays import ReplayedWindow, replay_window
from nightshift.lifecycle.webhooks.tenant_secrets import kept_webhook_secret
from nightshift.outbound.webhook_events import EVENT_TYPES, sample_body
from nightshift.outbound.webhooks import headers
from nightshift.store import Transaction
from nightshift.tenants.audit import Actor

router = APIRouter(prefix="/v1", tags=["Webhooks"])


@router.get(
    "/webhooks/secret",
    summary="The secret that signs your webhooks; made at the first call",
    response_model=WebhookSecretObject,
)
def get_secret(services: ServicesDep, caller: CallerDep) -> Response:
    with services.store.transaction() as tx:
        encrypted = kept_webhook_secret(tx, services.vault, caller.tenant_id, Actor.of_key(caller.key_id))
    return JSONResponse(
        {"object": "webhook_secret", "secret": services.vault.decrypt(encrypted)},
        headers={"cache-control": "no-store"},
    )


@router.get("/webhook_event_types", summary="List the types of events", response_model=WebhookEventTypeList)
async def list_event_types(caller: CallerDep) -> Response:
    return _shown(WebhookEventTypeList(data=list(EVENT_TYPES)))


@router.post(
    "/webhook_endpoints",
    summary="Register a receiver; its signing secret is shown this once",
    response_model=WebhookEndpointWithSecretObject,
)
def create(services: ServicesDep, caller: CallerDep, body: BodyDep) -> Response:
    fields = parsed(WebhookEndpointCreate, body)
    check_webhook_url(fields.url, services.settings.submission, "url")
    return _with_secret(
        services.store.run(lambda tx: _registry(tx, services, caller).create(**fields.model_dump()))
    )


@router.get("/webhook_endpoints", summary="List receivers, newest first", response_model=WebhookEndpointPage)
def list_endpoints(services: ServicesDep, caller: CallerDep, listing: ListingDep) -> Response:
    with services.store.snapshot() as tx:
        after = listing.start(lambda id: get_endpoint(tx, caller.tenant_id, id, param="after"))
        receivers = tx.webhook_endpoints.list(caller.tenant_id, limit=listing.limit + 1, after=after)
    shown = [WebhookEndpointObject.shown(receiver) for receiver in receivers]
    return JSONResponse(listing.json(shown))


@router.get(
    "/webhook_endpoints/{webhook_endpoint_id}",
    summary="Describe a receiver",
    response_model=WebhookEndpointObject,
)
def describe(webhook_endpoint_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    with services.store.snapshot() as tx:
        endpoint = get_endpoint(tx, caller.tenant_id, webhook_endpoint_id)
    return JSONResponse(WebhookEndpointObject.shown(endpoint))


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}",
    summary="Change a receiver; enable or disable it",
    response_model=WebhookEndpointObject,
)
def update(webhook_endpoint_id: str, services: ServicesDep, caller: CallerDep, body: BodyDep) -> Response:
    fields = parsed(WebhookEndpointUpdate, body)
    if fields.url is not None:
        check_webhook_url(fields.url, services.settings.submission, "url")
    changes = EndpointChanges(
        name=fields.name,
        url=fields.url,
        event_types=None if fields.event_types is None else tuple(fields.event_types),
        disabled=None if fields.nightshift is None else fields.nightshift.disabled,
    )
    changed = services.store.run(
        lambda tx: _registry(tx, services, caller).update(webhook_endpoint_id, changes)
    )
    return JSONResponse(WebhookEndpointObject.shown(changed))


@router.delete(
    "/webhook_endpoints/{webhook_endpoint_id}",
    summary="Delete a receiver",
    response_model=DeletedWebhookEndpoint,
)
def delete(webhook_endpoint_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    services.store.run(lambda tx: _registry(tx, services, caller).delete(webhook_endpoint_id))
    return _shown(DeletedWebhookEndpoint(id=webhook_endpoint_id))


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}/rotate_secret",
    summary="Replace the signing secret, which is shown this once",
    response_model=WebhookEndpointWithSecretObject,
)
def rotate_secret(
    webhook_endpoint_id: str, services: ServicesDep, caller: CallerDep, body: OptionalBodyDep
) -> Response:
    fields = parsed(WebhookEndpointRotate, body)
    return _rotated(
        services, caller, webhook_endpoint_id, keeps_old=fields.keep_old_secret_active_for_24_hours
    )


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}/rotate",
    summary="Replace the signing secret; the old one signs too for 24 hours",
    response_model=WebhookEndpointWithSecretObject,
)
def rotate(webhook_endpoint_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    return _rotated(services, caller, webhook_endpoint_id, keeps_old=True)


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}/test",
    summary="Send a sample event and answer with the receiver's status",
    response_model=WebhookEndpointTestResult,
)
async def test(webhook_endpoint_id: str, services: ServicesDep, caller: CallerDep, body: BodyDep) -> Response:
    fields = parsed(WebhookEndpointTest, body)

    def prepare(tx: Transaction) -> tuple[str, list[bytes], datetime]:
        endpoint = get_endpoint(tx, caller.tenant_id, webhook_endpoint_id)
        _registry(tx, services, caller).note_test(webhook_endpoint_id, fields.event_type)
        now = tx.now()
        return endpoint.url, endpoint.secrets(now), now

    url, encrypted, now = await run_in_threadpool(services.store.run, prepare)
    event_id = new_id("evt")
    sample = sample_body(event_id, fields.event_type, now)
    secrets = [services.vault.decrypt(secret) for secret in encrypted]
    signed = headers(event_id, int(now.timestamp()), sample, secrets)
    status = await services.webhook_samples.send(caller.tenant_id, url, sample.encode(), signed)
    return _shown(
        WebhookEndpointTestResult(
            webhook_endpoint_id=webhook_endpoint_id, event_type=fields.event_type, status_code=status
        )
    )


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}/replay",
    summary="Send a receiver its dead letters of a time once more",
    response_model=WebhookEndpointReplayResult,
)
def replay(webhook_endpoint_id: str, services: ServicesDep, caller: CallerDep, body: BodyDep) -> Response:
    fields = parsed(WebhookEndpointReplay, body)

    def work(tx: Transaction) -> ReplayedWindow:
        since = from_seconds(fields.since)
        until = tx.now() if fields.until is None else from_seconds(fields.until)
        if since >= until:
            raise InvalidRequest("Invalid 'since': it is not before 'until'.", param="since")
        actor = Actor.of_key(caller.key_id)
        return replay_window(tx, actor, caller.tenant_id, webhook_endpoint_id, since, until)

    done = services.store.run(work)
    return _shown(
        WebhookEndpointReplayResult(
            webhook_endpoint_id=webhook_endpoint_id, replayed=done.count, has_more=done.has_more
        )
    )


def _registry(tx: Transaction, services: Services, caller: Caller) -> EndpointRegistry:
    return EndpointRegistry(tx, services.vault, caller.tenant_id, Actor.of_key(caller.key_id))


def _rotated(services: Services, caller: Caller, id: str, *, keeps_old: bool) -> Response:
    return _with_secret(
        services.store.run(lambda tx: _registry(tx, services, caller).rotate(id, keeps_old=keeps_old))
    )


def _with_secret(made: EndpointWithSecret) -> Response:
    shown = WebhookEndpointObject.shown(made.endpoint) | {"signing_secret": made.secret}
    return JSONResponse(shown, headers={"cache-control": "no-store"})


def _shown(answer: BaseModel) -> Response:
    return JSONResponse(answer.model_dump(mode="json"))
