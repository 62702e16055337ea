"""Writes the manifest of a native job's output while it runs, and at its end with `_SUCCESS`.

An upload is recorded with the job first, by the leader alone. The next leader discards it before it begins
its own: a scheduler that comes too late finds its upload gone, and changes nothing.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final

from nightshift.bulk.results.destinations import Destination, OutputTrouble, at_destination
from nightshift.bulk.results.manifest import Manifest, ManifestInputs, ManifestModel
from nightshift.bulk.results.output_rows import shards_of_job
from nightshift.errors import ObjectNotFound, StorageError
from nightshift.jobs import Counts, Job, JobState, JsonObject
from nightshift.jobs.leases import Lead
from nightshift.jobs.part import (
    FILE_PREFIXES,
    MANIFEST_NAME,
    SUCCESS_NAME,
    OutputPart,
    PartUpload,
    inputs_name,
    run_manifest_name,
    run_of,
)
from nightshift.process import failpoints
from nightshift.store import Store
from scheduler.output.earlier_runs import listed_by_others, owner_of, remove_replaced
from scheduler.runtime.duty import Interrupted

PARTS_PAGE: Final = 1000
LINES_JOINED: Final = 200  # written at a time
INPUTS_MAX: Final = 1000  # in the manifest itself; more are listed in an object of their own


@dataclass(frozen=True)
class Manifests:
    store: Store
    lead: Callable[[], Lead | None]

    def write(self, job: Job, destination: Destination) -> None:
        """Writes what there is so far. Raises as `_put`."""
        said = _manifest(job, job.state, job.counts, self.parts(job), self._model(job), ManifestInputs())
        self._put(job, destination, self._name(job, destination), said.to_json())

    def finish(
        self, job: Job, destination: Destination, state: JobState, counts: Counts, parts: Sequence[OutputPart]
    ) -> None:
        """The complete manifest; of a job that succeeded `_SUCCESS` too, and then what it replaces goes.

        A reader of the manifest sees all of the earlier output or all of this one. Raises as
        `_put`.
        """
        succeeded = state is JobState.SUCCEEDED
        inputs = self._inputs(job, destination)
        said = _manifest(job, state, counts, parts, self._model(job), inputs, is_complete=True)
        own_name = self._name(job, destination)
        replaced = listed_by_others(job, destination) if succeeded else set()
        name = MANIFEST_NAME if succeeded else own_name
        self._put(job, destination, name, said.to_json())
        if succeeded:
            self._put(job, destination, SUCCESS_NAME, b"")
            remove_replaced(job, destination, replaced, self.store)
            with at_destination():
                destination.store.delete(destination.key(run_manifest_name(job.id)))
        discard_staged(job, destination)

    def parts(self, job: Job) -> list[OutputPart]:
        parts: list[OutputPart] = []
        while True:
            after = parts[-1].first_shard if parts else -1
            with self.store.snapshot() as tx:
                page = tx.parts.of_job(job.id, after=after, limit=PARTS_PAGE)
            parts += page
            if len(page) < PARTS_PAGE:
                return parts

    def lost(self, destination: Destination, parts: Sequence[OutputPart]) -> list[OutputPart]:
        """Parts with a file that is not there, or has another size: it was removed or replaced."""
        with at_destination():
            sizes = {
                info.key.removeprefix(destination.prefix): info.size_bytes
                for prefix in FILE_PREFIXES
                for info in destination.store.list(destination.key(prefix))
            }
        return [part for part in parts if any(sizes.get(file.name) != file.size_bytes for file in part.files)]

    def _put(self, job: Job, destination: Destination, name: str, data: bytes) -> None:
        """Raises OutputTrouble, DatabaseUnavailable, and Interrupted where another may lead or the job has
        another state by now.
        """
        target, key = destination.store, destination.key(name)
        with self.store.snapshot() as tx:
            before = tx.jobs.output_upload(job.id)
        with at_destination():
            if before is not None:
                target.discard(before.key, before.upload_id)
            upload = PartUpload(name=name, key=key, upload_id=target.stage(key))
        if not self._recorded(job, upload):
            with at_destination():
                target.discard(key, upload.upload_id)
            raise Interrupted
        failpoints.hit("scheduler.output_begun")
        try:
            with at_destination():
                target.publish(key, target.write_staged(key, upload.upload_id, [data]))
        except OutputTrouble as trouble:
            if isinstance(trouble.error, ObjectNotFound):  # the next leader has discarded it
                raise Interrupted from trouble
            with suppress(StorageError):  # it would stay in the user's folder
                target.discard(key, upload.upload_id)
            raise

    def _recorded(self, job: Job, upload: PartUpload) -> bool:
        lead = self.lead()
        if lead is None:
            return False
        with self.store.transaction() as tx:
            return tx.jobs.begin_output(job, upload, lead)

    def _name(self, job: Job, destination: Destination) -> str:
        """`_manifest.json`, but where the complete output of another run lies.

        Raises InvalidRequest for a folder with a manifest that is not ours.
        """
        owner = owner_of(destination)
        if owner in (None, job.id):
            return MANIFEST_NAME
        with at_destination():
            is_complete = destination.store.head(destination.key(SUCCESS_NAME)) is not None
        return run_manifest_name(job.id) if is_complete else MANIFEST_NAME

    def _model(self, job: Job) -> ManifestModel:
        with self.store.snapshot() as tx:
            model = None if job.model is None else tx.workers.model(job.model)
        if model is None:
            return ManifestModel(job.model)
        return ManifestModel(model.id, model.revision, model.dtype, model.dimensions)

    def _inputs(self, job: Job, destination: Destination) -> ManifestInputs:
        first: list[JsonObject] = []
        count = 0
        for read in self._objects(job):
            count += 1
            if count <= INPUTS_MAX:
                first.append(read)
        if count <= INPUTS_MAX:
            return ManifestInputs(first, None, count)
        name = inputs_name(job.id)
        lines = (json.dumps(read, ensure_ascii=False).encode() + b"\n" for read in self._objects(job))
        with at_destination():
            destination.store.put(destination.key(name), _joined(lines))
        return ManifestInputs(None, name, count)

    def _objects(self, job: Job) -> Iterator[JsonObject]:
        """The objects, each once: shards of one object follow one another, but for those of a list that names
        it twice.
        """
        last = None
        shards = shards_of_job(self.store, job.id)
        for source in chain.from_iterable(shard.sources for shard in shards):
            if source.uri != last:
                last = source.uri
                yield {"uri": source.uri, "etag": source.etag}


def _manifest(
    job: Job,
    state: JobState,
    counts: Counts,
    parts: Sequence[OutputPart],
    model: ManifestModel,
    inputs: ManifestInputs,
    *,
    is_complete: bool = False,
) -> Manifest:
    files = [file for part in parts for file in part.files]
    return Manifest(
        job_id=job.id,
        status=state,
        is_complete=is_complete,
        format=job.spec.format,
        model=model,
        created_at=job.created_at.isoformat(),
        counts=counts,
        usage=job.usage,
        settings=_settings(job),
        inputs=inputs,
        reused_job=job.spec.reused_job,
        parts=[file for file in files if file.name.startswith("part-")],
        errors=[file for file in files if file.name.startswith("errors-")],
    )


def _settings(job: Job) -> JsonObject:
    """Settings that decide about an answer and its form."""
    spec = job.spec
    named = {"endpoint": spec.endpoint, "template": spec.template, "id_column": spec.id_column}
    return named | spec.options.settings()


def discard_staged(job: Job, destination: Destination) -> None:
    """Discards parts of this run that writers began which died, or come too late."""
    with at_destination():
        for prefix in FILE_PREFIXES:
            for upload in list(destination.store.staged(destination.key(prefix))):
                if f"-{run_of(job.id)}." in upload.key:
                    destination.store.discard(upload.key, upload.upload_id)


def _joined(lines: Iterator[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    for line in lines:
        held.append(line)
        if len(held) == LINES_JOINED:
            yield b"".join(held)
            held = []
    yield b"".join(held)
