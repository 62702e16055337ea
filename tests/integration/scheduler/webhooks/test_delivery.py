"""Events reach their endpoints: signed as the standard says, at least once, one tenant not at another's cost.

A real receiver on the loopback, which the operator allows here; its verification is done by other people's
code.
"""

from datetime import timedelta

import openai
import pytest
from standardwebhooks import Webhook as StandardWebhook

from nightshift.jobs import Face
from nightshift.outbound.safe_http import Egress, EgressConfig
from nightshift.outbound.webhooks import DeliveryState, new_secret
from nightshift.store import Store
from nightshift.tenants.vault import Vault
from scheduler.duties.webhook_delivery import WebhookDelivery, WebhookDeliveryConfig
from scheduler.webhooks.attempts import ENDPOINT_GONE
from scheduler.webhooks.circuits import CircuitConfig
from scheduler.webhooks.in_flight import SlotLimits
from tests.helpers.fakes import FakeClock
from tests.helpers.receiver import Receiver, Request, says
from tests.helpers.threads import spare_threads
from tests.integration.scheduler.webhooks.conftest import (
    IDLE_S,
    LOOPBACK,
    Endpoints,
    delivered,
    ended,
    the_delivery,
)

pytestmark = pytest.mark.databases("postgresql")

CONFIG = WebhookDeliveryConfig()


def tenant_secret(store: Store, vault: Vault, tenant_id: str = "default") -> str:
    with store.snapshot() as tx:
        encrypted = tx.keys.webhook_secret(tenant_id)
    assert encrypted is not None
    return vault.decrypt(encrypted)


def verified(request: Request, secret: str) -> dict[str, object]:
    """Reads a request as the reference implementation does. Raises if the signature is wrong."""
    event: dict[str, object] = StandardWebhook(secret).verify(request.body, dict(request.headers))
    return event


# -- signed ------------------------------------------------------------------------------------------------


def test_an_event_is_delivered_and_verifies_with_the_jobs_own_secret(
    store: Store, clock: FakeClock, duty: WebhookDelivery, vault: Vault, there: Receiver
) -> None:
    secret = new_secret()
    job = ended(store, there.numeric_url, secret=vault.encrypt(secret))
    assert delivered(duty, clock) == 1

    event = verified(there.requests[0], secret)
    assert (event["type"], event["data"]["id"]) == ("job.failed", job.id)
    assert event["id"] == there.requests[0].headers["webhook-id"]
    delivery = the_delivery(store, job)
    assert (delivery.state, delivery.delivered_at) == (DeliveryState.DELIVERED, clock.now)
    assert delivered(duty, clock) == 0


def test_without_one_the_tenants_secret_signs_and_is_made_once(
    store: Store, clock: FakeClock, duty: WebhookDelivery, vault: Vault, there: Receiver
) -> None:
    for _ in range(2):
        ended(store, there.numeric_url)
        delivered(duty, clock)
    secret = tenant_secret(store, vault)
    assert [verified(request, secret)["object"] for request in there.requests] == ["event", "event"]


def test_a_batch_event_is_unwrapped_by_the_official_client(
    store: Store, clock: FakeClock, duty: WebhookDelivery, vault: Vault, there: Receiver
) -> None:
    job = ended(store, there.numeric_url, face=Face.OPENAI)
    delivered(duty, clock)
    client = openai.OpenAI(api_key="unused", webhook_secret=tenant_secret(store, vault))
    event = client.webhooks.unwrap(there.requests[0].body, dict(there.requests[0].headers))
    assert (event.type, event.data.id) == ("batch.failed", job.id.replace("job_", "batch_"))


# -- tried again -------------------------------------------------------------------------------------------


def test_a_failed_attempt_is_recorded_and_repeated_under_the_same_id(
    store: Store, clock: FakeClock, duty: WebhookDelivery, there: Receiver
) -> None:
    there.answer = says(500, b"not now")
    job = ended(store, there.numeric_url)
    assert delivered(duty, clock) == 1
    assert delivered(duty, clock) == 0

    there.answer = says(200)
    clock.advance(seconds=5)
    assert delivered(duty, clock) == 1
    assert the_delivery(store, job).state is DeliveryState.DELIVERED
    first, second = there.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert int(second.headers["webhook-timestamp"]) == int(first.headers["webhook-timestamp"]) + 5
    assert first.body == second.body
    with store.snapshot() as tx:
        attempts = tx.deliveries.attempts(job.tenant_id, the_delivery(store, job).id)
    assert [(made.attempt_no, made.status_code, made.response_head) for made in attempts] == [
        (1, 500, "not now"),
        (2, 200, ""),
    ]


