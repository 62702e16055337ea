"""Measures the cost of a row of embeddings from Parquet to Parquet, with an encoder that answers zeros.

    python -m benchmarks.data_plane --count 100000

In one process, with SQLite and a directory: shards one after another as a worker runs them, beside the duty
that cuts and writes parts. Texts are not tokenised. CPU time is the process's.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.reliability.databases import store_on
from benchmarks.report import Figure, report_figures
from benchmarks.zeros import MODEL, Zeros
from nightshift.bulk.results.part_writer import PartDependencies
from nightshift.jobs import BulkClaim, Job, JobState, NewShard
from nightshift.lifecycle import transitions
from nightshift.objectstore import MIB, DirectoryStore, Locations
from nightshift.objectstore.sources import Sources
from nightshift.process import memory
from nightshift.process.settings import WorkerSettings
from nightshift.store import Store
from scheduler.duties.assembly import Assembly
from scheduler.duties.running_output import OutputParts
from scheduler.runtime.leadership import Elector
from tests.helpers.fakes import a_new_job, a_spec
from workers.leases.heartbeat import Heartbeat
from workers.serving.models import Models
from workers.serving.servers.encoder_server import EmbeddingServer
from workers.shard.config import ShardConfig, ShardDependencies
from workers.shard.run_once import EarlierJobs
from workers.shard.runner import ShardRunner

SHARD_ROWS: Final = 2000
LINE_BYTES_MAX: Final = MIB
WAIT_S: Final = 3600.0


class TrustedLeases:
    """Stands for `Heartbeat`: leases of an hour need none."""

    def trusts(self, lease: object) -> bool:
        return True

    def release(self, lease: object) -> None:
        return


@dataclass(frozen=True)
class Bench:
    store: Store
    parts: PartDependencies
    folder: Path

    def submit(self, count: int) -> Job:
        """A planned job over one object."""
        source = self.folder / "in.parquet"
        texts = [f"some text of a few words, and its number {row}" for row in range(count)]
        table = pa.table({"id": [f"doc-{row}" for row in range(count)], "text": texts})
        pq.write_table(table, source, row_group_size=SHARD_ROWS)
        spec = a_spec(
            endpoint="/v1/embeddings",
            input=source.as_uri(),
            output=f"{(self.folder / 'out').as_uri()}/",
            template={"model": MODEL.id, "input": "{{text}}"},
            id_column="id",
            format="parquet",
        )
        groups = range(-(-count // SHARD_ROWS))
        shards = [
            NewShard(shard_no=group, uri=spec.input or "", format="parquet", start=group, end=group + 1)
            for group in groups
        ]
        with self.store.transaction() as tx:
            tx.workers.register_model(MODEL, tx.now())
            job = transitions.submit_bulk(tx, a_new_job(spec=spec, model=MODEL.id), tx.now()).job
            assert transitions.plan(tx, job, MODEL.id, shards, tx.now(), rows_estimated=count)
        return job

    def run_rows(self, server: EmbeddingServer) -> None:
        """All shards, one after another."""
        dependencies = ShardDependencies(
            self.store,
            self.parts.objects,
            self.parts.sources,
            Models([server]),
            cast(Heartbeat, TrustedLeases()),
            EarlierJobs(self.store, self.parts.objects),
        )
        while (claim := self._claimed()) is not None:
            runner = ShardRunner(claim, dependencies, _config(), lambda runner: None)
            runner.start()
            assert runner.join(WAIT_S), "a shard did not end"

    def _claimed(self) -> BulkClaim | None:
        with self.store.transaction() as tx:
            return tx.claims.bulk("worker", [MODEL.id], tx.now(), WAIT_S)

    @contextmanager
    def writing_parts(self, elector: Elector) -> Iterator[None]:
        """The scheduler's duty, pass by pass, on a thread."""
        duty = OutputParts(self.parts, "scheduler", lambda: elector.lead)
        over = threading.Event()

        def run() -> None:
            while not over.wait(duty.interval_s):
                duty.run_once(self.store.now())

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            duty.wait_until_idle(WAIT_S)

    def end(self, elector: Elector, job: Job) -> Job:
        """Assembly's passes until the job has ended."""
        assembly = Assembly(self.parts, lambda: elector.lead)
        while True:
            assembly.run_once(self.store.now())
            assembly.wait_until_idle(WAIT_S)
            with self.store.snapshot() as tx:
                ended = tx.jobs.fetch(job.id)
            if ended.state.is_terminal:
                return ended
            time.sleep(assembly.interval_s)


@contextmanager
def opened() -> Iterator[tuple[Bench, EmbeddingServer]]:
    """An empty service in this process, and the server of the zeros, which runs."""
    with store_on("sqlite") as store, tempfile.TemporaryDirectory(prefix="ns-bench-") as name:
        folder = Path(name)
        objects, locations = DirectoryStore(folder / "objects"), Locations((), (folder,))
        sources = Sources(objects, locations)
        server = EmbeddingServer(MODEL, cast(Any, Zeros()), _fatal)
        server.start()
        parts = PartDependencies(store, objects, sources, locations, LINE_BYTES_MAX)
        yield Bench(store, parts, folder), server
        server.stop()


def measured(count: int) -> Iterator[Figure]:
    with opened() as (bench, server):
        store, job = bench.store, bench.submit(count)
        elector = Elector(store, "scheduler")
        assert elector.attempt()
        keeping = threading.Event()
        threading.Thread(target=elector.run, args=(keeping,), daemon=True).start()
        memory.collect_less_often()
        cpu_s, began_s = time.process_time(), time.monotonic()
        with bench.writing_parts(elector):
            bench.run_rows(server)
            rows_s = time.monotonic() - began_s
            ended = bench.end(elector, job)
        took_s = time.monotonic() - began_s
        cpu_s = time.process_time() - cpu_s
        keeping.set()
        assert (ended.state, ended.counts.succeeded) == (JobState.SUCCEEDED, count), ended.errors
        with store.snapshot() as tx:
            shards = tx.shards.of_job(job.id, limit=1_000_000)
            stored = sum(segment.size_bytes for shard in shards for segment in tx.shards.segments(shard.id))
        yield Figure("CPU of a row, worker and scheduler", 1e6 * cpu_s / count, "us", 100)
        yield Figure("rows per second", count / rows_s, "rows/s", 6000, "more")
        yield Figure("last row done to _SUCCESS", took_s - rows_s, "s", 5)
        yield Figure("stored on the way, of a row", stored / count, "bytes", 1800)


def _config() -> ShardConfig:
    settings = WorkerSettings()
    return ShardConfig(
        rows_in_flight_max=settings.decoder_rows_in_flight_max,
        encoder_rows_in_flight_max=settings.encoder_rows_in_flight_max,
        segment_rows=settings.segment_rows,
        segment_interval_s=settings.segment_interval_s,
        carry_over_interval_s=settings.carry_over_interval_s,
        flush_s=WAIT_S,
        stop_grace_s=WAIT_S,
        line_bytes_max=LINE_BYTES_MAX,
        segment_spacing_s=settings.segment_spacing_s,
    )


def _fatal(error: BaseException) -> None:
    raise AssertionError("the encoder's thread ended") from error


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="rows")
    chosen = parser.parse_args(arguments)
    report_figures("data-plane", [*measured(chosen.count)])


if __name__ == "__main__":
    main()
