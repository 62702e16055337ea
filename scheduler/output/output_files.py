"""Writes an OpenAI batch's output: one file of successes, one of everything else, in input order.

Their ids derive from the job's, so a second attempt writes the same bytes to the same place. A file without
lines is not written.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from tempfile import SpooledTemporaryFile
from typing import IO, Final, Literal

from nightshift.bulk.results.output_rows import Chunk
from nightshift.bulk.results.part_encoding import lines
from nightshift.jobs import Job
from nightshift.jobs.files import File, FilePurpose, file_key, output_file_id
from nightshift.jobs.ids import batch_id
from nightshift.objectstore import ObjectInfo, ObjectStore
from nightshift.process import failpoints

CHUNK_BYTES: Final = 1024 * 1024
SPOOL_BYTES: Final = 16 * 1024 * 1024  # error lines in memory; more go to a temporary file
KEPT_S: Final = 30 * 86400  # unless the batch says otherwise, as at OpenAI


@dataclass(frozen=True)
class OutputFiles:
    """Files that were written. None: there was nothing to write."""

    output: File | None = None
    error: File | None = None

    @property
    def output_id(self) -> str | None:
        return None if self.output is None else self.output.id

    @property
    def error_id(self) -> str | None:
        return None if self.error is None else self.error.id

    @property
    def written(self) -> list[File]:
        return [file for file in (self.output, self.error) if file is not None]


def write_files(job: Job, chunks: Iterable[Chunk], objects: ObjectStore, now: datetime) -> OutputFiles:
    """Writes both files. Raises whatever taking the chunks does, and StorageError."""
    with SpooledTemporaryFile(max_size=SPOOL_BYTES) as errors:
        output = _write(job, "output", _successes(chunks, errors), objects, now)
        errors.seek(0)
        error = _write(job, "error", iter(lambda: errors.read(CHUNK_BYTES), b""), objects, now)
    return OutputFiles(output, error)


def _successes(chunks: Iterable[Chunk], errors: IO[bytes]) -> Iterator[bytes]:
    """The lines of the output file; the others are written to `errors`."""
    for chunk in chunks:
        errors.writelines(line for _, line in lines(chunk.failed(), native=False))
        succeeded = b"".join(line for _, line in lines(Chunk(chunk.succeeded()), native=False))
        if succeeded:
            yield succeeded


def _write(
    job: Job, kind: Literal["output", "error"], pieces: Iterator[bytes], objects: ObjectStore, now: datetime
) -> File | None:
    first = next(pieces, None)
    if first is None:
        return None
    file_id = output_file_id(job.id, kind)
    info = objects.put(file_key(job.tenant_id, file_id), chain((first,), pieces))
    failpoints.hit("scheduler.part_written")
    return _file(job, file_id, kind, info, now)


def _file(job: Job, file_id: str, kind: str, info: ObjectInfo, now: datetime) -> File:
    assert info.sha256 is not None, "`put` returns the sha256"
    return File(
        id=file_id,
        tenant_id=job.tenant_id,
        purpose=FilePurpose.BATCH_OUTPUT,
        filename=f"{batch_id(job.id)}_{kind}.jsonl",
        size_bytes=info.size_bytes,
        sha256=info.sha256,
        created_at=now,
        expires_at=now + timedelta(seconds=job.spec.output_expires_after_s or KEPT_S),
    )
