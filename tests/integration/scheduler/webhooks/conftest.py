"""A receiver on the loopback, the duty that delivers to it, and what is owed."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pytest

from nightshift.jobs import Job
from nightshift.outbound.safe_http import Egress, EgressConfig
from nightshift.outbound.webhooks import Delivery
from nightshift.store import Store
from nightshift.store.webhooks.deliveries import DeliveryFilters
from nightshift.tenants.vault import Vault
from scheduler.duties.webhook_delivery import WebhookDelivery
from tests.helpers.fakes import FakeClock
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
