"""Registered endpoints get the events they ask for, signed with their own secrets, at no other's cost."""

from datetime import timedelta

import pytest
from standardwebhooks import Webhook as StandardWebhook
from standardwebhooks import WebhookVerificationError

from nightshift.errors import Conflict
from nightshift.jobs import Face, JobKind, JobState
from nightshift.lifecycle import transitions
from nightshift.lifecycle.webhooks.endpoints import EndpointChanges, EndpointRegistry, EndpointWithSecret
from nightshift.lifecycle.webhooks.replays import replay_delivery, replay_window
from nightshift.outbound.webhook_endpoints import DisabledReason, WebhookEndpoint
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store import Store
from nightshift.store.webhooks.deliveries import DeliveryFilters
from nightshift.tenants.audit import Action, Actor
from nightshift.tenants.vault import Vault
from scheduler.duties.webhook_delivery import WebhookDelivery
from scheduler.webhooks.attempts import ENDPOINT_DISABLED
from tests.helpers.fakes import FakeClock, submit_online
from tests.helpers.receiver import Receiver, says
from tests.integration.scheduler.webhooks.conftest import (
    IDLE_S,
    Endpoints,
    delivered,
    ended,
    owed,
    the_delivery,
)

pytestmark = pytest.mark.databases("postgresql")

ACTOR = Actor("key:test")
TENANTS = 20


class Registry:
    """A tenant's changes of its endpoints."""

    def __init__(self, store: Store, vault: Vault) -> None:
        self.store = store
        self.vault = vault

    def add(self, url: str, *event_types: str, tenant_id: str = "default") -> EndpointWithSecret:
        with self.store.transaction() as tx:
            registry = EndpointRegistry(tx, self.vault, tenant_id, ACTOR)
            return registry.create(name="pager", url=url, event_types=event_types or ("*",))

    def update(self, endpoint: EndpointWithSecret, changes: EndpointChanges) -> WebhookEndpoint:
        with self.store.transaction() as tx:
            return EndpointRegistry(tx, self.vault, "default", ACTOR).update(endpoint.endpoint.id, changes)

    def rotate(self, endpoint: EndpointWithSecret, *, keeps_old: bool) -> EndpointWithSecret:
        with self.store.transaction() as tx:
            registry = EndpointRegistry(tx, self.vault, "default", ACTOR)
            return registry.rotate(endpoint.endpoint.id, keeps_old=keeps_old)

    def delete(self, endpoint: EndpointWithSecret) -> None:
        with self.store.transaction() as tx:
            EndpointRegistry(tx, self.vault, "default", ACTOR).delete(endpoint.endpoint.id)

    def now(self, endpoint: EndpointWithSecret) -> WebhookEndpoint:
        with self.store.snapshot() as tx:
            current = tx.webhook_endpoints.get(endpoint.endpoint.tenant_id, endpoint.endpoint.id)
        assert current is not None
        return current


@pytest.fixture
def registry(store: Store, vault: Vault) -> Registry:
    return Registry(store, vault)


def verifies(request_of: Receiver, secret: str, nth: int = -1) -> bool:
    request = request_of.requests[nth]
    try:
        StandardWebhook(secret).verify(request.body, dict(request.headers))
    except WebhookVerificationError:
        return False
    return True


# -- who is owed what --------------------------------------------------------------------------------------


def test_an_end_is_owed_to_the_jobs_own_url_and_to_each_endpoint_that_asks_for_it(
    store: Store, registry: Registry
) -> None:
    wanting = {
        registry.add("https://all.example/").endpoint.id,
        registry.add("https://named.example/", "job.failed").endpoint.id,
        registry.add("https://family.example/", "job.*").endpoint.id,
    }
    registry.add("https://batches.example/", "batch.*")
    registry.add("https://successes.example/", "job.succeeded")
    registry.add("https://another.example/", tenant_id="another")

    deliveries = owed(store, ended(store, url="https://own.example/"))

    assert {delivery.endpoint_id for delivery in deliveries} == wanting | {None}
    assert len({delivery.event_id for delivery in deliveries}) == 1  # one event
    assert {delivery.state for delivery in deliveries} == {DeliveryState.PENDING}


def test_a_batch_is_told_of_in_its_own_words(store: Store, registry: Registry) -> None:
    registry.add("https://jobs.example/", "job.*")
    batches = registry.add("https://batches.example/", "batch.failed")
    delivery = the_delivery(store, ended(store, face=Face.OPENAI))
    assert (delivery.endpoint_id, delivery.event_type) == (batches.endpoint.id, "batch.failed")


def test_a_chat_request_is_told_to_nobody_and_a_job_of_one_request_is(
    store: Store, registry: Registry
) -> None:
    registry.add("https://all.example/")
    for face, count in ((Face.OPENAI, 0), (Face.NATIVE, 1)):
        job = submit_online(store, face=face, kind=JobKind.ONLINE).job
        with store.transaction() as tx:
            transitions.finish(tx, job, JobState.FAILED, tx.now())
        assert len(owed(store, job)) == count


