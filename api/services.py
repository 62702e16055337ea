"""What the handlers stand on: the store, the doorbell, the token streams, the object store, the vault.

Opened once per process from the settings and closed with it. Handlers get them through `api/dependencies.py`
and never make their own.
"""

import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from api.storage_threads import StorageThreads
from nightshift import failpoints
from nightshift.errors import DatabaseUnavailable, QueueUnavailable
from nightshift.nudges import Nudger
from nightshift.objectstore import Locations, ObjectStore, open_store
from nightshift.queue import Queue
from nightshift.settings import ApiSettings, DataSettings, LocationSettings, QueueSettings
from nightshift.store import Store, open_database
from nightshift.store.outbox import Ring
from nightshift.streams import StreamReader
from nightshift.vault import Vault, open_vault

log = logging.getLogger(__name__)

# After a failed ring nobody rings for so long: a dead Redis costs one request a wait, not every request.
DOORBELL_REST_S: Final = 2.0


@dataclass(frozen=True)
class AppSettings:
    """Every setting the API reads, one object per concern."""

    data: DataSettings = field(default_factory=DataSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    locations: LocationSettings = field(default_factory=LocationSettings)
    api: ApiSettings = field(default_factory=ApiSettings)


class Doorbell:
    """Tells the workers at once what the outbox would tell them later. It may fail; it may not delay."""

    def __init__(self, queue: Queue, nudger: Nudger, store: Store) -> None:
        self._queue = queue
        self._nudger = nudger
        self._store = store
        self._rests_until_s = 0.0

    def ring(self, rings: Sequence[Ring]) -> bool:
        """Send committed rings and take them out of the outbox. False: the scheduler will send them."""
        if not rings or time.monotonic() < self._rests_until_s:
            return False
        try:
            self._queue.ring(rings)
            failpoints.hit("api.rung")
            with self._store.transaction() as tx:
                tx.outbox.delete([ring.id for ring in rings])
        except QueueUnavailable:
            self._rests_until_s = time.monotonic() + DOORBELL_REST_S
            log.warning("the queue is away; work waits in the outbox", extra={"action": "ring_failed"})
            return False
        except DatabaseUnavailable:
            log.warning("rings were sent and stay in the outbox", extra={"action": "ring_kept"})
        return True

    def nudge(self) -> None:
        """A job was told to stop, and that is committed: its workers need not wait for their next look."""
        if time.monotonic() >= self._rests_until_s and not self._nudger.nudge():
            self._rests_until_s = time.monotonic() + DOORBELL_REST_S


@dataclass(frozen=True)
class Services:
    settings: AppSettings
    store: Store
    queue: Queue
    doorbell: Doorbell
    streams: StreamReader
    objects: ObjectStore
    storage_threads: StorageThreads  # whatever asks `objects` does so there
    vault: Vault
    locations: Locations


@asynccontextmanager
async def open_services(settings: AppSettings) -> AsyncIterator[Services]:
    """Everything open; closed in the end. Connections are made when they are first needed."""
    store = Store(open_database(settings.data))
    queue = Queue(settings.queue)
    nudger = Nudger(settings.queue)
    streams = StreamReader(settings.queue)
    objects = open_store(settings.data.resolved_storage_url)
    locations = Locations(settings.locations.s3_buckets, settings.locations.file_roots)
    try:
        yield Services(
            settings=settings,
            store=store,
            queue=queue,
            doorbell=Doorbell(queue, nudger, store),
            streams=streams,
            objects=objects,
            storage_threads=StorageThreads(),
            vault=open_vault(settings.data),
            locations=locations,
        )
    finally:
        await streams.close()
        locations.close()
        objects.close()
        queue.close()
        nudger.close()
        store.close()
