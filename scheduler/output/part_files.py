"""A native job's output: a part file for every shard that has rows, a manifest, and `_SUCCESS` at the end.

    out/part-00000.jsonl  out/part-00001.jsonl …  out/manifest.json  out/_SUCCESS

After each step a note in the service's own store records the parts written: a second attempt continues after
the last note whose parts are still there. `_SUCCESS` is removed before parts are replaced, so that it only
lies beside its own.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Final

from nightshift import endpoints
from nightshift.errors import StorageError
from nightshift.jobs import Counts, Job, JobState, Shard
from nightshift.objectstore import ObjectInfo, ObjectStore
from nightshift.output.manifest import MANIFEST_NAME, SUCCESS_NAME, Manifest, Part, part_name
from nightshift.output.part_encoding import PartFile, PartSchema, part_file
from nightshift.output.shard_rows import ShardRows
from nightshift.processes import failpoints
from scheduler.runtime.duty import MayContinue, check
from scheduler.runtime.thread_pools import map_in_threads

NOTE_BYTES_MAX: Final = 16 * 1024 * 1024


class OutputTrouble(Exception):
    """The output cannot be written to its destination."""

    def __init__(self, error: StorageError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(frozen=True)
class Destination:
    """A store, and a prefix in it that is empty or ends with a slash."""

    store: ObjectStore
    prefix: str


@dataclass(frozen=True)
class PartWriter:
    job: Job
    rows: ShardRows
    destination: Destination
    notes: ObjectStore
    parts_at_once: int
    may_continue: MayContinue

    def write(self, shards: Sequence[Shard]) -> list[Part]:
        """One step: a part for each of these shards that has rows.

        Raises OutputTrouble, InputTrouble, Mismatch, Interrupted, and StorageError for our own store.
        """
        note_key = f"{_notes_prefix(self.job)}{shards[0].shard_no:06d}.json"
        noted = self._noted(note_key)
        if noted is not None:
            return noted
        self._clear_success()
        made = map_in_threads(self._part, shards, self.parts_at_once)
        written = [each for each in made if each is not None]
        note = [asdict(part) | {"etag": info.etag} for part, info in written]
        self.notes.put(note_key, json.dumps(note).encode())
        return [part for part, _ in written]

    def finish(self, parts: Sequence[Part], counts: Counts, state: JobState) -> None:
        """Write the manifest, and `_SUCCESS` if the job succeeded. Raises OutputTrouble."""
        manifest = Manifest(
            job_id=self.job.id,
            status=state,
            format=self.job.spec.format,
            model=self.job.model,
            created_at=self.job.created_at.isoformat(),
            counts=counts,
            usage=self.job.usage,
            parts=parts,
        )
        self._put(MANIFEST_NAME, manifest.to_json())
        if state is JobState.SUCCEEDED:
            self._put(SUCCESS_NAME, b"")

    def _noted(self, note_key: str) -> list[Part] | None:
        """The parts of a step done before. None: it was not, or another job has replaced them."""
        if self.notes.head(note_key) is None:
            return None
        note = json.loads(self.notes.read(note_key, size_bytes_max=NOTE_BYTES_MAX))
        etags = [part.pop("etag", "") for part in note]
        if map_in_threads(self._etag, [part["name"] for part in note], self.parts_at_once) != etags:
            return None
        return [Part(**part) for part in note]

    def _etag(self, name: str) -> str | None:
        """None: no object at the destination has this name."""
        with _at_destination():
            found = self.destination.store.head(self.destination.prefix + name)
        return None if found is None else found.etag

    def _clear_success(self) -> None:
        """It may be another job's, whose output is about to be replaced."""
        key = self.destination.prefix + SUCCESS_NAME
        with _at_destination():
            if self.destination.store.head(key) is not None:
                self.destination.store.delete(key)

    def _part(self, shard: Shard) -> tuple[Part, ObjectInfo] | None:
        """None: the shard has no rows."""
        check(self.may_continue)
        schema = PartSchema(endpoints.get(self.job.spec.endpoint), keeps_body=self.job.spec.parts.keep_body)
        file = part_file(self.job.spec.format, schema)
        pieces = self._pieces(file, shard)
        first = next(pieces, None)
        if first is None:
            return None
        name = part_name(shard.shard_no, self.job.spec.format)
        tally = file.tally
        with _at_destination():
            info = self.destination.store.put(self.destination.prefix + name, chain((first,), pieces))
        failpoints.hit("scheduler.part_written")
        assert info.sha256 is not None, "`put` returns the sha256"
        part = Part(
            name=name,
            rows=tally.rows,
            succeeded=tally.succeeded,
            failed=tally.failed,
            size_bytes=info.size_bytes,
            sha256=info.sha256,
            prompt_tokens=tally.prompt_tokens,
            completion_tokens=tally.completion_tokens,
        )
        return part, info

    def _pieces(self, file: PartFile, shard: Shard) -> Iterator[bytes]:
        """None at all for a shard without rows."""
        for chunk in self.rows.chunks(self.job, shard):
            if piece := file.add(chunk):
                yield piece
        if file.tally.rows and (last := file.end()):
            yield last

    def _put(self, name: str, data: bytes) -> None:
        with _at_destination():
            self.destination.store.put(self.destination.prefix + name, data)


@contextmanager
def _at_destination() -> Iterator[None]:
    """StorageErrors in this block are the destination's."""
    try:
        yield
    except StorageError as error:
        raise OutputTrouble(error) from error


def forget_notes(job: Job, notes: ObjectStore) -> None:
    """Raises StorageError."""
    for note in list(notes.list(_notes_prefix(job))):
        notes.delete(note.key)


def _notes_prefix(job: Job) -> str:
    return f"assembly/{job.tenant_id}/{job.id}/"
