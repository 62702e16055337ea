"""Writes the input of a retry: the requests of the earlier job's rows that did not succeed, as batch lines.

A row counts by its first result, as in the output. Lines that made no request then are left out.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from nightshift.bulk.results.output_rows import shards_of_job
from nightshift.bulk.results.row_results import json_line
from nightshift.bulk.results.segments import read_segment
from nightshift.bulk.rows.inputs import BadRow, Row
from nightshift.bulk.rows.kept_values import KEPT_FIELD
from nightshift.bulk.rows.requests import RowRequest, rows_of, to_request
from nightshift.bulk.rows.watched_reader import WatchedReader
from nightshift.errors import InvalidRequest, ObjectNotFound, StorageError
from nightshift.jobs import InputError, Job, Segment, Shard, ShardState
from nightshift.jobs.files import File, FilePurpose, file_key
from nightshift.objectstore import ObjectInfo, ObjectStore
from nightshift.objectstore.sources import Sources, is_file_id
from nightshift.objectstore.verdicts import as_input_error, storage_verdict
from nightshift.store import Store
from scheduler.input.pages import Refused
from scheduler.runtime.duty import MayContinue, check, interruptible

KEPT_S: Final = 30 * 86400  # as an upload

GONE: Final = InputError("retried_job_gone", "The job to retry, or what its rows came to, is deleted.")
NOTHING_TO_RUN: Final = InputError(
    "empty_input", "No row without success has a request: their lines cannot be read, or name none."
)


@dataclass(frozen=True)
class RetryInputs:
    store: Store
    objects: ObjectStore
    sources: Sources
    line_bytes_max: int

    def write(self, job: Job, may_continue: MayContinue) -> None:
        """Writes the job's input unless it is recorded. Raises Refused, StorageError and Interrupted."""
        assert job.spec.input is not None, "a bulk job has an input"
        assert job.retry_of is not None, "only a retry's input is written"
        with self.store.snapshot() as tx:
            if tx.files.input(job.tenant_id, job.spec.input) is not None:
                return
            old = tx.jobs.get(job.tenant_id, job.retry_of)
        if old is None or old.results_deleted_at is not None:
            raise Refused(GONE)
        key = file_key(job.tenant_id, job.spec.input)
        info = self.objects.put(key, self._lines(old, may_continue))
        if info.size_bytes == 0:
            self.objects.delete(key)
            raise Refused(NOTHING_TO_RUN)
        with self.store.transaction() as tx:
            if tx.files.input(job.tenant_id, job.spec.input) is None:
                tx.files.insert(_file(job, old, info, tx.now()))

    def _lines(self, old: Job, may_continue: MayContinue) -> Iterator[bytes]:
        for shard in interruptible(shards_of_job(self.store, old.id), may_continue):
            segments = self._segments(shard)
            if shard.state is ShardState.DONE and not any(segment.failed for segment in segments):
                continue
            succeeded = self._succeeded(segments)
            for row in self._rows(old, shard, may_continue):
                request = None if row.index in succeeded else to_request(row, old.spec, shard)
                if isinstance(request, RowRequest):
                    line = {"custom_id": request.custom_id, "method": "POST", "url": old.spec.endpoint}
                    kept = {} if request.kept is None else {KEPT_FIELD: json.loads(request.kept)}
                    yield json_line(line | {"body": request.body} | kept)

    def _segments(self, shard: Shard) -> Sequence[Segment]:
        with self.store.snapshot() as tx:
            segments = tx.shards.segments(shard.id)
        if sum(segment.rows for segment in segments) != shard.rows_done:
            raise Refused(GONE)  # they are being deleted
        return segments

    def _succeeded(self, segments: Sequence[Segment]) -> set[int]:
        first: dict[int, bool] = {}
        try:
            for segment in segments:
                for result in read_segment(self.objects, segment):
                    first.setdefault(result.row, result.succeeded)
        except ObjectNotFound as error:
            raise Refused(GONE) from error
        return {row for row, succeeded in first.items() if succeeded}

    def _rows(self, old: Job, shard: Shard, may_continue: MayContinue) -> Iterator[Row | BadRow]:
        """The shard's rows, of the object that was planned. Raises Refused for one that was replaced."""
        try:
            source = self.sources.open(shard.uri, old.tenant_id)
            reader = WatchedReader(source.store, lambda size_bytes: check(may_continue))
            yield from rows_of(reader, source.key, shard, old.spec, line_bytes_max=self.line_bytes_max)
        except (InvalidRequest, StorageError) as error:
            if storage_verdict(error, in_our_store=is_file_id(shard.uri)) != "fail":
                raise
            raise Refused(as_input_error(error, "input")) from error


def _file(job: Job, old: Job, info: ObjectInfo, now: datetime) -> File:
    assert job.spec.input is not None, "a bulk job has an input"
    assert info.sha256 is not None, "`put` returns the sha256"
    return File(
        id=job.spec.input,
        tenant_id=job.tenant_id,
        purpose=FilePurpose.BATCH,
        filename=f"retry_of_{old.id}.jsonl",
        size_bytes=info.size_bytes,
        sha256=info.sha256,
        created_at=now,
        expires_at=now + timedelta(seconds=KEPT_S),
    )
