"""Deletes what was recorded as deleted: the rows of jobs and of parts of jobs, and then their bytes.

Tenants take turns, a batch each. The record goes last: a pass that was killed is begun again, and finds less.
While the object store is away, rows are deleted and bytes wait.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from nightshift.broker.token_streams import StreamDeleter
from nightshift.errors import StorageError, StorageUnavailable
from nightshift.jobs.files import Deletion, JobPart, object_prefixes
from nightshift.objectstore import ObjectStore
from nightshift.process import failpoints
from nightshift.store import PendingWork, Store, Transaction
from scheduler.runtime.duty import MayContinue, PassResult, check, take_turns

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeletionConfig:
    interval_s: float = 2.0
    rows_per_step_max: int = 1000  # in one transaction, for which writers wait
    shards_per_step_max: int = 200  # each has rows in other tables
    objects_per_step_max: int = 200
    steps_per_pass_max: int = 50
    deletions_per_page: int = 100  # read at a time, of one tenant


@dataclass(frozen=True, kw_only=True)
class Deleted(PassResult):
    jobs: int = 0
    parts: int = 0  # results or events of jobs that stay
    rows: int = 0  # segments, events, parts of the output, shards and deliveries
    objects: int = 0
    failed: int = 0  # they are tried again in the next round


@dataclass(frozen=True)
class _Step:
    """Counts of what one batch deleted."""

    rows: int = 0
    objects: int = 0
    done: Deletion | None = None  # the deletion that is complete


class Deleting:
    name = "deletion"

    def __init__(
        self,
        store: Store,
        objects: ObjectStore,
        streams: StreamDeleter,
        config: DeletionConfig = DeletionConfig(),
        may_continue: MayContinue = lambda: True,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._objects = objects
        self._streams = streams
        self._config = config
        self.interval_s = config.interval_s
        self._may_continue = may_continue
        self._pause = pause
        self._round: deque[Iterator[_Step]] = deque()  # a tenant each
        self._failure: StorageError | None = None  # the last of this round
        self._failed = 0  # deletions of this round whose bytes are still there
        self._is_store_away = False
        self._did_anything = False

    def due_at(self, work: PendingWork) -> datetime | None:
        return work.at if work.is_deleting else None

    def run_once(self, now: datetime) -> Deleted:
        """Some steps of a round over all tenants. Raises StorageError at the end of a round that could do
        nothing but fail: after a pause, the next one tries again.
        """
        try:
            return self._some_steps()
        except BaseException:
            self._round.clear()
            raise

    def _some_steps(self) -> Deleted:
        if not self._round:
            self._begin_round()
        turns = take_turns(self._round, self._may_continue, self._pause)
        steps = list(islice(turns, self._config.steps_per_pass_max))
        self._did_anything |= bool(steps)
        has_ended = not self._round
        if has_ended and self._failure is not None and not self._did_anything:
            raise self._failure
        done = [step.done for step in steps if step.done is not None]
        return Deleted(
            has_more=not has_ended,
            jobs=sum(deletion.part is JobPart.JOB for deletion in done),
            parts=sum(deletion.part is not JobPart.JOB for deletion in done),
            rows=sum(step.rows for step in steps),
            objects=sum(step.objects for step in steps),
            failed=self._failed if has_ended else 0,
        )

    def _begin_round(self) -> None:
        self._failure, self._failed, self._is_store_away, self._did_anything = None, 0, False, False
        with self._store.snapshot() as tx:
            tenants = tx.deletions.tenants()
        self._round.extend(self._of_tenant(tenant_id) for tenant_id in tenants)

    def _of_tenant(self, tenant_id: str) -> Iterator[_Step]:
        last_id = 0
        while True:
            with self._store.snapshot() as tx:
                page = tx.deletions.waiting(tenant_id, self._config.deletions_per_page, last_id)
            if not page:
                return
            for deletion in page:
                yield from self._rows(deletion)
                yield from self._bytes_and_record(deletion)
            last_id = page[-1].id

    def _bytes_and_record(self, deletion: Deletion) -> Iterator[_Step]:
        prefixes = object_prefixes(deletion)
        if prefixes and self._is_store_away:
            self._failed += 1
            return
        try:
            for prefix in prefixes:
                yield from self._objects_under(prefix)
        except StorageError as error:
            self._failed, self._failure = self._failed + 1, error
            self._is_store_away = isinstance(error, StorageUnavailable)
            log.warning(
                "bytes left behind: %s", error, extra={"action": "bytes_left", "job": deletion.job_id}
            )
            return
        failpoints.hit("scheduler.bytes_deleted")
        self._store.run(lambda tx: tx.deletions.finish(deletion), durable=False)
        yield _Step(done=deletion)

    def _objects_under(self, prefix: str) -> Iterator[_Step]:
        while page := list(islice(self._objects.list(prefix), self._config.objects_per_step_max)):
            for info in page:
                check(self._may_continue)
                self._objects.delete(info.key)
            yield _Step(objects=len(page))

    def _rows(self, deletion: Deletion) -> Iterator[_Step]:
        rows, shards = self._config.rows_per_step_max, self._config.shards_per_step_max
        match deletion.part:
            case JobPart.RESULTS:
                yield from self._batches(lambda tx: tx.deletions.delete_segments(deletion, rows))
            case JobPart.EVENTS:
                yield from self._batches(lambda tx: tx.deletions.delete_events(deletion, rows))
            case JobPart.JOB:
                self._streams.delete(self._streamed(deletion))
                yield from self._batches(lambda tx: tx.deletions.delete_segments(deletion, rows))
                yield from self._batches(lambda tx: tx.deletions.delete_events(deletion, rows))
                yield from self._batches(lambda tx: tx.deletions.delete_deliveries([deletion.job_id], rows))
                yield from self._batches(lambda tx: tx.deletions.delete_output_parts(deletion, rows))
                yield from self._batches(lambda tx: tx.deletions.delete_shards(deletion, shards))

    def _streamed(self, deletion: Deletion) -> Sequence[str]:
        with self._store.snapshot() as tx:
            return tx.deletions.streamed([deletion.job_id])

    def _batches(self, delete: Callable[[Transaction], int]) -> Iterator[_Step]:
        """Batches of deletions. They are not durable: what a power failure undoes is deleted again."""
        while rows := self._store.run(delete, durable=False):
            failpoints.hit("scheduler.rows_deleted")
            yield _Step(rows=rows)
