"""Writes parts of outputs, in any process that is free: a file of the good rows, and one of the others.

    claim ──► stage both files ──► record that they are staged ──► publish ──► record what was written
              (each recorded before its bytes)

Every step that the database sees is under the part's term. The next owner of a part discards what was staged
before it, unless all of that is recorded as staged: then it only publishes. So a writer that comes too late
publishes nothing.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from tempfile import SpooledTemporaryFile
from typing import IO, Final

from opentelemetry.trace import Span

from nightshift import endpoints
from nightshift.bulk.results.destinations import Destination, OutputTrouble, at_destination, destination_of
from nightshift.bulk.results.digest_files import DigestWriter
from nightshift.bulk.results.output_rows import (
    Chunk,
    InputTrouble,
    Listing,
    Mismatch,
    OutputRows,
    shards_of_job,
)
from nightshift.bulk.results.part_encoding import PartEncoder, PartSchema, Tally, part_encoder
from nightshift.bulk.results.part_leases import TTL_S, HeldPart, PartLost
from nightshift.bulk.results.segments import DIGEST
from nightshift.errors import InvalidRequest, NightshiftError, StorageError
from nightshift.jobs import InputError, Job, Shard
from nightshift.jobs.backoff import Backoff
from nightshift.jobs.part import (
    PartClaim,
    PartFile,
    PartLease,
    PartProblem,
    PartUpload,
    errors_name,
    part_name,
)
from nightshift.objectstore import Locations, ObjectStore, Staged, fenced
from nightshift.objectstore.sources import Sources, is_file_id
from nightshift.objectstore.verdicts import as_fault, as_input_error, storage_verdict
from nightshift.process import failpoints
from nightshift.process.memory import give_back_free_memory
from nightshift.process.tracing.attributes import FILES, FIRST_SHARD, JOB, OUTCOME, TERM
from nightshift.process.tracing.spans import end, follow, lasting
from nightshift.store import Store

log = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 5  # at a part whose writers died
SPOOL_BYTES: Final = 16 * 1024 * 1024  # failed rows in memory; more go to a temporary file
CHUNK_BYTES: Final = 1024 * 1024
RETRY: Final = Backoff(first_s=2.0, longest_s=120.0)
NEVER: Final = timedelta(days=3650)


class ResultsTrouble(Exception):
    """Results in our own store cannot be read: no fault of the destination, which asked for them."""

    def __init__(self, error: StorageError) -> None:
        super().__init__(error.message)
        self.error = error


class WritingStopped(Exception):
    """This process is to write no more parts."""


GIVEN_UP: Final = PartProblem(
    error=InputError(
        "part_failed", f"{ATTEMPTS_MAX} processes ended as they wrote a part of the output.", param="output"
    ),
    is_permanent=True,
)
TROUBLES: Final = (Mismatch, InputTrouble, OutputTrouble, ResultsTrouble, InvalidRequest, StorageError)


@dataclass(frozen=True)
class PartDependencies:
    store: Store
    objects: ObjectStore
    sources: Sources
    locations: Locations
    line_bytes_max: int  # in an input row

    @property
    def rows(self) -> OutputRows:
        return OutputRows(self.store, self.objects, self.sources, self.line_bytes_max)


class PartWriter:
    """Claims parts and writes them, in one thread at a time."""

    def __init__(
        self,
        dependencies: PartDependencies,
        owner: str,
        may_continue: Callable[[], bool] = lambda: True,
        *,
        of_idle_tenants: bool = False,
    ) -> None:
        """`of_idle_tenants`: claims only parts of tenants of whose parts none is being written."""
        self._of_idle_tenants = of_idle_tenants
        self._store = dependencies.store
        self._objects = dependencies.objects
        self._locations = dependencies.locations
        self._rows = dependencies.rows
        self._owner = owner
        self._may_continue = may_continue

    def write_next(self) -> bool:
        """Claims the part that is most wanted, and writes it. False: there is none.

        A part that cannot be written now is handed back with the reason. Raises DatabaseUnavailable, and
        WritingStopped.
        """
        claimed_at_s = time.monotonic()
        claim = self._store.run(
            lambda tx: tx.parts.claim(self._owner, tx.now(), TTL_S, of_idle_tenants=self._of_idle_tenants)
        )
        if claim is None:
            return False
        failpoints.hit("part.claimed")
        give_back_free_memory()  # a part takes large blocks, where rows have left small ones free
        span = follow(claim.job.traceparent, "part", began_s=claimed_at_s)
        with HeldPart(self._store, claim.lease, claimed_at_s) as held, lasting(span):
            self._write(claim, held, span)
        give_back_free_memory()
        return True

    def _write(self, claim: PartClaim, held: HeldPart, span: Span) -> None:
        span.set_attribute(JOB, claim.part.job_id)
        span.set_attribute(FIRST_SHARD, claim.part.first_shard)
        span.set_attribute(TERM, claim.term)
        about = {"job": claim.part.job_id, "first_shard": claim.part.first_shard, "term": claim.term}
        if claim.part.attempts > ATTEMPTS_MAX and claim.part.problem is None:
            end(span, error=GIVEN_UP.error.code)
            log.error("part given up", extra={"action": "part_given_up"} | about)
            return self._hand_back(claim, GIVEN_UP)
        try:
            files = self._written(claim, held)
        except PartLost:
            span.set_attribute(OUTCOME, "lost")
            log.warning("part lost", extra={"action": "part_lost"} | about)
        except WritingStopped:
            self._hand_back(claim, None)
            end(span, {OUTCOME: "handed back"})
            raise
        except TROUBLES as error:
            problem = problem_of(claim.job, error)
            end(span, error=problem.error.code)
            log.warning(
                "part not written: %s",
                problem.error.message,
                extra={"action": "part_not_written", "permanent": problem.is_permanent} | about,
            )
            self._hand_back(claim, problem)
        else:
            span.set_attribute(FILES, len(files))
            log.info("part written", extra={"action": "part_written", "files": len(files)} | about)

    def _hand_back(self, claim: PartClaim, problem: PartProblem | None) -> None:
        delay = timedelta()
        if problem is not None:  # a part that cannot be written fails its job, which is not waited for
            delay = NEVER if problem.is_permanent else timedelta(seconds=RETRY.delay_s(claim.part.attempts))
        self._store.run(
            lambda tx: tx.parts.hand_back(
                claim.lease, tx.now() + delay, problem, is_charged=problem is not None
            )
        )

    def _written(self, claim: PartClaim, held: HeldPart) -> list[PartFile]:
        destination = destination_of(claim.job, self._objects, self._locations)
        uploads = claim.part.uploads
        with fenced(held.check):
            if not uploads or any(upload.staged is None for upload in uploads):
                uploads = tuple(self._staged_anew(claim, destination))
                self._record_uploads(claim.lease, uploads)
            failpoints.hit("part.staged")
            files = [self._published(upload, destination) for upload in uploads]
        failpoints.hit("part.published")
        if not self._store.run(lambda tx: tx.parts.record_written(claim.lease, files)):
            raise PartLost
        return files

    # -- staging

    def _staged_anew(self, claim: PartClaim, destination: Destination) -> Iterator[PartUpload]:
        """The part's files, staged."""
        for upload in claim.part.uploads:
            with at_destination():
                destination.store.discard(upload.key, upload.upload_id)
        part, job = claim.part, claim.job
        schema = self._schema(job)
        good, bad = (part_encoder(job.spec.format, schema) for _ in range(2))
        stage = _Staging(claim.lease, destination, self._record_uploads)
        digests = DigestWriter(self._objects, job.tenant_id, job.id, part.first_shard)
        with SpooledTemporaryFile(max_size=SPOOL_BYTES) as spool:
            pieces = self._pieces(claim, good, bad, spool, digests)
            stage.file(part_name(part.first_shard, job.id, job.spec.format), pieces, good.tally)
            if bad.tally.rows:
                spool.seek(0)
                rest = iter(lambda: spool.read(CHUNK_BYTES), b"")
                stage.file(errors_name(part.first_shard, job.id, job.spec.format), rest, bad.tally)
        return iter(stage.uploads)

    def _pieces(
        self, claim: PartClaim, good: PartEncoder, bad: PartEncoder, spool: IO[bytes], digests: DigestWriter
    ) -> Iterator[bytes]:
        """The bytes of the good rows' file; those of the other go to the spool."""
        listing = self._listing(claim)
        for shard in self._shards(claim):
            for chunk in self._rows.chunks(claim.job, shard, listing):
                if not self._may_continue():
                    raise WritingStopped
                spool.writelines(bad.add(chunk.failed()))
                succeeded = chunk.succeeded()
                if succeeded is not None and DIGEST in succeeded.table.column_names:
                    digests.add(shard.shard_no, succeeded.table.column(DIGEST), succeeded.table.column("row"))
                yield from good.add(Chunk(succeeded))
        digests.end()
        spool.writelines(bad.end())
        yield from good.end()

    def _listing(self, claim: PartClaim) -> Listing:
        with self._store.snapshot() as tx:
            states = tx.parts.states(claim.part.job_id)
        return Listing.shared_by(sum(count for state, count in states.items() if not state.is_terminal))

    def _shards(self, claim: PartClaim) -> Iterator[Shard]:
        last_no, part = claim.part.first_shard - 1, claim.part
        for shard in shards_of_job(self._store, part.job_id, part.first_shard, part.last_shard):
            yield shard
            last_no = shard.shard_no
        if last_no < part.last_shard:
            raise Mismatch(f"shard {last_no + 1} is not there")

    def _schema(self, job: Job) -> PartSchema:
        assert job.model is not None, "a job with shards was planned, and so has a model"
        with self._store.snapshot() as tx:
            models = {model.id: model for model in tx.workers.models()}
        dimensions = models[job.model].dimensions if job.model in models else None
        endpoint, options = endpoints.get(job.spec.endpoint), job.spec.options
        if dimensions is not None:
            dimensions = endpoint.vector_size(job.spec.template, dimensions)
        return PartSchema(
            endpoint,
            dimensions,
            options.keep_body,
            options.embedding_dtype,
            options.keep_columns,
        )

    def _record_uploads(self, lease: PartLease, uploads: Sequence[PartUpload]) -> None:
        """Raises PartLost."""
        if not self._store.run(lambda tx: tx.parts.record_uploads(lease, uploads)):
            raise PartLost

    def _published(self, upload: PartUpload, destination: Destination) -> PartFile:
        assert upload.staged is not None, "all are staged"
        assert upload.counted is not None, "and counted"
        staged = Staged.from_json(upload.staged)
        with at_destination():
            info = destination.store.publish(upload.key, staged)
        return PartFile(
            name=upload.name,
            **upload.counted,
            size_bytes=staged.size_bytes,
            sha256=staged.sha256,
            etag=info.etag,
        )


