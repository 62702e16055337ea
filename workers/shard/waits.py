"""Records what a shard waits for under its lease, so that the job's owner sees it; once per change.

What ends a lease is recorded with its end (`endings.py`).
"""

from typing import Final

from nightshift.errors import DatabaseUnavailable, NightshiftError, StorageError, StorageUnavailable
from nightshift.jobs import BulkClaim, Fault, InputError
from nightshift.objectstore.sources import is_file_id
from nightshift.objectstore.verdicts import IMAGE, input_fault, results_fault
from nightshift.store import Store

MODEL: Final = "model"  # the `param` of the fault of a model that runs nothing


class ShardWaits:
    """Called from the shard's thread and from that of its uploads."""

    def __init__(self, claim: BulkClaim, store: Store) -> None:
        self._lease = claim.lease
        self._store = store
        self._is_ours = is_file_id(claim.shard.uri)
        self._told: InputError | None = None if claim.shard.fault is None else claim.shard.fault.error

    def for_results(self, error: NightshiftError) -> None:
        """Tells that results cannot be stored or read. That the database is away, the operator sees."""
        if isinstance(error, StorageError):
            self._tell(results_fault(error))

    def for_input(self) -> None:
        """Tells that the input's store has not answered for a while."""
        silence = StorageUnavailable("its store has not answered yet")
        self._tell(input_fault(silence, "input", in_our_store=self._is_ours))

    def input_came(self) -> None:
        """Ends the wait for the input. It is called for every row."""
        self._end_wait("input")

    def images_came(self) -> None:
        """Ends the wait for an image that a row names. It is called for every row that succeeds."""
        self._end_wait(IMAGE)

    def for_model(self, problem: str | None) -> None:
        """Tells why the model runs nothing, or ends that. It is called often."""
        if problem is None:
            self._end_wait(MODEL)
        else:
            self._tell(InputError("model_unavailable", problem, param=MODEL))

    def results_came(self) -> None:
        """Ends the wait for the service's own store."""
        self._end_wait(None)

    def checkpoint_listed(self) -> None:
        """Forgets what was told: the listing has ended it."""
        self._told = None

    def _end_wait(self, param: str | None) -> None:
        if self._told is not None and self._told.param == param:
            self._tell(None)

    def _tell(self, fault: InputError | None) -> None:
        if fault == self._told:
            return
        try:
            with self._store.transaction() as tx:
                told = None if fault is None else Fault(error=fault, met_at=tx.now())
                tx.shards.record_fault(self._lease, told)
        except DatabaseUnavailable:
            return  # it is told at the next try
        self._told = fault
