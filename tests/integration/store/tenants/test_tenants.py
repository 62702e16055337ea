"""One tenant never sees or touches what is another's: every method that takes a tenant id, tried."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import get_type_hints

import pytest

from nightshift.bulk.results.destinations import place_of
from nightshift.errors import OutputInUse
from nightshift.fleet.workers import ExitCause
from nightshift.jobs import Job, JobKind, StopReason
from nightshift.jobs.dead_letters import DeadLetter
from nightshift.jobs.deletion import JobPart
from nightshift.jobs.files import File, FilePurpose
from nightshift.jobs.ids import new_id
from nightshift.jobs.priorities import PriorityClass
from nightshift.jobs.uploads import Upload, UploadPart, UploadStatus
from nightshift.lifecycle import transitions
from nightshift.outbound.webhook_endpoints import WebhookEndpoint
from nightshift.outbound.webhooks import Delivery, DeliveryState
from nightshift.store import Store, Transaction
from nightshift.store.jobs.idempotency import KeptAnswer
from tests.helpers.fakes import (
    STARTS_AT,
    a_delivery,
    a_file,
    a_spec,
    a_webhook_endpoint,
    an_answer,
    an_api_key,
    an_attempt,
    asked,
    claimed,
    claimed_online,
    commit_rows,
    planned,
    submit,
)

OWNER, STRANGER = "tenant_owner", "tenant_stranger"
DAY = timedelta(days=1)
FINGERPRINT = "f" * 64
RUN_NAME = "nightly"
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
    owed: Delivery  # to the endpoint
    endpoint: WebhookEndpoint
    upload: Upload


def belongings(store: Store, tenant_id: str) -> Belongings:
    spec = a_spec(name=RUN_NAME, run_date="2026-11-20")
    bulk = planned(store, tenant_id=tenant_id, fingerprint=FINGERPRINT, spec=spec)
    asked(store, tenant_id=tenant_id)  # and not answered yet
    lease = claimed(store).lease
    commit_rows(store, lease, failed=1)
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
    submit(store, tenant_id=tenant_id, retry_of=bulk.id)
    online = asked(store, tenant_id=tenant_id)
    file, answer = a_file(tenant_id=tenant_id), KeptAnswer(FINGERPRINT, bulk.id, 202, {})
    delivery = a_delivery(bulk)
    endpoint = a_webhook_endpoint(tenant_id=tenant_id)
    owed = a_delivery(bulk, endpoint_id=endpoint.id)
    died = a_delivery(bulk, endpoint_id=endpoint.id, state=DeliveryState.DEAD)
    upload = Upload(
        id=new_id("upload", "_"),
        tenant_id=tenant_id,
        purpose=FilePurpose.BATCH,
        filename="large.jsonl",
        size_bytes=10,
        created_at=STARTS_AT,
        expires_at=STARTS_AT + DAY,
        file_expires_after_s=None,
        status=UploadStatus.PENDING,
    )
    part = UploadPart(
        id=new_id("part", "_"),
        upload_id=upload.id,
        tenant_id=tenant_id,
        size_bytes=10,
        sha256=FINGERPRINT,
        created_at=STARTS_AT,
    )
    answered = claimed_online(store, online.shard_id)
    with store.transaction() as tx:
        transitions.record_answer(tx, answered, an_answer(), tx.now())
        tx.deletions.record([(tenant_id, online.job.id)], JobPart.EVENTS, tx.now())
        tx.uploads.insert(upload)
        tx.uploads.insert_part(part)
        tx.files.insert(file)
        tx.dead_letters.insert(dead)
        tx.deliveries.insert(delivery)
        tx.deliveries.record(delivery, an_attempt(delivery), DeliveryState.DELIVERED, tx.now())
        tx.webhook_endpoints.insert(endpoint)
        tx.deliveries.disable_endpoint(delivery, STARTS_AT - 1000 * DAY)  # before its first job
        tx.deliveries.insert(owed, died)
        tx.idempotency.keep(tenant_id, KEY, answer, tx.now(), tx.now() + DAY)
        tx.keys.insert(an_api_key(tenant_id=tenant_id))
        tx.keys.keep_webhook_secret(tenant_id, b"secret", tx.now())
    assert online.shard_id is not None
    return Belongings(bulk, online.job, file, delivery, answer, dead, online.shard_id, owed, endpoint, upload)


def names_the_writer(tx: Transaction, tenant_id: str, job: Job) -> bool:
    """Whether a tenant that wants to write to the same folder is told who does."""
    place = place_of(job.spec)
    assert place is not None
    with pytest.raises(OutputInUse) as refused:
        tx.jobs.check_output(tenant_id, place)
    return job.id in refused.value.message


# For each method: does it show, or change, for this tenant, what belongs to the owner?
REACHES: dict[str, Callable[[Transaction, str, Belongings], object]] = {
    "overview.unfinished": lambda tx, tenant, of: tx.overview.unfinished(tenant).groups,
    "events.milestones": lambda tx, tenant, of: tx.events.milestones(tenant, of.bulk.id, limit=10),
    "events.at": lambda tx, tenant, of: tx.events.at(tenant, of.bulk.id, [1]),
    "shards.segments_with_failures": lambda tx, tenant, of: tx.shards.segments_with_failures(
        tenant, of.bulk.id, limit=10
    ),
    "shards.leased_of": lambda tx, tenant, of: tx.shards.leased_of(tenant, of.bulk.id, limit=10),
    "shards.leased_by": lambda tx, tenant, of: tx.shards.leased_by(tenant, of.dead.worker_id, limit=10),
    "deliveries.last_attempts": lambda tx, tenant, of: tx.deliveries.last_attempts(
        tenant, of.delivery.id, limit=10
    ),
    "jobs.get": lambda tx, tenant, of: tx.jobs.get(tenant, of.bulk.id),
    "jobs.list": lambda tx, tenant, of: tx.jobs.list(tenant, limit=10),
    "jobs.runs": lambda tx, tenant, of: tx.jobs.runs(tenant, RUN_NAME, limit=10),
    "jobs.find_repeat": lambda tx, tenant, of: tx.jobs.find_repeat(tenant, FINGERPRINT, STARTS_AT),
    "jobs.check_output": lambda tx, tenant, of: names_the_writer(tx, tenant, of.bulk),
    "holdings.of": lambda tx, tenant, of: tx.holdings.of(tenant),
    "holdings.queue": lambda tx, tenant, of: tx.holdings.queue(tenant).own,
    "load.has_unfinished": lambda tx, tenant, of: tx.load.has_unfinished(tenant),
    "jobs.reading": lambda tx, tenant, of: tx.jobs.reading(tenant, str(of.bulk.spec.input)),
    "controls.prioritise": lambda tx, tenant, of: tx.controls.prioritise(
        tenant, of.bulk.id, PriorityClass.BACKGROUND
    ),
    "controls.pause": lambda tx, tenant, of: tx.controls.pause(tenant, of.bulk.id, tx.now()),
    "controls.resume": lambda tx, tenant, of: (
        tx.controls.pause(of.bulk.tenant_id, of.bulk.id, tx.now()),
        tx.controls.resume(tenant, of.bulk.id),
    )[1],
    "controls.replace_spec": lambda tx, tenant, of: tx.controls.replace_spec(
        tenant, of.bulk.id, of.bulk.spec, 0
    ),
    "ageing.ended": lambda tx, tenant, of: tx.ageing.ended(
        tenant, JobKind.ONLINE, JobPart.JOB, tx.now() + DAY, limit=10
    ),
    "deletions.mark_deleted": lambda tx, tenant, of: tx.deletions.mark_deleted(
        tenant, of.online.id, tx.now()
    ),
    "deletions.delete_gone_receivers": lambda tx, tenant, of: tx.deletions.delete_gone_receivers(
        tenant, limit=10
    ),
    "deletions.waiting": lambda tx, tenant, of: tx.deletions.waiting(tenant, limit=10),
    "deletions.delete_ended_deliveries": lambda tx, tenant, of: tx.deletions.delete_ended_deliveries(
        tenant, tx.now() + DAY, limit=10
    ),
    "uploads.get": lambda tx, tenant, of: tx.uploads.get(tenant, of.upload.id),
    "uploads.count_pending": lambda tx, tenant, of: tx.uploads.count_pending(tenant, STARTS_AT),
    "uploads.parts": lambda tx, tenant, of: tx.uploads.parts(tenant, of.upload.id),
    "uploads.end": lambda tx, tenant, of: tx.uploads.end(tenant, of.upload.id, UploadStatus.CANCELLED),
    "jobs.retries": lambda tx, tenant, of: tx.jobs.retries(tenant, of.bulk.id, limit=10),
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
    "deliveries.give_up": lambda tx, tenant, of: tx.deliveries.give_up(tenant, of.endpoint.id, limit=10),
    "deliveries.redirect": lambda tx, tenant, of: tx.deliveries.redirect(
        tenant, of.endpoint.id, "https://x/"
    ),
    "deliveries.replay_dead": lambda tx, tenant, of: tx.deliveries.replay_dead(
        tenant, of.endpoint.id, "https://x/", tx.now(), since=STARTS_AT, until=STARTS_AT + DAY, limit=10
    ),
    "deliveries.has_dead": lambda tx, tenant, of: tx.deliveries.has_dead(
        tenant, of.endpoint.id, since=STARTS_AT, until=STARTS_AT + DAY
    ),
    "webhook_endpoints.get": lambda tx, tenant, of: tx.webhook_endpoints.get(tenant, of.endpoint.id),
    "webhook_endpoints.lock": lambda tx, tenant, of: tx.webhook_endpoints.lock(tenant, of.endpoint.id),
    "webhook_endpoints.list": lambda tx, tenant, of: tx.webhook_endpoints.list(tenant, limit=10),
    "webhook_endpoints.count": lambda tx, tenant, of: tx.webhook_endpoints.count(tenant),
    "webhook_endpoints.delete": lambda tx, tenant, of: tx.webhook_endpoints.delete(tenant, of.endpoint.id),
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
    "files.expire_all": lambda tx, tenant, of: (
        tx.files.expire_all(tenant, tx.now()),
        tx.files.get(of.file.tenant_id, of.file.id, tx.now()) is None,
    )[1],
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


class Undone(Exception):
    """Rolls a transaction back."""


def failing(store: Store, holds: Callable[[Transaction, str], bool]) -> list[str]:
    """The methods of which it does not hold. Each is tried on the same rows: what it changes is undone."""
    found = []
    for method in REACHES:
        with suppress(Undone), store.transaction() as tx:
            if not holds(tx, method):
                found.append(method)
            raise Undone
    return found


def test_a_method_reaches_what_is_the_tenants_own_and_nothing_else(store: Store) -> None:
    owned = belongings(store, OWNER)

    def only_its_own(tx: Transaction, method: str) -> bool:
        reach = REACHES[method]
        return not reach(tx, STRANGER, owned) and bool(reach(tx, OWNER, owned))

    assert failing(store, only_its_own) == []


def test_it_makes_no_difference_that_the_stranger_has_things_of_its_own(store: Store) -> None:
    owned, strangers = belongings(store, OWNER), belongings(store, STRANGER)

    def each_its_own(tx: Transaction, method: str) -> bool:
        of_owner = REACHES[method](tx, OWNER, owned)
        of_stranger = REACHES[method](tx, STRANGER, strangers)
        return bool(of_owner and of_stranger) and not (
            shows(of_owner, strangers) or shows(of_stranger, owned)
        )

    assert failing(store, each_its_own) == []


def shows(found: object, of: Belongings) -> bool:
    ids = (of.bulk.id, of.online.id, of.file.id, of.delivery.id, of.endpoint.id)
    return any(id in str(found) for id in ids)