@dataclass
class _Staging:
    """Files of one part, each recorded before its bytes are sent. One without rows is discarded."""

    lease: PartLease
    destination: Destination
    record: Callable[[PartLease, Sequence[PartUpload]], None]
    uploads: tuple[PartUpload, ...] = ()

    def file(self, name: str, pieces: Iterable[bytes], tally: Tally) -> None:
        """`tally` is full once the pieces are taken."""
        begun = self._begun(name)
        store, key, upload_id = self.destination.store, begun.key, begun.upload_id
        with at_destination():
            try:
                staged = store.write_staged(key, upload_id, _not_ours(pieces))
            except TROUBLES:  # what is there of it would fill a full disk until the next try
                with suppress(StorageError):
                    store.discard(key, upload_id)
                raise
            if tally.rows == 0:
                store.discard(key, upload_id)
                return
        counted = asdict(tally) | {"failed": tally.failed}
        self.uploads = (*self.uploads, replace(begun, staged=staged.to_json(), counted=counted))

    def _begun(self, name: str) -> PartUpload:
        """Raises PartLost."""
        store, key = self.destination.store, self.destination.key(name)
        with at_destination():
            upload_id = store.stage(key)
        begun = PartUpload(name=name, key=key, upload_id=upload_id)
        try:
            self.record(self.lease, (*self.uploads, begun))
        except PartLost:
            store.discard(key, upload_id)
            raise
        failpoints.hit("part.begun")
        return begun