def test_an_endpoint_that_sends_retry_after_is_tried_again_then(
    store: Store, clock: FakeClock, duty: WebhookDelivery, there: Receiver
) -> None:
    there.answer = says(429, retry_after="600")
    job = ended(store, there.numeric_url)
    delivered(duty, clock)
    assert the_delivery(store, job).next_at == clock.now + timedelta(seconds=600)


def test_an_endpoint_that_is_gone_is_disabled_for_all_its_tenant_owes_it(
    store: Store, clock: FakeClock, duty: WebhookDelivery, there: Receiver
) -> None:
    there.answer = says(500)
    earlier = ended(store, there.numeric_url)
    elsewhere = ended(store, f"{there.numeric_url}/else")
    another = ended(store, there.numeric_url, tenant_id="tenant_other")
    delivered(duty, clock)
    there.answer = says(410)
    ended(store, there.numeric_url)
    clock.advance(seconds=1)
    delivered(duty, clock)
    there.answer = says(200)
    seen = len(there.requests)

    clock.advance(hours=1)
    delivered(duty, clock)

    assert len(there.requests) == seen + 2
    assert the_delivery(store, earlier).state is DeliveryState.DEAD
    with store.snapshot() as tx:
        last = tx.deliveries.attempts("default", the_delivery(store, earlier).id)[-1]
    assert (last.status_code, last.error) == (None, ENDPOINT_GONE)
    assert the_delivery(store, elsewhere).state is DeliveryState.DELIVERED
    assert the_delivery(store, another).state is DeliveryState.DELIVERED


def test_a_job_that_names_an_endpoint_again_after_it_was_gone_is_told_to_it(
    store: Store, clock: FakeClock, duty: WebhookDelivery, there: Receiver
) -> None:
    there.answer = says(410)
    ended(store, there.numeric_url)
    delivered(duty, clock)
    clock.advance(seconds=1)
    there.answer = says(200)

    job = ended(store, there.numeric_url)
    delivered(duty, clock)

    assert the_delivery(store, job).state is DeliveryState.DELIVERED


def test_an_endpoint_that_never_answers_well_ends_as_a_dead_letter(
    store: Store, clock: FakeClock, duty: WebhookDelivery, there: Receiver
) -> None:
    there.answer = says(503)
    job = ended(store, there.numeric_url)
    while delivered(duty, clock):
        clock.advance(hours=24)
    assert the_delivery(store, job).state is DeliveryState.DEAD
    assert len(there.requests) == 10


def test_a_redirect_inside_is_a_failed_attempt_and_is_not_followed(
    store: Store, clock: FakeClock, duty: WebhookDelivery, there: Receiver
) -> None:
    there.answer = says(302, location="http://169.254.169.254/latest/meta-data/")
    job = ended(store, there.numeric_url)
    delivered(duty, clock)
    assert the_delivery(store, job).state is DeliveryState.PENDING
    assert len(there.requests) == 1


def test_a_url_that_leads_inside_is_a_dead_letter_that_says_why(
    store: Store, clock: FakeClock, vault: Vault, there: Receiver
) -> None:
    only_public = EgressConfig(ports=LOOPBACK.ports)  # this operator allows no network
    duty = WebhookDelivery(store, vault, Egress(only_public))
    job = ended(store, there.numeric_url)
    delivered(duty, clock)
    dead = the_delivery(store, job)
    with store.snapshot() as tx:
        [made] = tx.deliveries.attempts(job.tenant_id, dead.id)
    assert (dead.state, made.status_code) == (DeliveryState.DEAD, None)
    assert made.error == "The URL leads to an address that is not public."
    assert there.requests == []


def test_an_answer_no_database_could_keep_is_kept_as_far_as_it_can_be(
    store: Store, clock: FakeClock, duty: WebhookDelivery, there: Receiver
) -> None:
    there.answer = says(500, b"\x00\xff" + b"x" * 5000)
    job = ended(store, there.numeric_url)
    delivered(duty, clock)
    with store.snapshot() as tx:
        [made] = tx.deliveries.attempts(job.tenant_id, the_delivery(store, job).id)
    assert made.response_head == "\N{REPLACEMENT CHARACTER}" * 2 + "x" * 2046


# -- at least once, and not at another's cost ----------------------------------------------------------------


def test_a_slow_endpoint_holds_up_no_other_tenant(store: Store, clock: FakeClock, vault: Vault) -> None:
    endpoints = Endpoints()
    slots = SlotLimits(in_all=4, per_tenant=2, per_tenant_unanswered=2, per_destination=2)
    duty = WebhookDelivery(store, vault, endpoints, WebhookDeliveryConfig(slots=slots))
    for number in range(50):
        ended(store, f"https://slow.example/{number}", tenant_id="slow")
    clock.advance(seconds=1)
    other = ended(store, "https://quick.example/", tenant_id="quick")

    assert duty.run_once(clock.now).started == 3  # two for the tenant that came first
    endpoints.released.set()
    assert duty.wait_until_idle(IDLE_S)
    assert the_delivery(store, other).state is DeliveryState.DELIVERED
    assert delivered(duty, clock) == 2


