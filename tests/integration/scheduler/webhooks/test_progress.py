"""Progress events: one owed at a time, to receivers that name them, beside others, none after the end."""

from typing import Any

import pytest

from nightshift.jobs import Counts, Face, Job, JobState, Usage, Webhook
from nightshift.lifecycle import transitions
from nightshift.lifecycle.webhooks.endpoints import EndpointChanges, EndpointRegistry
from nightshift.outbound.safe_http import Egress
from nightshift.outbound.webhook_events import PROGRESS
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store import Store
from nightshift.tenants.audit import Actor
from nightshift.tenants.vault import Vault
from scheduler.duties.job_events import Progress
from scheduler.duties.webhook_delivery import WebhookDelivery, WebhookDeliveryConfig
from tests.helpers.fakes import FakeClock, a_spec, submit
from tests.helpers.receiver import Receiver, receiver, says
from tests.integration.scheduler.webhooks.conftest import IDLE_S, LOOPBACK, owed

EVERY_S = 30.0


@pytest.fixture
def progress(store: Store) -> Progress:
    return Progress(store, EVERY_S)


def delivery_duty(store: Store, vault: Vault, *, of_progress: bool) -> WebhookDelivery:
    config = WebhookDeliveryConfig.for_progress() if of_progress else WebhookDeliveryConfig()
    return WebhookDelivery(store, vault, Egress(LOOPBACK), config, jitter=lambda: 0.0)


