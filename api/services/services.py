"""The parts that handlers use, opened once per process and closed with it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool

from api.access import Slots
from api.middleware.turns import BodyMemory, BodyTurns
from api.services.group_commit import GroupCommit
from api.services.previews import Previews
from api.services.rings import RingSender
from api.services.threads import StorageThreads
from api.services.webhook_samples import WebhookSamples
from nightshift.broker.hints import HintPublisher
from nightshift.broker.queue import Queue
from nightshift.broker.rate_limits import RateLimits
from nightshift.broker.token_streams import StreamReader
from nightshift.lifecycle.catalogue import CachedCatalogue
from nightshift.lifecycle.submission import Submitter, egress_config
from nightshift.objectstore import Locations, ObjectStore, open_store
from nightshift.objectstore.sources import Sources
from nightshift.outbound.safe_http import Egress
from nightshift.process.settings import (
    ApiSettings,
    DataSettings,
    LocationSettings,
    QueueSettings,
    QuotaSettings,
    SubmissionSettings,
)
from nightshift.store import Store, open_database
from nightshift.tenants.vault import Vault, open_vault


@dataclass(frozen=True)
class AppSettings:
    """The API's settings, by concern."""

    data: DataSettings = field(default_factory=DataSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    locations: LocationSettings = field(default_factory=LocationSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    submission: SubmissionSettings = field(default_factory=SubmissionSettings)
    quotas: QuotaSettings = field(default_factory=QuotaSettings)


@dataclass(frozen=True)
class Services:
    settings: AppSettings
    store: Store
    queue: Queue
    ring_sender: RingSender
    streams: StreamReader
    objects: ObjectStore
    storage_threads: StorageThreads  # for every call of `objects`
    vault: Vault
    catalogue: CachedCatalogue
    submitter: Submitter
    group_commit: GroupCommit
    sources: Sources
    body_memory: BodyMemory
    body_turns: BodyTurns
    rate_limits: RateLimits
    slots: Slots
    webhook_samples: WebhookSamples
    previews: Previews


def try_settings(settings: AppSettings) -> None:
    """Opens and closes what the settings name, without connecting. Raises ConfigurationError, InvalidRequest,
    OSError.
    """
    open_database(settings.data).close()
    open_store(settings.data.resolved_storage_url).close()
    Locations.of_settings(settings.locations, settings.data).close()
    open_vault(settings.data.secret_key, settings.data.data_dir)


@asynccontextmanager
async def open_services(settings: AppSettings) -> AsyncIterator[Services]:
    """Opens everything; connections are made on first use."""
    store = Store(open_database(settings.data))
    queue = Queue(settings.queue)
    hint_publisher = HintPublisher(settings.queue)
    streams = StreamReader(settings.queue)
    objects = open_store(settings.data.resolved_storage_url)
    locations = Locations.of_settings(settings.locations, settings.data)
    ring_sender = RingSender(queue, hint_publisher, store)
    rate_limits = RateLimits(settings.queue)
    vault = open_vault(settings.data.secret_key, settings.data.data_dir)
    catalogue = CachedCatalogue(settings.submission.announced_models, snapshot=store.snapshot)
    submitter = Submitter(locations, vault, catalogue, settings.submission, settings.quotas.defaults)
    try:
        yield Services(
            settings=settings,
            store=store,
            queue=queue,
            ring_sender=ring_sender,
            streams=streams,
            objects=objects,
            storage_threads=StorageThreads(),
            vault=vault,
            catalogue=catalogue,
            submitter=submitter,
            group_commit=GroupCommit(store, submitter, ring_sender.send),
            sources=Sources(objects, locations),
            body_memory=BodyMemory(max(settings.api.bodies_bytes_max, 2 * settings.api.body_bytes_max)),
            body_turns=BodyTurns(),
            rate_limits=rate_limits,
            slots=Slots(),
            webhook_samples=WebhookSamples(Egress(egress_config(settings.submission))),
            previews=Previews(),
        )
    finally:
        await run_in_threadpool(ring_sender.close)
        await streams.close()
        await rate_limits.close()
        locations.close()
        objects.close()
        queue.close()
        hint_publisher.close()
        store.close()