# -- signed ------------------------------------------------------------------------------------------------


def test_an_endpoints_own_secret_signs_and_both_while_it_is_rotated(
    store: Store, clock: FakeClock, duty: WebhookDelivery, registry: Registry, there: Receiver
) -> None:
    old = registry.add(there.numeric_url)
    new = registry.rotate(old, keeps_old=True)
    ended(store)
    delivered(duty, clock)
    assert verifies(there, old.secret)
    assert verifies(there, new.secret)


def test_after_a_day_or_at_once_if_wanted_only_the_new_secret_signs(
    store: Store, clock: FakeClock, duty: WebhookDelivery, registry: Registry, there: Receiver
) -> None:
    old = registry.add(there.numeric_url)
    middle = registry.rotate(old, keeps_old=True)
    last = registry.rotate(middle, keeps_old=False)
    ended(store)
    delivered(duty, clock)
    assert [verifies(there, version.secret) for version in (old, middle, last)] == [False, False, True]

    clock.now -= timedelta(days=2)
    newest = registry.rotate(last, keeps_old=True)
    clock.now += timedelta(days=2)
    ended(store)
    delivered(duty, clock)
    assert [verifies(there, version.secret) for version in (last, newest)] == [False, True]


def test_secrets_are_stored_encrypted(store: Store, registry: Registry) -> None:
    old = registry.add("https://all.example/")
    new = registry.rotate(old, keeps_old=True)
    with store.database.read() as connection:
        rows = str(connection.exec_driver_sql("SELECT * FROM webhook_endpoint").all())
        rows += str(connection.exec_driver_sql("SELECT * FROM audit").all())
    assert not [secret for secret in (old.secret, new.secret) if secret.removeprefix("whsec_")[:20] in rows]


# -- changed and disabled ----------------------------------------------------------------------------------


def test_what_is_owed_goes_to_where_the_endpoint_is_now(
    store: Store, clock: FakeClock, duty: WebhookDelivery, registry: Registry, there: Receiver
) -> None:
    made = registry.add("http://127.0.0.1:1/")
    job = ended(store)
    registry.update(made, EndpointChanges(url=there.numeric_url))
    delivered(duty, clock)
    delivery = the_delivery(store, job)
    assert (delivery.state, delivery.url) == (DeliveryState.DELIVERED, there.numeric_url)


def test_410_disables_an_endpoint_and_what_is_owed_becomes_dead_letters(
    store: Store, clock: FakeClock, duty: WebhookDelivery, registry: Registry, there: Receiver
) -> None:
    made = registry.add(there.numeric_url)
    jobs = [ended(store) for _ in range(3)]
    there.answer = says(410)
    delivered(duty, clock)
    jobs.append(ended(store))
    clock.advance(days=1)

    assert delivered(duty, clock) == 0
    assert {the_delivery(store, job).state for job in jobs} == {DeliveryState.DEAD}
    assert len(there.requests) == 1
    endpoint = registry.now(made)
    assert (endpoint.is_enabled, endpoint.disabled_reason) == (False, DisabledReason.GONE)
    with store.snapshot() as tx:
        [entry] = tx.audit.list(limit=9, action=Action.WEBHOOK_ENDPOINT_DISABLED)
    assert (entry.actor, entry.object_id, entry.details) == (
        "service:scheduler",
        made.endpoint.id,
        {"reason": "gone"},
    )


def test_five_days_without_a_success_disable_an_endpoint_and_an_update_enables_it(
    store: Store, clock: FakeClock, duty: WebhookDelivery, registry: Registry, there: Receiver
) -> None:
    there.answer = says(500)
    made = registry.add(there.numeric_url)
    started_at = clock.now
    while registry.now(made).is_enabled:
        ended(store)
        delivered(duty, clock)
        clock.advance(hours=10)
        assert clock.now - started_at < timedelta(days=6)
    disabled = registry.now(made)
    assert disabled.disabled_at == started_at + timedelta(days=5)
    assert disabled.disabled_reason is DisabledReason.FAILING
    assert delivered(duty, clock) == 0

    there.answer = says(200)
    enabled = registry.update(made, EndpointChanges(disabled=False))
    assert (enabled.is_enabled, enabled.failing_since) == (True, None)
    job = ended(store)
    clock.advance(hours=1)
    delivered(duty, clock)
    assert the_delivery(store, job).state is DeliveryState.DELIVERED


@pytest.mark.parametrize(("by_tenant", "is_enabled"), [(False, True), (True, False)])
def test_a_new_url_enables_an_endpoint_unless_its_tenant_disabled_it(
    store: Store,
    clock: FakeClock,
    duty: WebhookDelivery,
    registry: Registry,
    there: Receiver,
    by_tenant: bool,
    is_enabled: bool,
) -> None:
    made = registry.add(there.numeric_url)
    if by_tenant:
        registry.update(made, EndpointChanges(disabled=True))
    else:
        there.answer = says(410)
        ended(store)
        delivered(duty, clock)
    assert not registry.now(made).is_enabled
    changed = registry.update(made, EndpointChanges(url=f"{there.numeric_url}/new"))
    assert changed.is_enabled is is_enabled


