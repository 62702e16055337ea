"""How busy the engine is while rows remain, with every S3 request answered late.

    python -m benchmarks.slow_storage

Embeddings from Parquet to Parquet; input, segments and output lie on an S3 server of this machine, behind a
proxy that holds each answer back. The time is that from the first batch begun to the last one ended.
"""

from __future__ import annotations

import argparse
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import checkpoints, records
from benchmarks.report import Cell, report, share
from benchmarks.service.running import PARTS, run_job, service_with
from benchmarks.texts import make_texts
from nightshift.fleet.checkpoints import model_id
from nightshift.settings import PREFIX
from tests.faults.kit.service import Service
from tests.integration.objectstore.s3_faults import ANY, Slow
from tests.integration.servers import HOST, free_port

SEED: Final = 13
_STEP_SECONDS: Final = re.compile(r"^nightshift_worker_step_seconds_total\{[^}]*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Size:
    """Of an input and of its shards, each of at least a row group."""

    rows: int
    group_rows: int
    shard_bytes: int


def measured(checkpoint: Path, size: Size, delay_s: float) -> dict[str, Cell]:
    parts = replace(PARTS, objects="moto", s3_faults_seed=SEED)
    port = free_port()
    with TemporaryDirectory(prefix="ns-bench-") as written_to:
        settings = {
            records.FOLDER.removeprefix(PREFIX): written_to,
            "WORKER_METRICS_PORT": str(port),
            "SHARD_BYTES": str(size.shard_bytes),
        }
        with service_with(checkpoint, parts, pool="RecordingPool", **settings) as service:
            source = service.put_file("in.parquet", parquet(make_texts(size.rows, SEED), size.group_rows))
            assert service.s3_front is not None
            service.s3_front.seen.clear()
            service.s3_front.set(ANY, Slow(delay_s))
            body = {
                "endpoint": "embeddings",
                "input": source,
                "output": service.location("out/"),
                "template": {"model": model_id(str(checkpoint)), "input": "{{text}}"},
                "id_column": "id",
                "format": "parquet",
            }
            ended = run_job(service, body, size.rows)
            requests, stepping_s = len(service.s3_front.seen), step_seconds(port)
            shards = num_shards(service, ended.job.id)
        calls = records.calls_ended(Path(written_to))
    remaining_s = (max(call.ended_ns for call in calls) - calls[0].began_ns) / 1e9
    computing_s = sum(call.ended_ns - call.began_ns for call in calls) / 1e9
    return {
        "added to a request, ms": round(1000 * delay_s),
        "rows": size.rows,
        "shards": shards,
        "a shard, s": remaining_s / shards,
        "requests": requests,
        "rows remain, s": remaining_s,
        "in a step": share(stepping_s, remaining_s),
        "in the model": share(computing_s, remaining_s),
        "rows/s": size.rows / remaining_s,
        "submit to end, s": ended.after_submit_s,
    }


def parquet(texts: Sequence[str], group_rows: int) -> bytes:
    table = pa.table({"id": [f"row-{number}" for number in range(len(texts))], "text": texts})
    written = io.BytesIO()
    pq.write_table(table, written, row_group_size=group_rows)
    return written.getvalue()


def step_seconds(port: int) -> float:
    """Time in the worker's steps since its start."""
    metrics = httpx.get(f"http://{HOST}:{port}/metrics", trust_env=False).raise_for_status().text
    found = _STEP_SECONDS.search(metrics)
    assert found is not None, "the worker shows no steps"
    return float(found[1])


def num_shards(service: Service, job_id: str) -> int:
    with service.store.snapshot() as tx:
        return len(tx.shards.of_job(job_id, limit=100_000))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--group-rows", type=int, default=500, help="of a row group")
    parser.add_argument("--shard-bytes", type=int, default=16 * 1024)
    parser.add_argument("--delays", type=float, nargs="+", default=[0.0, 100.0], metavar="MS")
    parser.add_argument("--encoder", default="minilm", choices=["minilm", "minilm-tiny"])
    chosen = parser.parse_args(arguments)
    checkpoint = checkpoints.ensure_encoder(chosen.encoder)
    size = Size(chosen.rows, chosen.group_rows, chosen.shard_bytes)
    rows = [measured(checkpoint, size, ms / 1000) for ms in chosen.delays]
    report(
        "slow-storage", rows, ["One torch thread; the S3 server and its proxy have the rest of the machine."]
    )


if __name__ == "__main__":
    main()
