"""What the handlers use: the store, the queue, the token streams, the object store, the vault.

Opened once per process from the settings and closed with it. Handlers get them through `api/dependencies.py`
and never make their own.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.concurrency import run_in_threadpool

from api.middleware.bodies import BodyMemory
from api.rings import RingSender
from nightshift.broker.hints import HintPublisher
from nightshift.broker.queue import Queue
from nightshift.broker.token_streams import StreamReader
from nightshift.fleet.catalogue import CachedCatalogue
from nightshift.lifecycle.submission import Submitter
from nightshift.objectstore import Locations, ObjectStore, open_store
from nightshift.objectstore.sources import Sources
from nightshift.settings import (
    ApiSettings,
    DataSettings,
    LocationSettings,
    QueueSettings,
    SubmissionSettings,
)
from nightshift.store import Store, open_database
from nightshift.tenants.vault import Vault, open_vault

T = TypeVar("T")

STORAGE_THREADS_MAX: Final = 32  # calls of the object store at once; the next wait in the event loop


class StorageThreads:
    """Threads for calls of the object store, apart from all others: a store that hangs delays nothing else.
    Made inside the event loop that uses it.
    """

    def __init__(self) -> None:
        self._limiter = CapacityLimiter(STORAGE_THREADS_MAX)

    async def run(self, call: Callable[[], T]) -> T:
        return await to_thread.run_sync(call, limiter=self._limiter)

    async def iterate(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        """A stream out of the object store. Between two pieces it keeps no thread."""
        while (piece := await self.run(lambda: next(pieces, None))) is not None:
            yield piece


@dataclass(frozen=True)
class AppSettings:
    """Every setting the API reads, one object per concern."""

    data: DataSettings = field(default_factory=DataSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    locations: LocationSettings = field(default_factory=LocationSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    submission: SubmissionSettings = field(default_factory=SubmissionSettings)


@dataclass(frozen=True)
class Services:
    settings: AppSettings
    store: Store
    queue: Queue
    ring_sender: RingSender
    streams: StreamReader
    objects: ObjectStore
    storage_threads: StorageThreads  # every call of `objects` is made there
    vault: Vault
    catalogue: CachedCatalogue
    submitter: Submitter
    sources: Sources
    body_memory: BodyMemory


def try_settings(settings: AppSettings) -> None:
    """Open what they name and close it again. Connects to nothing. Raises ConfigurationError, InvalidRequest
    and OSError where that is not possible.
    """
    open_database(settings.data).close()
    open_store(settings.data.resolved_storage_url).close()
    Locations(settings.locations.s3_buckets, settings.locations.file_roots).close()
    open_vault(settings.data)


@asynccontextmanager
async def open_services(settings: AppSettings) -> AsyncIterator[Services]:
    """Everything open; closed in the end. Connections are made when they are first needed."""
    store = Store(open_database(settings.data))
    queue = Queue(settings.queue)
    hint_publisher = HintPublisher(settings.queue)
    streams = StreamReader(settings.queue)
    objects = open_store(settings.data.resolved_storage_url)
    locations = Locations(settings.locations.s3_buckets, settings.locations.file_roots)
    ring_sender = RingSender(queue, hint_publisher, store)
    vault = open_vault(settings.data)
    catalogue = CachedCatalogue(settings.submission.models)
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
            submitter=Submitter(locations, vault, catalogue, settings.submission),
            sources=Sources(objects, locations),
            body_memory=BodyMemory(max(settings.api.bodies_bytes_max, 2 * settings.api.body_bytes_max)),
        )
    finally:
        await run_in_threadpool(ring_sender.close)
        await streams.close()
        locations.close()
        objects.close()
        queue.close()
        hint_publisher.close()
        store.close()