def test_twelve_hanging_receivers_of_a_tenant_delay_its_healthy_one_by_no_pass(
    store: Store, clock: FakeClock, vault: Vault
) -> None:
    endpoints = Endpoints()
    duty = WebhookDelivery(store, vault, endpoints)
    for number in range(12):
        for _ in range(4):
            ended(store, f"https://slow{number}.example/")
    clock.advance(seconds=1)
    healthy = ended(store, "https://quick.example/")

    assert duty.run_once(clock.now).started == 13  # each destination's first, before any one's second
    endpoints.released.set()
    assert duty.wait_until_idle(IDLE_S)
    assert the_delivery(store, healthy).state is DeliveryState.DELIVERED


def test_a_receiver_that_keeps_failing_is_left_alone_and_its_events_wait_uncounted(
    store: Store, clock: FakeClock, vault: Vault, there: Receiver
) -> None:
    there.answer = says(503)
    circuits = CircuitConfig(failures_max=2, cool_down_s=3600, cool_down_max_s=3600)
    config = WebhookDeliveryConfig(circuits=circuits)
    duty = WebhookDelivery(store, vault, Egress(LOOPBACK), config)
    jobs = [ended(store, there.numeric_url) for _ in range(4)]
    assert [delivered(duty, clock) for _ in range(4)] == [1, 1, 0, 0]
    opened_at = clock.now
    waiting = [the_delivery(store, job) for job in jobs]
    assert sorted(delivery.attempts for delivery in waiting) == [0, 0, 1, 1]
    assert {delivery.next_at for delivery in waiting if not delivery.attempts} == {
        opened_at + timedelta(hours=1)
    }

    there.answer = says(200)
    clock.advance(hours=1)
    assert delivered(duty, clock) == 1  # one attempt decides
    assert delivered(duty, clock) == 3


def test_attempts_for_which_no_thread_is_left_are_made_later_and_take_no_slot(
    store: Store, clock: FakeClock, vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints = Endpoints()
    duty = WebhookDelivery(store, vault, endpoints, CONFIG)
    for number in range(4):
        ended(store, f"https://quick.example/{number}")
    with monkeypatch.context() as patch:
        spare_threads(patch, 1, lambda name: name.startswith("dlv_"))
        with pytest.raises(RuntimeError, match="thread"):
            duty.run_once(clock.now)
    assert duty.wait_until_idle(IDLE_S)
    assert len(endpoints.urls) == 1

    clock.advance(seconds=CONFIG.reserved_s)
    assert delivered(duty, clock) == 3


def test_two_schedulers_attempt_a_delivery_once(store: Store, clock: FakeClock, vault: Vault) -> None:
    endpoints = Endpoints()
    one, other = (WebhookDelivery(store, vault, endpoints) for _ in range(2))
    ended(store, "https://slow.example/")
    assert one.run_once(clock.now).started == 1
    assert other.run_once(clock.now).started == 0
    endpoints.released.set()
    assert one.wait_until_idle(IDLE_S)


def test_a_delivery_whose_scheduler_died_is_attempted_again_a_little_later(
    store: Store, clock: FakeClock, vault: Vault
) -> None:
    endpoints = Endpoints()
    job = ended(store, "https://slow.example/")
    dying = WebhookDelivery(store, vault, endpoints)
    dying.run_once(clock.now)  # has reserved it, and is never heard of again

    heir = WebhookDelivery(store, vault, endpoints)
    assert heir.run_once(clock.advance(seconds=CONFIG.reserved_s - 1)).started == 0
    assert heir.run_once(clock.advance(seconds=1)).started == 1
    endpoints.released.set()
    assert heir.wait_until_idle(IDLE_S)
    assert dying.wait_until_idle(IDLE_S)  # the dead one comes back, and its late record changes nothing
    assert the_delivery(store, job).attempts == 1


def test_the_outcome_of_attempts_is_counted_by_the_next_pass(
    store: Store, clock: FakeClock, duty: WebhookDelivery, there: Receiver
) -> None:
    ended(store, there.numeric_url)
    delivered(duty, clock)
    there.answer = says(410)
    ended(store, there.numeric_url)
    delivered(duty, clock)
    assert duty.run_once(clock.now).counts == {"started": 0, "delivered": 0, "failed": 0, "dead": 1}
