"""Helpers of the tests of reuse."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from nightshift.bulk.results.row_results import RowResult
from nightshift.endpoints.requests import ModelRequest
from nightshift.jobs import Job
from nightshift.jobs.part import PartFile
from tests.unit.workers.scripted import ScriptedServer, prompt_of
from tests.unit.workers.shard.helpers import Ground, batch_line

RunJob = Callable[..., Job]


class Repeatable(ScriptedServer):
    """Answers without a temperature are not drawn at random."""

    def is_repeatable(self, request: ModelRequest) -> bool:
        return getattr(request, "temperature", None) is None


def prompts(ground: Ground) -> list[str]:
    """The texts that the model was given."""
    return sorted(prompt_of(inference) for inference in ground.model.submitted)


def text_of(result: RowResult) -> str:
    return result.body["choices"][0]["message"]["content"]


def numbered(rows: int) -> list[str]:
    return [batch_line(n, f"text {n}") for n in range(rows)]


def same(rows: int, **fields: Any) -> list[str]:
    return [batch_line(n, "same", **fields) for n in range(rows)]


def files_of(ground: Ground, job: Job) -> list[PartFile]:
    with ground.store.snapshot() as tx:
        return [file for part in tx.parts.of_job(job.id, limit=10) for file in part.files]


def folder_of(job: Job) -> Path:
    assert job.spec.output is not None
    return Path(job.spec.output.removeprefix("file://"))


def part_rows(job: Job) -> list[dict[str, Any]]:
    paths = sorted(folder_of(job).glob("*.parquet"))
    return [row for path in paths for row in pq.read_table(path).to_pylist()]