def _not_ours(pieces: Iterable[bytes]) -> Iterator[bytes]:
    try:
        yield from pieces
    except StorageError as error:
        raise ResultsTrouble(error) from error


def problem_of(job: Job, error: Exception) -> PartProblem:
    """The reason why a part, or the manifest, could not be written, and whether trying again may help."""
    if isinstance(error, Mismatch):
        log.error("rows do not add up: %s", error, extra={"action": "rows_mismatch", "job": job.id})
        return PartProblem(
            error=InputError("row_count_mismatch", f"The output does not add up: {error}."), is_permanent=True
        )
    if isinstance(error, InputTrouble):
        return _problem(error.error, "input", in_our_store=is_file_id(job.spec.input or ""))
    if isinstance(error, OutputTrouble):
        return _problem(error.error, "output", in_our_store=job.spec.output is None)
    cause = error.error if isinstance(error, ResultsTrouble) else error
    assert isinstance(cause, NightshiftError), "one of those that writing raises"
    return _problem(cause, "output", in_our_store=True)


def _problem(error: NightshiftError, param: str, *, in_our_store: bool) -> PartProblem:
    if storage_verdict(error, in_our_store=in_our_store) == "fail":
        return PartProblem(error=as_input_error(error, param), is_permanent=True)
    return PartProblem(error=as_fault(error, param, in_our_store=in_our_store), is_permanent=False)
