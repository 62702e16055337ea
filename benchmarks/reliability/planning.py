"""What planning an input of very many objects costs: memory, the longest write, the wait for the first row.

The objects are generated: a listing page of 1,000 keys and every other request takes 20 ms, as with S3. The
rows are one an object. JSONL objects are not read, but for the first ones; of each Parquet object the footer
is. Images are not read, and a shard has many.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import Connection, text

from benchmarks.reliability.databases import store_on
from benchmarks.reliability.figures import Figure, quantile
from benchmarks.reliability.ingest import planning_config
from benchmarks.reliability.services import Database
from nightshift.errors import ObjectNotFound
from nightshift.jobs import JsonObject
from nightshift.objectstore import Locations, ObjectInfo
from nightshift.objectstore.sources import Sources
from nightshift.store import Store
from nightshift.store.shards.outbox import Ring
from nightshift.testing import MODEL, InMemoryQueue, a_spec, submit
from scheduler.duties.planning import Planning
from scheduler.input.retrying import RetryInputs
from scheduler.runtime.leadership import Elector

REQUEST_S = 0.02
KEYS_PER_REQUEST = 1000
PARQUET_OBJECTS_MAX = 20_000  # each takes two requests
MEMORY_MIB_MAX = 64.0
WRITE_MS_MAX = 100.0
FIRST_SHARD_S_MAX = 10.0
TURN_TIMEOUT_S = 600.0
TEMPLATE = {"model": MODEL, "messages": [{"role": "user", "content": "{{text}}"}]}
IMAGE_TEMPLATE = {"model": MODEL, "input": "{{image}}"}


def measure(database: Database, objects: int) -> Iterator[Figure]:
    yield from _measured(database, objects, "jsonl", b'{"text": "some text"}\n')
    table = pa.table({"text": ["some text"]})
    with io.BytesIO() as file:
        pq.write_table(table, file)
        yield from _measured(database, min(objects, PARQUET_OBJECTS_MAX), "parquet", file.getvalue())


def measure_images(database: Database, objects: int) -> Iterator[Figure]:
    yield from _measured(database, objects, "png", b"not read", IMAGE_TEMPLATE)


def _measured(
    database: Database, objects: int, ending: str, data: bytes, template: JsonObject = TEMPLATE
) -> Iterator[Figure]:
    generated = GeneratedStore(objects, ending, data)
    with store_on(database) as store, closing(Locations((), ("/",))) as locations:
        vars(locations)["open"] = lambda *where: generated
        writes = _timed_writes(store)
        queue = _RungQueue()
        duty = _planning(store, queue, locations)
        spec = a_spec(input="file:///in/", output="file:///out/", template=template)
        bytes_before = _database_bytes(store)
        job = submit(store, model=MODEL, spec=spec)
        writes.clear()
        idle_mib = _reset_peak_mib()
        began_s = time.monotonic()
        turns = _plan(store, duty, job.id)
        took_s = time.monotonic() - began_s
        peak_mib = _status_mib("VmHWM") - idle_mib
        object_bytes = (_database_bytes(store) - bytes_before) / objects
    name = f"{objects} {ending} objects"
    yield Figure(f"{name}: memory beyond idle", peak_mib, "MiB", MEMORY_MIB_MAX)
    taken_ms, cpu_ms = [each.taken_ms for each in writes], [each.cpu_ms for each in writes]
    yield Figure("  longest write transaction", max(taken_ms), "ms", WRITE_MS_MAX)
    yield Figure("  … of 99.9 % of them", quantile(taken_ms, 0.999), "ms")
    yield Figure("  … of half of them", quantile(taken_ms, 0.5), "ms")
    yield Figure("  … most CPU time of its thread", max(cpu_ms), "ms")
    yield Figure("  write transactions", len(writes), "")
    yield Figure(f"  … over {WRITE_MS_MAX:g} ms", sum(each > WRITE_MS_MAX for each in taken_ms), "")
    yield Figure("  first shard claimable after", queue.rung_at_s - began_s, "s", FIRST_SHARD_S_MAX)
    yield Figure("  all of it planned after", took_s, "s")
    yield Figure("  turns", turns, "")
    yield Figure("  listing requests", generated.listing_requests, "")
    yield Figure("  database per object", object_bytes, "bytes")


class GeneratedStore:
    """Objects that exist only as numbers, all with the same bytes."""

    def __init__(self, objects: int, ending: str, data: bytes) -> None:
        self.listing_requests = 0
        self._objects = objects
        self._ending = ending
        self._data = data
        self._modified_at = datetime(2026, 1, 1, tzinfo=UTC)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[ObjectInfo]:
        first = 0 if start_after is None else int(Path(start_after).stem) + 1
        for number in range(first, self._objects):
            if (number - first) % KEYS_PER_REQUEST == 0:
                self.listing_requests += 1
                time.sleep(REQUEST_S)
            yield self._info(f"{prefix}{number:08}.{self._ending}")

    def head(self, key: str) -> ObjectInfo | None:
        time.sleep(REQUEST_S)
        return self._info(key) if self._has(key) else None

    def stream(
        self, key: str, start: int = 0, end: int | None = None, *unused: Any, **options: Any
    ) -> Iterator[bytes]:
        time.sleep(REQUEST_S)
        if not self._has(key):
            raise ObjectNotFound(f"{key} does not exist")
        yield self._data[start:end]

    def _has(self, key: str) -> bool:
        """Not what an output would consist of."""
        return key.endswith(f".{self._ending}")

    def _info(self, key: str) -> ObjectInfo:
        return ObjectInfo(key=key, size_bytes=len(self._data), etag="e", modified_at=self._modified_at)


class _RungQueue(InMemoryQueue):
    """Says when the first shards were claimable."""

    rung_at_s = 0.0

    def ring(self, rings: Any) -> None:
        self.rung_at_s = self.rung_at_s or time.monotonic()
        super().ring(rings)
        self.rings: list[Ring] = []


def _planning(store: Store, queue: _RungQueue, locations: Locations) -> Planning:
    elector = Elector(store, "benchmark", clock=lambda: 0.0)
    elector.attempt()
    objects: Any = None  # none of the service's own are read
    sources, config = Sources(objects, locations), planning_config(rows_max=1)
    retries = RetryInputs(store, objects, sources, config.survey.line_bytes_max)
    return Planning(store, queue, sources, locations, config, lambda: elector.lead, retries)


def _plan(store: Store, duty: Planning, job_id: str) -> int:
    """Returns how many turns it took."""
    turns = 0
    while True:
        turns += duty.run_once(store.now()).started
        assert duty.wait_until_idle(TURN_TIMEOUT_S)
        with store.snapshot() as tx:
            job = tx.jobs.fetch(job_id)
        assert not job.state.is_terminal, job.errors
        if job.planned_at is not None:
            return turns


@dataclass(frozen=True)
class Write:
    taken_ms: float
    cpu_ms: float  # of the thread alone: a machine that is busy with other things does not change it


def _timed_writes(store: Store) -> list[Write]:
    """What write transactions take from here on, commit included."""
    taken: list[Write] = []
    write: Callable[..., AbstractContextManager[Connection]] = store.database.write

    @contextmanager
    def timed(**options: Any) -> Iterator[Connection]:
        began_s, cpu_began_s = time.monotonic(), time.thread_time()
        with write(**options) as connection:
            yield connection
        taken_s, cpu_s = time.monotonic() - began_s, time.thread_time() - cpu_began_s
        taken.append(Write(1000 * taken_s, 1000 * cpu_s))

    vars(store.database)["write"] = timed
    return taken


def _database_bytes(store: Store) -> int:
    with store.database.read() as connection:
        if store.database.is_sqlite:
            pages = connection.execute(text("PRAGMA page_count")).scalar_one()
            return int(pages * connection.execute(text("PRAGMA page_size")).scalar_one())
        return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())


def _reset_peak_mib() -> float:
    """The process's memory now, from which its peak is counted anew."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status_mib("VmRSS")


def _status_mib(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise KeyError(name)
