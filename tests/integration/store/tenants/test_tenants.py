"""One tenant never sees or touches what is another's: every method that takes a tenant id, tried."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

import pytest

from nightshift.bulk.results.destinations import place_of
from nightshift.errors import OutputInUse
from nightshift.jobs import Job, JobKind, StopReason
from nightshift.jobs.dead_letters import DeadLetter
from nightshift.jobs.files import File, JobPart, Upload, UploadStatus
from nightshift.jobs.priorities import PriorityClass
from nightshift.lifecycle import transitions
from nightshift.outbound.webhook_endpoints import WebhookEndpoint
from nightshift.outbound.webhooks import Delivery, DeliveryState
from nightshift.schedules.plans import Schedule
from nightshift.schedules.runs import Run
from nightshift.store import Store, Transaction
from nightshift.store.jobs.idempotency import KeptAnswer
from tests.helpers.fakes import (
    STARTS_AT,
    a_dead_letter,
    a_delivery,
    a_file,
    a_schedule,
    a_schedule_run,
    a_spec,
    a_webhook_endpoint,
    an_answer,
    an_api_key,
    an_attempt,
    an_upload,
    an_upload_part,
    claimed,
    claimed_online,
    commit_rows,
    planned,
    submit,
    submit_online,
)

OWNER, STRANGER = "tenant_owner", "tenant_stranger"
DAY = timedelta(days=1)
FINGERPRINT = "f" * 64
RUN_NAME = "nightly"
KEY = "nightly"


@dataclass(frozen=True)
class Belongings:
    """One of everything that a tenant can have."""

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
    schedule: Schedule
    run: Run


def belongings(store: Store, tenant_id: str) -> Belongings:
    spec = a_spec(name=RUN_NAME, run_date="2026-11-20")
    bulk = planned(store, tenant_id=tenant_id, fingerprint=FINGERPRINT, spec=spec)
    submit_online(store, tenant_id=tenant_id)  # and not answered yet
    lease = claimed(store).lease
    commit_rows(store, lease, failed=1)
    dead = a_dead_letter(bulk, lease.shard_id, worker_id=lease.worker_id)
    submit(store, tenant_id=tenant_id, retry_of=bulk.id)
    online = submit_online(store, tenant_id=tenant_id)
    file, answer = a_file(tenant_id=tenant_id), KeptAnswer(FINGERPRINT, bulk.id, 202, {})
    delivery = a_delivery(bulk)
    endpoint = a_webhook_endpoint(tenant_id=tenant_id)
    owed = a_delivery(bulk, endpoint_id=endpoint.id)
    died = a_delivery(bulk, endpoint_id=endpoint.id, state=DeliveryState.DEAD)
    upload = an_upload(tenant_id=tenant_id)
    answered = claimed_online(store, online.shard_id)
    schedule = a_schedule(tenant_id=tenant_id)
    run = a_schedule_run(schedule)
    with store.transaction() as tx:
        transitions.record_answer(tx, answered, an_answer(), tx.now())
        tx.deletions.record([(tenant_id, online.job.id)], JobPart.EVENTS, tx.now())
        tx.uploads.insert(upload)
        tx.uploads.insert_part(an_upload_part(upload))
        tx.files.insert(file)
        tx.dead_letters.insert(dead)
        tx.deliveries.insert(delivery)
        tx.deliveries.record(delivery, an_attempt(delivery), DeliveryState.DELIVERED, tx.now())
        tx.webhook_endpoints.insert(endpoint)
        tx.schedules.insert(schedule)
        tx.schedules.insert(
            a_schedule(tenant_id=tenant_id, name="second", plan={"cron": None, "after": "nightly"})
        )
        tx.schedules.insert_run(run)
        tx.deliveries.disable_endpoint(delivery, STARTS_AT - 1000 * DAY)  # before its first job
        tx.deliveries.insert(owed, died)
        tx.idempotency.keep(tenant_id, KEY, answer, tx.now(), tx.now() + DAY)
        tx.keys.insert(an_api_key(tenant_id=tenant_id))
        tx.keys.keep_webhook_secret(tenant_id, b"secret", tx.now())
    assert online.shard_id is not None
    return Belongings(
        bulk, online.job, file, delivery, answer, dead, online.shard_id, owed, endpoint, upload, schedule, run
    )


def names_the_writer(tx: Transaction, tenant_id: str, job: Job) -> bool:
    """Whether a tenant that wants to write to the same folder is told who does."""
    place = place_of(job.spec)
    assert place is not None
    with pytest.raises(OutputInUse) as refused:
        tx.jobs.check_output(tenant_id, place)
    return job.id in refused.value.message


# For each method: does it show, or change, for this tenant, what belongs to the owner?
Reach = Callable[[Transaction, str, Belongings], object]
REACHES: dict[str, Reach] = {
    "overview.unfinished": lambda tx, who, own: tx.overview.unfinished(who).groups,
    "events.milestones": lambda tx, who, own: tx.events.milestones(who, own.bulk.id, limit=10),
    "events.at": lambda tx, who, own: tx.events.at(who, own.bulk.id, [1]),
    "shards.segments_with_failures": lambda tx, who, own: tx.shards.segments_with_failures(
        who, own.bulk.id, limit=10
    ),
    "shards.leased_of": lambda tx, who, own: tx.shards.leased_of(who, own.bulk.id, limit=10),
    "shards.leased_by": lambda tx, who, own: tx.shards.leased_by(who, own.dead.worker_id, limit=10),
    "deliveries.last_attempts": lambda tx, who, own: tx.deliveries.last_attempts(
        who, own.delivery.id, limit=10
    ),
    "jobs.get": lambda tx, who, own: tx.jobs.get(who, own.bulk.id),
    "jobs.list": lambda tx, who, own: tx.jobs.list(who, limit=10),
    "jobs.runs": lambda tx, who, own: tx.jobs.runs(who, RUN_NAME, limit=10),
    "jobs.find_repeat": lambda tx, who, own: tx.jobs.find_repeat(who, FINGERPRINT, STARTS_AT),
    "jobs.check_output": lambda tx, who, own: names_the_writer(tx, who, own.bulk),
    "holdings.total": lambda tx, who, own: tx.holdings.total(who),
    "holdings.queue": lambda tx, who, own: tx.holdings.queue(who).own,
    "load.has_unfinished": lambda tx, who, own: tx.load.has_unfinished(who),
    "jobs.reading": lambda tx, who, own: tx.jobs.reading(who, str(own.bulk.spec.input)),
    "controls.prioritise": lambda tx, who, own: tx.controls.prioritise(
        who, own.bulk.id, PriorityClass.BACKGROUND
    ),
    "controls.pause": lambda tx, who, own: tx.controls.pause(who, own.bulk.id, tx.now()),
    "controls.resume": lambda tx, who, own: (
        tx.controls.pause(own.bulk.tenant_id, own.bulk.id, tx.now()),
        tx.controls.resume(who, own.bulk.id),
    )[1],
    "controls.replace_spec": lambda tx, who, own: tx.controls.replace_spec(
        who, own.bulk.id, own.bulk.spec, 0
    ),
    "ageing.ended": lambda tx, who, own: tx.ageing.ended(
        who, JobKind.ONLINE, JobPart.JOB, tx.now() + DAY, limit=10
    ),
    "deletions.mark_deleted": lambda tx, who, own: tx.deletions.mark_deleted(who, own.online.id, tx.now()),
    "deletions.delete_gone_receivers": lambda tx, who, own: tx.deletions.delete_gone_receivers(who, limit=10),
    "deletions.waiting": lambda tx, who, own: tx.deletions.waiting(who, limit=10),
    "deletions.delete_ended_deliveries": lambda tx, who, own: tx.deletions.delete_ended_deliveries(
        who, tx.now() + DAY, limit=10
    ),
    "uploads.get": lambda tx, who, own: tx.uploads.get(who, own.upload.id),
    "uploads.count_pending": lambda tx, who, own: tx.uploads.count_pending(who, STARTS_AT),
    "uploads.parts": lambda tx, who, own: tx.uploads.parts(who, own.upload.id),
    "uploads.end": lambda tx, who, own: tx.uploads.end(who, own.upload.id, UploadStatus.CANCELLED),
    "jobs.retries": lambda tx, who, own: tx.jobs.retries(who, own.bulk.id, limit=10),
    "jobs.request_stop": lambda tx, who, own: tx.jobs.request_stop(
        who, own.bulk.id, StopReason.CANCELLED, tx.now()
    ),
    "shards.segments_of_job": lambda tx, who, own: tx.shards.segments_of_job(who, own.bulk.id, limit=10),
    "shards.online_result": lambda tx, who, own: tx.shards.online_result(who, own.online.id),
    "shards.get": lambda tx, who, own: tx.shards.get(who, own.dead.shard_id),
    "shards.request_body": lambda tx, who, own: tx.shards.request_body(who, own.online_shard_id),
    "dead_letters.get": lambda tx, who, own: tx.dead_letters.get(who, own.dead.id),
    "dead_letters.list": lambda tx, who, own: tx.dead_letters.list(who, limit=10),
    "dead_letters.replay": lambda tx, who, own: tx.dead_letters.replay(
        who, own.dead.id, own.online.id, tx.now()
    ),
    "dead_letters.discard": lambda tx, who, own: tx.dead_letters.discard(who, own.dead.id, tx.now()),
    "events.after": lambda tx, who, own: tx.events.after(who, own.bulk.id, 0, limit=10),
    "deliveries.get": lambda tx, who, own: tx.deliveries.get(who, own.delivery.id),
    "deliveries.give_up": lambda tx, who, own: tx.deliveries.give_up(who, own.endpoint.id, limit=10),
    "deliveries.redirect": lambda tx, who, own: tx.deliveries.redirect(who, own.endpoint.id, "https://x/"),
    "deliveries.replay_dead": lambda tx, who, own: tx.deliveries.replay_dead(
        who, own.endpoint.id, "https://x/", tx.now(), since=STARTS_AT, until=STARTS_AT + DAY, limit=10
    ),
    "deliveries.has_dead": lambda tx, who, own: tx.deliveries.has_dead(
        who, own.endpoint.id, since=STARTS_AT, until=STARTS_AT + DAY
    ),
    "webhook_endpoints.get": lambda tx, who, own: tx.webhook_endpoints.get(who, own.endpoint.id),
    "webhook_endpoints.lock": lambda tx, who, own: tx.webhook_endpoints.lock(who, own.endpoint.id),
    "webhook_endpoints.list": lambda tx, who, own: tx.webhook_endpoints.list(who, limit=10),
    "webhook_endpoints.count": lambda tx, who, own: tx.webhook_endpoints.count(who),
    "webhook_endpoints.delete": lambda tx, who, own: tx.webhook_endpoints.delete(who, own.endpoint.id),
    "deliveries.list": lambda tx, who, own: tx.deliveries.list(who, limit=10),
    "deliveries.attempts": lambda tx, who, own: tx.deliveries.attempts(who, own.delivery.id),
    "idempotency.find": lambda tx, who, own: tx.idempotency.find(who, KEY, tx.now()),
    "idempotency.keep": lambda tx, who, own: (
        not tx.idempotency.keep(who, KEY, own.answer, tx.now(), tx.now() + DAY)  # the key is in use
    ),
    "schedules.get": lambda tx, who, own: tx.schedules.get(who, own.schedule.id),
    "schedules.named": lambda tx, who, own: tx.schedules.named(who, own.schedule.name),
    "schedules.list": lambda tx, who, own: tx.schedules.list(who, limit=10),
    "schedules.followed": lambda tx, who, own: tx.schedules.followed(who),
    "schedules.count": lambda tx, who, own: tx.schedules.count(who),
    "schedules.followers": lambda tx, who, own: tx.schedules.followers(who, own.schedule.name),
    "schedules.run": lambda tx, who, own: tx.schedules.run(who, own.run.id),
    "schedules.delete": lambda tx, who, own: tx.schedules.delete(who, own.schedule.id),
    "files.get": lambda tx, who, own: tx.files.get(who, own.file.id, tx.now()),
    "files.get_to_read": lambda tx, who, own: tx.files.get_to_read(who, own.file.id, tx.now()),
    "files.get_to_delete": lambda tx, who, own: tx.files.get_to_delete(who, own.file.id, tx.now()),
    "files.input": lambda tx, who, own: tx.files.input(who, own.file.id),
    "files.list": lambda tx, who, own: tx.files.list(who, tx.now(), limit=10),
    "files.expire": lambda tx, who, own: tx.files.expire(who, own.file.id, tx.now()),
    "files.delete": lambda tx, who, own: tx.files.delete(who, own.file.id),
    "files.expire_all": lambda tx, who, own: (
        tx.files.expire_all(who, tx.now()),
        tx.files.get(own.file.tenant_id, own.file.id, tx.now()) is None,
    )[1],
    "usage.list": lambda tx, who, own: tx.usage.list(
        who, limit=10, since=STARTS_AT.date(), until=STARTS_AT.date()
    ),
    "keys.page": lambda tx, who, own: tx.keys.page(who, limit=10),
    "keys.list": lambda tx, who, own: tx.keys.list(who),
    "keys.webhook_secret": lambda tx, who, own: tx.keys.webhook_secret(who),
    "keys.keep_webhook_secret": lambda tx, who, own: (
        not tx.keys.keep_webhook_secret(who, b"mine", tx.now())  # there is one
    ),
}


def test_every_method_that_takes_a_tenant_is_tried_here(store: Store) -> None:
    with store.snapshot() as tx:
        nouns = inspect.getmembers(Transaction, lambda member: isinstance(member, cached_property))
        methods = {
            f"{noun}.{name}"
            for noun, _ in nouns
            for name, method in inspect.getmembers(getattr(tx, noun), inspect.ismethod)
            if not name.startswith("_") and "tenant_id" in inspect.signature(method).parameters
        }
    # These count for a tenant what its transactions write, and read nothing.
    assert methods - {"holdings.add", "holdings.check_at_end", "holdings.take_turn"} == set(REACHES)


class Undone(Exception):
    """Rolls a transaction back."""


def failing(store: Store, holds: Callable[[Transaction, str], bool]) -> list[str]:
    """The methods for which it does not hold. All are tried on the same rows: a change is rolled back."""
    failed = []
    for method in REACHES:
        with suppress(Undone), store.transaction() as tx:
            if not holds(tx, method):
                failed.append(method)
            raise Undone
    return failed


def test_a_method_reaches_what_is_the_tenants_own_and_nothing_else(store: Store) -> None:
    owned = belongings(store, OWNER)

    def only_its_own(tx: Transaction, method: str) -> bool:
        reach = REACHES[method]
        return not reach(tx, STRANGER, owned) and bool(reach(tx, OWNER, owned))

    assert failing(store, only_its_own) == []


def test_it_makes_no_difference_that_the_stranger_has_things_of_its_own(store: Store) -> None:
    owned, strangers = belongings(store, OWNER), belongings(store, STRANGER)

    def each_its_own(tx: Transaction, method: str) -> bool:
        owners, others = REACHES[method](tx, OWNER, owned), REACHES[method](tx, STRANGER, strangers)
        return bool(owners and others) and not (shows(owners, strangers) or shows(others, owned))

    assert failing(store, each_its_own) == []


def shows(result: object, own: Belongings) -> bool:
    ids = (own.bulk.id, own.online.id, own.file.id, own.delivery.id, own.endpoint.id, own.schedule.id)
    return any(id in str(result) for id in ids)
