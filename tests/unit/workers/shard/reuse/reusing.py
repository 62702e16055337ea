"""What the tests of reuse share."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from nightshift.endpoints.requests import ModelRequest
from nightshift.jobs import Job
from nightshift.jobs.part import PartFile
from nightshift.store import Store
from tests.unit.workers.scripted import ScriptedServer, prompt_of
from tests.unit.workers.shard.helpers import (
    batch_line,
)


class Repeatable(ScriptedServer):
    """Answers without a temperature are not drawn at random."""

    def is_repeatable(self, request: ModelRequest) -> bool:
        return getattr(request, "temperature", None) is None


def prompts(model: ScriptedServer) -> list[str]:
    return sorted(prompt_of(inference) for inference in model.submitted)


def text_of(result) -> str:
    return result.body["choices"][0]["message"]["content"]


def reused(store: Store, job: Job) -> int:
    with store.snapshot() as tx:
        return tx.jobs.fetch(job.id).rows_reused


RunJob = Callable[..., Job]


def numbered(rows: int) -> list[str]:
    return [batch_line(n, f"text {n}") for n in range(rows)]


def files_of(store: Store, job: Job) -> list[PartFile]:
    with store.snapshot() as tx:
        return [file for part in tx.parts.of_job(job.id, limit=10) for file in part.files]


def part_rows(job: Job) -> list[dict[str, object]]:
    assert job.spec.output is not None
    folder = Path(job.spec.output.removeprefix("file://"))
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def job_of(store: Store, job: Job) -> Job:
    with store.snapshot() as tx:
        return tx.jobs.fetch(job.id)
