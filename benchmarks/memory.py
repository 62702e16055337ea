"""What each process of the service takes at its peak, for a bulk job of few rows and one of very many.

    python -m benchmarks.memory

Embeddings from Parquet to Parquet with an encoder that answers zeros, in a worker without torch: what grows
with the rows would show. Each job has a service of its own; a peak is VmHWM, after the job has ended. The one
part of a small job is written by the worker or by the scheduler: it is run several times, the most counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import peak_rss_of
from benchmarks.report import Cell, report
from benchmarks.service.running import run_job, service_with
from benchmarks.zeros import DIMENSIONS, MODEL
from nightshift.jobs import Job
from tests.faults.kit.service import Service

GROUP_ROWS: Final = 2_500  # a shard: the small job has as many at once as a worker runs
SHARD_BYTES: Final = 4096  # less than such a row group has, so that none is put together with others
PROCESSES: Final = {"api": "API", "scheduler-1": "scheduler", "worker-1": "worker", "machine-1": "supervisor"}
"""By their roles."""
MB: Final = 1e6


def peaks(service: Service) -> dict[str, float]:
    """In MB, by process."""
    return {name: peak_rss_of(service.pid(role)) / MB for role, name in PROCESSES.items()}


def write_texts(rows: int, path: Path) -> None:
    """Without more than a row group in memory."""
    schema = pa.schema({"id": pa.string(), "text": pa.string()})
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, GROUP_ROWS):
            numbers = range(start, min(rows, start + GROUP_ROWS))
            columns = {
                "id": [f"doc-{number}" for number in numbers],
                "text": [f"some text of a few words, and its number {number}" for number in numbers],
            }
            writer.write_table(pa.table(columns, schema=schema))


def shards_of(service: Service, job: Job) -> int:
    with service.store.snapshot() as tx:
        return len(tx.shards.of_job(job.id, limit=ceil(job.counts.succeeded / GROUP_ROWS) + 1))


def measured(rows: int) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Peaks before the job and after it."""
    with service_with(MODEL.id, pool="ZerosPool", SHARD_BYTES=str(SHARD_BYTES)) as service:
        source = Path(service.location("in.parquet").removeprefix("file://"))
        source.parent.mkdir(parents=True, exist_ok=True)
        write_texts(rows, source)
        before = peaks(service)
        body = {
            "endpoint": "embeddings",
            "input": source.as_uri(),
            "output": service.location("out/"),
            "template": {"model": MODEL.id, "input": "{{text}}"},
            "id_column": "id",
            "format": "parquet",
        }
        ended = run_job(service, body, rows)
        assert shards_of(service, ended.job) == ceil(rows / GROUP_ROWS), "shards are not row groups"
        assert not service.exits, "a process was started again: its peak is lost"
        print(f"  {rows} rows: {rows / ended.after_claim_s:.0f} rows/s", flush=True)
        return before, peaks(service)


def most(rows: int, times: int) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """The largest of several runs, process by process."""
    runs = [measured(rows) for _ in range(times)]
    before, after = ({name: max(run[at][name] for run in runs) for name in runs[0][at]} for at in (0, 1))
    return before, after


def table(counts: Sequence[int], times: int) -> Iterator[dict[str, Cell]]:
    first, last = counts[0], counts[-1]
    runs = {rows: most(rows, times if rows == first else 1) for rows in counts}
    for process in PROCESSES.values():
        yield {
            "process": process,
            "idle, MB": runs[first][0][process],
            **{f"{rows:,} rows, MB": runs[rows][1][process] for rows in counts},
            "ratio": runs[last][1][process] / runs[first][1][process],
        }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 1_000_000], help="of each job")
    parser.add_argument("--times", type=int, default=4, help="that the first of these jobs is run")
    asked = parser.parse_args(arguments)
    report(
        "memory",
        [*table(asked.rows, asked.times)],
        [f"Vectors of {DIMENSIONS} dimensions, SQLite and a directory."],
    )


if __name__ == "__main__":
    main()
