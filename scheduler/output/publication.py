"""Puts the manifest and `_SUCCESS` of a job in place, as the leader.

An upload is recorded with the job first, by the leader alone. The next leader discards it before it begins
its own: a scheduler that comes too late finds its upload gone, and changes nothing.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from nightshift.bulk.results.destinations import Destination, OutputTrouble, at_destination
from nightshift.errors import ObjectNotFound, StorageError
from nightshift.jobs import Job
from nightshift.jobs.leases import Lead
from nightshift.jobs.part import PartUpload
from nightshift.process import failpoints
from nightshift.store import Store
from scheduler.runtime.duty import Interrupted


@dataclass(frozen=True)
class Publication:
    store: Store
    lead: Callable[[], Lead | None]

    def put(self, job: Job, destination: Destination, name: str, data: bytes) -> None:
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
