"""A job seen from outside its transactions, and orders to it, each in its own."""

from nightshift.jobs import Counts, Job, JobState, ShardState, StopReason, Webhook
from nightshift.jobs.leases import Lease
from nightshift.jobs.shard import Ring
from nightshift.lifecycle import transitions
from nightshift.outbound.webhooks import Delivery
from nightshift.store import Store
from nightshift.store.webhooks.deliveries import DeliveryFilters
from nightshift.tenants.holdings import Holding
from tests.helpers.fakes import a_spec, claimed, completed, planned

HOOK = "https://receiver.example/hook"


def with_webhook(*events: str) -> dict[str, object]:
    return {"spec": a_spec(webhook=Webhook(url=HOOK, events=events))}


def fetch(store: Store, job: Job) -> Job:
    with store.snapshot() as tx:
        return tx.jobs.fetch(job.id)


def events(store: Store, job: Job) -> list[str]:
    with store.snapshot() as tx:
        return [event.type for event in tx.events.after(job.tenant_id, job.id, 0, limit=100)]


def owed(store: Store, job: Job) -> list[Delivery]:
    with store.snapshot() as tx:
        return list(tx.deliveries.list(job.tenant_id, limit=10, filters=DeliveryFilters(job_id=job.id)))


def rings_waiting(store: Store) -> list[Ring]:
    with store.snapshot() as tx:
        return list(tx.outbox.waiting(tx.now(), limit=100))


def shard_states(store: Store, job: Job) -> list[ShardState]:
    with store.snapshot() as tx:
        return [shard.state for shard in tx.shards.of_job(job.id, limit=100)]


def request_stop(store: Store, job: Job, reason: StopReason = StopReason.CANCELLED) -> bool:
    with store.transaction() as tx:
        return transitions.request_stop(tx, job, reason, tx.now())


def finish(
    store: Store, job: Job, state: JobState = JobState.SUCCEEDED, counts: Counts | None = None
) -> bool:
    with store.transaction() as tx:
        return transitions.finish(tx, job, state, tx.now(), counts=counts)


def finalizing(store: Store, **overrides: object) -> Job:
    """A bulk job all of whose rows are done."""
    job = planned(store, **overrides)  # type: ignore[arg-type]
    completed(store, claimed(store).lease, rows_total=0)
    with store.transaction() as tx:
        assert tx.jobs.mark_finalizing(job.id, tx.now())
        return tx.jobs.fetch(job.id)


def hand_back(store: Store, lease: Lease) -> bool:
    with store.transaction() as tx:
        return tx.leases.hand_back(lease)


def stop_held(store: Store, lease: Lease) -> bool:
    with store.transaction() as tx:
        return tx.shards.stop_held(lease)


def counters(store: Store) -> dict[str, int]:
    with store.snapshot() as tx:
        return dict(tx.counters.values())


def holding(store: Store, tenant_id: str = "default") -> Holding:
    """The counters of a tenant, which a recount finds too."""
    with store.snapshot() as tx:
        assert tx.holdings.differences() == {}
        return tx.holdings.total(tenant_id)
