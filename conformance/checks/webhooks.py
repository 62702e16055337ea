"""/v1/webhook_endpoints, through `client.webhooks` (3.x), and the signatures that its `unwrap` checks."""

from typing import Any, Final

import openai

from conformance.checks.files import expect_each_once
from conformance.expectations import (
    NotOffered,
    Skipped,
    expect,
    expect_count,
    expect_equal,
    expect_id,
    expect_refusal,
    shown,
)
from conformance.receiver import Receiver, receiving
from conformance.registry import Area
from conformance.session import Session

AREA = Area("webhooks", "GET", "/webhook_endpoints")
EVENT: Final = "batch.completed"
OTHER_EVENT: Final = "batch.failed"
URL: Final = "https://example.com/nightshift-conformance"  # nothing is sent there


@AREA.add("an endpoint is created with every field, and shows its secret only then")
def created(session: Session) -> None:
    made = _create(session, URL)
    expect_equal(made.object, "webhook_endpoint", "an endpoint with the object")
    expect_count(made.created_at, "an endpoint with created_at")
    expect_equal(made.name, "conformance", "an endpoint with the name")
    expect_equal(list(made.event_types), [EVENT], "an endpoint with the event_types")
    secret = made.signing_secret
    expect(
        isinstance(secret, str) and secret.startswith("whsec_"),
        "creates an endpoint without a secret",
        "answers signing_secret: whsec_…",
    )
    endpoint = _webhooks(session).retrieve(made.id)
    expect_equal(endpoint.url, URL, "an endpoint that is asked for by its id with the url")
    expect(secret not in endpoint.to_json(), "shows the secret again", "shows it once")


@AREA.add("list shows every endpoint once, over several pages")
def listed(session: Session) -> None:
    ours = [_create(session, URL).id for _ in range(3)]
    expect_each_once(_webhooks(session).list(limit=2), ours, "endpoints")


@AREA.add("an update changes what it names, and nothing else")
def updated(session: Session) -> None:
    made = _create(session, URL)
    changed = _webhooks(session).update(made.id, name="renamed", event_types=[OTHER_EVENT])
    for endpoint in (changed, _webhooks(session).retrieve(made.id)):
        expect_equal(endpoint.name, "renamed", "a changed endpoint with the name")
        expect_equal(list(endpoint.event_types), [OTHER_EVENT], "a changed endpoint with the event_types")
        expect_equal(endpoint.url, URL, "a changed endpoint with the url")


@AREA.add("a deleted endpoint is a 404 afterwards")
def deleted(session: Session) -> None:
    made = _create(session, URL)
    expect_equal(_webhooks(session).delete(made.id).deleted, True, "a deletion with deleted")
    expect_refusal(lambda: _webhooks(session).retrieve(made.id), "a deleted endpoint", openai.NotFoundError)


@AREA.add("the types of events are listed")
def event_types(session: Session) -> None:
    types = list(_webhooks(session).event_types.list().data)
    expect(EVENT in types, f"lists the types {shown(types)}", f"lists {EVENT} among them")


@AREA.add("an unknown type of event, and an address that is no URL, are refused")
def refused(session: Session) -> None:
    expect_refusal(lambda: _create(session, URL, "no.such.event"), "an unknown type of event")
    expect_refusal(lambda: _create(session, "no url"), "an address that is no URL")


@AREA.add("a test event is signed, and the client unwraps it")
def unwrapped(session: Session) -> None:
    with receiving() as receiver:
        made = _create_reachable(session, receiver)
        result = _webhooks(session).test(made.id, event_type=EVENT)
    expect_equal(result.status_code, 204, "a test of an endpoint with the receiver's status_code")
    _expect_signed(session, receiver, made.signing_secret, "the endpoint's secret")


@AREA.add("a rotation that keeps the old secret signs with both")
def rotated_keeping(session: Session) -> None:
    with receiving() as receiver:
        made = _create_reachable(session, receiver)
        new = _webhooks(session).rotate_secret(made.id, keep_old_secret_active_for_24_hours=True)
        _webhooks(session).test(made.id, event_type=EVENT)
    expect(new.signing_secret != made.signing_secret, "rotates to the same secret", "makes a new one")
    _expect_signed(session, receiver, new.signing_secret, "the new secret")
    _expect_signed(session, receiver, made.signing_secret, "the old secret")


@AREA.add("a rotation that does not keep the old secret signs with the new one alone")
def rotated(session: Session) -> None:
    with receiving() as receiver:
        made = _create_reachable(session, receiver)
        new = _webhooks(session).rotate_secret(made.id, keep_old_secret_active_for_24_hours=False)
        _webhooks(session).test(made.id, event_type=EVENT)
    _expect_signed(session, receiver, new.signing_secret, "the new secret")
    is_signed = _is_signed(session, receiver, made.signing_secret)
    expect(not is_signed, "signs with the old secret after its rotation", "signs with the new one alone")


def _webhooks(session: Session) -> Any:
    if not hasattr(session.client.webhooks, "create"):
        raise Skipped(f"the client {openai.__version__} manages no webhook endpoints; 3.52 does")
    return session.client.webhooks


def _create(session: Session, url: str, event: str = EVENT) -> Any:
    made = _webhooks(session).create(name="conformance", url=url, event_types=[event])
    id = expect_id(getattr(made, "id", None), "an endpoint with the id")
    session.clean_up.add(id, lambda client: client.webhooks.delete(id))
    return made


def _create_reachable(session: Session, receiver: Receiver) -> Any:
    """An endpoint at the receiver. Raises NotOffered if this machine is no place for one."""
    try:
        return _create(session, receiver.url)
    except openai.BadRequestError as refusal:
        raise NotOffered(f"it may not send to {receiver.url}: {shown(refusal.message)}") from refusal


def _expect_signed(session: Session, receiver: Receiver, secret: object, whose: str) -> None:
    expect(bool(receiver.received), f"sends nothing to {receiver.url}", "sends a test event")
    expect(
        _is_signed(session, receiver, secret),
        f"signs an event so that webhooks.unwrap refuses it with {whose}",
        "signs it with that secret",
    )


def _is_signed(session: Session, receiver: Receiver, secret: object) -> bool:
    """Whether the client unwraps the event that was received, as what it is."""
    content, headers = receiver.received[0]
    try:
        event = session.client.webhooks.unwrap(content, headers, secret=secret)
    except (openai.InvalidWebhookSignatureError, ValueError):
        return False
    expect_equal(event.type, EVENT, "an unwrapped event with the type")
    return True
