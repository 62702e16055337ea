"""One tenant never sees or touches what is another's: every method that takes a tenant id, tried."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import get_type_hints

import pytest

from nightshift.fleet.workers import ExitCause
from nightshift.jobs import Job, StopReason
from nightshift.jobs.dead_letters import DeadLetter
from nightshift.jobs.files import File
from nightshift.jobs.ids import new_id
from nightshift.lifecycle import transitions
from nightshift.outbound.webhooks import Delivery, DeliveryState
from nightshift.store import Store, Transaction
from nightshift.store.jobs.idempotency import KeptAnswer
from nightshift.testing import (
    STARTS_AT,
    a_delivery,
    a_file,
    an_answer,
    an_api_key,
    an_attempt,
    asked,
    claimed,
    claimed_online,
    commit_rows,
    planned,
)

OWNER, STRANGER = "tenant_owner", "tenant_stranger"
DAY = timedelta(days=1)
FINGERPRINT = "f" * 64
KEY = "nightly"


@dataclass(frozen=True)
class Belongings:
    """One of everything a tenant can have."""

    bulk: Job
    online: Job
    file: File
    delivery: Delivery
    answer: KeptAnswer
    dead: DeadLetter
    online_shard_id: str


def belongings(store: Store, tenant_id: str) -> Belongings:
    bulk = planned(store, tenant_id=tenant_id, fingerprint=FINGERPRINT)
    asked(store, tenant_id=tenant_id)  # and not answered yet
    lease = claimed(store).lease
    commit_rows(store, lease)
    dead = DeadLetter(
        id=new_id("dlq"),
        tenant_id=tenant_id,
        job_id=bulk.id,
        shard_id=lease.shard_id,
        row=3,
        cause=ExitCause.ABORTED,
        crashes=3,
        worker_id=lease.worker_id,
        died_at=STARTS_AT,
    )
    online = asked(store, tenant_id=tenant_id)
    file, answer = a_file(tenant_id=tenant_id), KeptAnswer(FINGERPRINT, bulk.id, 202, {})
    delivery = a_delivery(bulk)
    answered = claimed_online(store, online.shard_id)
    with store.transaction() as tx:
        transitions.record_answer(tx, answered, an_answer(), tx.now())
        tx.files.insert(file)
        tx.dead_letters.insert(dead)
        tx.deliveries.insert(delivery)
        tx.deliveries.record(delivery, an_attempt(delivery), DeliveryState.DELIVERED, tx.now())
        tx.idempotency.keep(tenant_id, KEY, answer, tx.now(), tx.now() + DAY)
        tx.keys.insert(an_api_key(tenant_id=tenant_id))
        tx.keys.keep_webhook_secret(tenant_id, b"secret", tx.now())
    assert online.shard_id is not None
    return Belongings(bulk, online.job, file, delivery, answer, dead, online.shard_id)


# For each method: does it show, or change, for this tenant, what belongs to the owner?
REACHES: dict[str, Callable[[Transaction, str, Belongings], object]] = {
    "jobs.get": lambda tx, tenant, of: tx.jobs.get(tenant, of.bulk.id),
    "jobs.list": lambda tx, tenant, of: tx.jobs.list(tenant, limit=10),
    "jobs.find_repeat": lambda tx, tenant, of: tx.jobs.find_repeat(tenant, FINGERPRINT, STARTS_AT),
    "load.online": lambda tx, tenant, of: tx.load.online(tenant).own,
    "load.has_unfinished": lambda tx, tenant, of: tx.load.has_unfinished(tenant),
    "load.bulk": lambda tx, tenant, of: tx.load.bulk(tenant).jobs,
    "jobs.reading": lambda tx, tenant, of: tx.jobs.reading(tenant, str(of.bulk.spec.input)),
    "jobs.request_stop": lambda tx, tenant, of: tx.jobs.request_stop(
        tenant, of.bulk.id, StopReason.CANCELLED, tx.now()
    ),
    "shards.segments_of_job": lambda tx, tenant, of: tx.shards.segments_of_job(tenant, of.bulk.id, limit=10),
    "shards.online_result": lambda tx, tenant, of: tx.shards.online_result(tenant, of.online.id),
    "shards.get": lambda tx, tenant, of: tx.shards.get(tenant, of.dead.shard_id),
    "shards.request_body": lambda tx, tenant, of: tx.shards.request_body(tenant, of.online_shard_id),
    "dead_letters.get": lambda tx, tenant, of: tx.dead_letters.get(tenant, of.dead.id),
    "dead_letters.list": lambda tx, tenant, of: tx.dead_letters.list(tenant, limit=10),
    "dead_letters.replay": lambda tx, tenant, of: tx.dead_letters.replay(
        tenant, of.dead.id, of.online.id, tx.now()
    ),
    "dead_letters.discard": lambda tx, tenant, of: tx.dead_letters.discard(tenant, of.dead.id, tx.now()),
    "events.after": lambda tx, tenant, of: tx.events.after(tenant, of.bulk.id, 0, limit=10),
    "deliveries.get": lambda tx, tenant, of: tx.deliveries.get(tenant, of.delivery.id),
    "deliveries.list": lambda tx, tenant, of: tx.deliveries.list(tenant, limit=10),
    "deliveries.attempts": lambda tx, tenant, of: tx.deliveries.attempts(tenant, of.delivery.id),
    "idempotency.find": lambda tx, tenant, of: tx.idempotency.find(tenant, KEY, tx.now()),
    "idempotency.keep": lambda tx, tenant, of: (
        not tx.idempotency.keep(tenant, KEY, of.answer, tx.now(), tx.now() + DAY)  # the key is in use
    ),
    "files.get": lambda tx, tenant, of: tx.files.get(tenant, of.file.id, tx.now()),
    "files.get_to_read": lambda tx, tenant, of: tx.files.get_to_read(tenant, of.file.id, tx.now()),
    "files.get_to_delete": lambda tx, tenant, of: tx.files.get_to_delete(tenant, of.file.id, tx.now()),
    "files.input": lambda tx, tenant, of: tx.files.input(tenant, of.file.id),
    "files.list": lambda tx, tenant, of: tx.files.list(tenant, tx.now(), limit=10),
    "files.expire": lambda tx, tenant, of: tx.files.expire(tenant, of.file.id, tx.now()),
    "files.delete": lambda tx, tenant, of: tx.files.delete(tenant, of.file.id),
    "usage.list": lambda tx, tenant, of: tx.usage.list(
        tenant, limit=10, since=STARTS_AT.date(), until=STARTS_AT.date()
    ),
    "keys.page": lambda tx, tenant, of: tx.keys.page(tenant, limit=10),
    "keys.list": lambda tx, tenant, of: tx.keys.list(tenant),
    "keys.webhook_secret": lambda tx, tenant, of: tx.keys.webhook_secret(tenant),
    "keys.keep_webhook_secret": lambda tx, tenant, of: (
        not tx.keys.keep_webhook_secret(tenant, b"mine", tx.now())  # there is one
    ),
}


def methods_with_a_tenant() -> Iterator[str]:
    for noun, property in inspect.getmembers(Transaction, lambda member: isinstance(member, cached_property)):
        statements = get_type_hints(property.func)["return"]
        for name, method in inspect.getmembers(statements, inspect.isfunction):
            if not name.startswith("_") and "tenant_id" in inspect.signature(method).parameters:
                yield f"{noun}.{name}"


def test_every_method_that_takes_a_tenant_is_tried_here() -> None:
    assert set(methods_with_a_tenant()) == set(REACHES)


@pytest.mark.parametrize("method", REACHES)
def test_a_method_reaches_what_is_the_tenants_own_and_nothing_else(store: Store, method: str) -> None:
    owned = belongings(store, OWNER)

    with store.transaction() as tx:
        assert not REACHES[method](tx, STRANGER, owned)
        assert REACHES[method](tx, OWNER, owned)


@pytest.mark.parametrize("method", REACHES)
def test_it_makes_no_difference_that_the_stranger_has_things_of_its_own(store: Store, method: str) -> None:
    owned, strangers = belongings(store, OWNER), belongings(store, STRANGER)

    with store.transaction() as tx:
        of_owner = REACHES[method](tx, OWNER, owned)
        of_stranger = REACHES[method](tx, STRANGER, strangers)

    assert of_owner
    assert of_stranger
    for mine, others in ((owned, strangers), (strangers, owned)):
        shown = str(of_owner if mine is owned else of_stranger)
        for id in (others.bulk.id, others.online.id, others.file.id, others.delivery.id):
            assert id not in shown