def test_a_delivery_that_comes_too_late_for_its_endpoint_is_not_sent(
    store: Store, clock: FakeClock, duty: WebhookDelivery, registry: Registry, there: Receiver
) -> None:
    made = registry.add(there.numeric_url)
    job = ended(store)
    registry.delete(made)
    [late] = owed(store, job)
    assert late.state is DeliveryState.DEAD
    with store.transaction() as tx:  # as one that was recorded while the endpoint was deleted
        tx.deliveries.replay(late, late.url, tx.now())

    assert delivered(duty, clock) == 1
    assert there.requests == []
    with store.snapshot() as tx:
        [made_attempt] = tx.deliveries.attempts("default", late.id)
    assert made_attempt.error == ENDPOINT_DISABLED


# -- replayed ----------------------------------------------------------------------------------------------


def test_dead_letters_of_a_time_are_replayed_once_and_under_their_own_ids(
    store: Store, clock: FakeClock, duty: WebhookDelivery, registry: Registry, there: Receiver
) -> None:
    made = registry.add(there.numeric_url)
    registry.update(made, EndpointChanges(disabled=True))
    since = clock.now
    jobs = []
    for _ in range(3):
        jobs.append(ended(store))
        clock.advance(hours=1)
    registry.update(made, EndpointChanges(disabled=False))

    def replay() -> int:
        with store.transaction() as tx:
            until = since + timedelta(hours=2)
            return replay_window(tx, ACTOR, "default", made.endpoint.id, since, until).count

    assert [replay(), replay()] == [2, 0]
    while delivered(duty, clock):
        pass
    states = [the_delivery(store, job).state for job in jobs]
    assert states == [DeliveryState.DELIVERED, DeliveryState.DELIVERED, DeliveryState.DEAD]
    sent = {request.headers["webhook-id"] for request in there.requests}
    assert sent == {the_delivery(store, job).event_id for job in jobs[:2]}
    assert replay() == 0  # what was delivered is not sent again


def test_one_delivery_is_replayed_with_a_schedule_from_its_beginning(
    store: Store, clock: FakeClock, duty: WebhookDelivery, there: Receiver
) -> None:
    there.answer = says(410)
    job = ended(store, url=there.numeric_url)
    delivered(duty, clock)
    there.answer = says(500)
    clock.advance(hours=1)

    with store.transaction() as tx:
        replay_delivery(tx, ACTOR, "default", the_delivery(store, job).id)
    assert delivered(duty, clock) == 1
    delivery = the_delivery(store, job)
    assert (delivery.state, delivery.attempts) == (DeliveryState.PENDING, 2)
    assert delivery.next_at == clock.now + timedelta(seconds=5)


def test_nothing_is_replayed_to_a_disabled_endpoint(
    store: Store, registry: Registry, clock: FakeClock
) -> None:
    made = registry.add("https://all.example/")
    registry.update(made, EndpointChanges(disabled=True))
    dead = the_delivery(store, ended(store))
    later = clock.advance(hours=1)
    with store.transaction() as tx, pytest.raises(Conflict, match="disabled"):
        replay_delivery(tx, ACTOR, "default", dead.id)
    with store.transaction() as tx, pytest.raises(Conflict, match="disabled"):
        replay_window(tx, ACTOR, "default", made.endpoint.id, dead.created_at, later)


# -- at no other's cost ------------------------------------------------------------------------------------


def test_with_a_hanging_endpoint_in_each_of_twenty_tenants_every_healthy_one_is_in_the_first_pass(
    store: Store, clock: FakeClock, vault: Vault, registry: Registry
) -> None:
    receivers = Endpoints()
    duty = WebhookDelivery(store, vault, receivers)
    tenants = [f"tenant-{number}" for number in range(TENANTS)]
    for tenant in tenants:
        registry.add("https://slow.example/", tenant_id=tenant)
        for _ in range(8):
            ended(store, tenant_id=tenant)
    duty.run_once(clock.now)  # each hanging endpoint has its attempt, and holds it
    clock.advance(seconds=1)
    healthy = {}
    for tenant in tenants:
        healthy[tenant] = registry.add("https://healthy.example/", tenant_id=tenant).endpoint.id
        ended(store, tenant_id=tenant)

    assert duty.run_once(clock.now).started == TENANTS
    receivers.released.set()
    assert duty.wait_until_idle(IDLE_S)
    for tenant in tenants:
        with store.snapshot() as tx:
            filters = DeliveryFilters(endpoint_id=healthy[tenant])
            [delivery] = tx.deliveries.list(tenant, limit=9, filters=filters)
        assert delivery.state is DeliveryState.DELIVERED
