"""A receiver on the loopback, the duty that delivers to it, and what is owed."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

import pytest

from nightshift.jobs import Face, InputError, Job, JobState, Webhook
from nightshift.lifecycle import transitions
from nightshift.outbound.safe_http import Egress, EgressConfig, EgressResponse, NoAnswer
from nightshift.outbound.webhooks import Delivery
from nightshift.store import Store
from nightshift.store.webhooks.deliveries import DeliveryFilters
from nightshift.tenants.vault import Vault
from scheduler.duties.webhook_delivery import WebhookDelivery
from tests.helpers.fakes import FakeClock, a_spec, submit
from tests.helpers.receiver import Receiver, receiver, says

IDLE_S = 30.0
LOOPBACK = EgressConfig(("127.0.0.0/8",), (range(1, 65536),))


@pytest.fixture
def clock() -> FakeClock:
    """A clock that starts now: receivers compare a webhook's timestamp with their own clock."""
    return FakeClock(datetime.now(UTC).replace(microsecond=0))


@pytest.fixture
def vault() -> Vault:
    return Vault("a key for tests")


@pytest.fixture
def there() -> Iterator[Receiver]:
    with receiver(says(200, b"thanks")) as running:
        yield running


@pytest.fixture
def duty(store: Store, vault: Vault) -> WebhookDelivery:
    return WebhookDelivery(store, vault, Egress(LOOPBACK), jitter=lambda: 0.0)


def owed(store: Store, job: Job) -> Sequence[Delivery]:
    with store.snapshot() as tx:
        return tx.deliveries.list(job.tenant_id, limit=100, filters=DeliveryFilters(job_id=job.id))


def the_delivery(store: Store, job: Job) -> Delivery:
    [delivery] = owed(store, job)
    return delivery


def delivered(duty: WebhookDelivery, clock: FakeClock) -> int:
    """Makes one pass, and waits until the attempts that it started are over. Returns how many."""
    started = duty.run_once(clock.now).started
    assert duty.wait_until_idle(IDLE_S)
    return started


def ended(
    store: Store,
    url: str | None = None,
    *,
    tenant_id: str = "default",
    face: Face = Face.NATIVE,
    secret: bytes | None = None,
) -> Job:
    """A job has failed, and its event is owed to its own URL, if any, and to its tenant's endpoints."""
    spec = a_spec(webhook=None if url is None else Webhook(url, events=()))
    job = submit(store, tenant_id=tenant_id, face=face, webhook_secret=secret, spec=spec)
    with store.transaction() as tx:
        transitions.finish(tx, job, JobState.FAILED, tx.now(), errors=[InputError("empty_file", "no rows")])
    return job


class Endpoints:
    """Answers for tenants' endpoints without a network: slow ones hold the line until they are let go."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.released = threading.Event()

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> EgressResponse:
        self.urls.append(url)
        if "slow" in url and not self.released.wait(IDLE_S):
            raise NoAnswer
        return EgressResponse(200, {}, b"")