class MakeRunning:
    """Bulk jobs of 200 rows that are under way."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __call__(self, *events: str, url: str = "https://own.example/", **fields: Any) -> Job:
        spec = a_spec(webhook=Webhook(url, events)) if events else a_spec()
        job = submit(self.store, spec=spec, **fields)
        with self.store.transaction() as tx:
            tx.jobs.record_page(
                job.id, 0, model="m", rows_total=200, rows_estimated=None, tokens_queued=0, now=tx.now()
            )
            tx.jobs.mark_started(job.id, tx.now(), None)
        return job

    def advance(self, job: Job, rows: int) -> None:
        with self.store.transaction() as tx:
            tx.jobs.add_progress(job.id, Counts(None, rows, 0), Usage())


@pytest.fixture
def running(store: Store) -> MakeRunning:
    return MakeRunning(store)


def register(store: Store, vault: Vault, url: str, *types: str) -> str:
    with store.transaction() as tx:
        registry = EndpointRegistry(tx, vault, "default", Actor("key:test"))
        return registry.create(name="pager", url=url, event_types=types).endpoint.id


def test_receivers_that_name_it_get_it_and_no_others(
    store: Store, clock: FakeClock, vault: Vault, progress: Progress, running: MakeRunning
) -> None:
    named = register(store, vault, "https://named.example/", PROGRESS)
    register(store, vault, "https://all.example/", "*")
    register(store, vault, "https://family.example/", "job.*")
    job, other = running(PROGRESS), running("job.succeeded")
    running.advance(job, 30)
    running.advance(other, 30)
    progress.run_once(clock.now)

    assert {delivery.endpoint_id for delivery in owed(store, job)} == {None, named}
    assert {delivery.endpoint_id for delivery in owed(store, other)} == {named}


def test_without_a_receiver_nothing_is_recorded(
    store: Store, clock: FakeClock, progress: Progress, running: MakeRunning
) -> None:
    job = running()
    running.advance(job, 30)

    assert progress.run_once(clock.now).events == 0
    assert owed(store, job) == []


def test_a_newer_event_replaces_one_that_is_still_owed(
    store: Store, clock: FakeClock, vault: Vault, progress: Progress, running: MakeRunning
) -> None:
    job = running(PROGRESS)
    for _ in range(5):
        running.advance(job, 10)
        progress.run_once(clock.advance(seconds=EVERY_S))

    (only,) = owed(store, job)
    assert '"percent":25' in only.body
    assert '"counts":{"total":200,"succeeded":50,"failed":0}' in only.body


def test_failed_attempts_go_with_the_event_that_is_replaced(
    store: Store, clock: FakeClock, vault: Vault, progress: Progress, running: MakeRunning
) -> None:
    with receiver(says(500)) as failing:
        job = running(PROGRESS, url=failing.numeric_url)
        sender = delivery_duty(store, vault, of_progress=True)
        for _ in range(3):
            running.advance(job, 10)
            progress.run_once(clock.advance(seconds=EVERY_S))
            sender.run_once(clock.now)
            assert sender.wait_until_idle(IDLE_S)
    (only,) = owed(store, job)

    assert len(failing.requests) == 3
    assert (only.state, only.attempts) == (DeliveryState.PENDING, 1)


def test_there_is_one_for_a_further_percent_and_none_without(
    store: Store, clock: FakeClock, progress: Progress, running: MakeRunning
) -> None:
    job = running(PROGRESS)
    told = []
    for rows in (1, 1, 0, 1, 1):
        running.advance(job, rows)
        told.append(progress.run_once(clock.advance(seconds=EVERY_S)).events)

    assert told == [0, 1, 0, 0, 1]


def test_nothing_of_it_is_owed_or_begun_after_the_end(
    store: Store,
    clock: FakeClock,
    vault: Vault,
    progress: Progress,
    running: MakeRunning,
    there: Receiver,
) -> None:
    job = running(PROGRESS, "job.succeeded", url=there.numeric_url)
    running.advance(job, 100)
    progress.run_once(clock.now)
    with store.transaction() as tx:
        transitions.finish(
            tx, tx.jobs.fetch(job.id), JobState.SUCCEEDED, tx.now(), counts=Counts(200, 200, 0)
        )
    progress.run_once(clock.advance(seconds=EVERY_S))

    assert [delivery.event_type for delivery in owed(store, job)] == ["job.succeeded"]


def test_it_delays_no_other_event_and_opens_no_circuit_for_them(
    store: Store,
    clock: FakeClock,
    vault: Vault,
    progress: Progress,
    running: MakeRunning,
    there: Receiver,
) -> None:
    waiting, ended = running(PROGRESS, url=there.numeric_url), running("job.failed", url=there.numeric_url)
    running.advance(waiting, 100)
    progress.run_once(clock.now)
    with store.transaction() as tx:
        transitions.finish(tx, tx.jobs.fetch(ended.id), JobState.FAILED, tx.now())
    others, own = (delivery_duty(store, vault, of_progress=of_progress) for of_progress in (False, True))

    assert others.run_once(clock.now).started == 1
    assert others.wait_until_idle(IDLE_S)
    assert [delivery.state for delivery in owed(store, ended)] == [DeliveryState.DELIVERED]
    assert [delivery.state for delivery in owed(store, waiting)] == [DeliveryState.PENDING]
    assert own.run_once(clock.now).started == 1
    assert own.wait_until_idle(IDLE_S)
    assert [delivery.state for delivery in owed(store, waiting)] == [DeliveryState.DELIVERED]


def test_a_disabled_endpoint_gets_no_dead_letters_of_it(
    store: Store, clock: FakeClock, vault: Vault, progress: Progress, running: MakeRunning
) -> None:
    id = register(store, vault, "https://off.example/", PROGRESS)
    register(store, vault, "https://on.example/", PROGRESS)
    with store.transaction() as tx:
        registry = EndpointRegistry(tx, vault, "default", Actor("key:test"))
        registry.update(id, EndpointChanges(disabled=True))
    job = running()
    running.advance(job, 100)
    progress.run_once(clock.now)

    assert [delivery.url for delivery in owed(store, job)] == ["https://on.example/"]


def test_a_batch_is_told_of_by_its_own_id(
    store: Store, clock: FakeClock, progress: Progress, running: MakeRunning
) -> None:
    job = running(PROGRESS, face=Face.OPENAI)
    running.advance(job, 100)
    progress.run_once(clock.now)
    (only,) = owed(store, job)

    assert f'"id":"batch_{job.id.removeprefix("job_")}"' in only.body
