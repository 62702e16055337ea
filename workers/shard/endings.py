"""The ends of a shard's lease, each as a transaction under its term. False: the lease was lost."""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from nightshift.bulk.results.segments import CorruptSegment
from nightshift.errors import NightshiftError, ObjectNotFound, StorageError
from nightshift.jobs import BulkClaim, Fault, InputError
from nightshift.jobs.leases import fault_delay_s
from nightshift.lifecycle import transitions
from nightshift.lifecycle.transitions import BROKEN, HANDED_BACK, POSTPONED, record_returned
from nightshift.objectstore import ObjectDamaged
from nightshift.objectstore.sources import is_file_id
from nightshift.objectstore.verdicts import (
    IMAGE,
    as_input_error,
    input_fault,
    results_fault,
    storage_verdict,
)
from nightshift.process import failpoints
from nightshift.store import Store, Transaction
from workers.shard.figures import HeldTime

BROKEN_FAULT: Final = InputError(
    "internal_error",
    "An unforeseen error on a worker ended its work on a part of the input, which is tried again",
)
BROKEN_MAX: Final = 5  # leases that end in an unforeseen exception; then the shard fails


class Endings:
    """`tokens_lost` are generated and in no checkpoint."""

    def __init__(
        self,
        claim: BulkClaim,
        store: Store,
        held_time: HeldTime | None = None,
        fault_delay_s: Callable[[int, str], float] = fault_delay_s,
    ) -> None:
        self._claim = claim
        self._lease = claim.lease
        self._shard = claim.shard
        self._store = store
        self._held_time = held_time or HeldTime()
        self._fault_delay_s = fault_delay_s

    def complete(self, rows_total: int) -> bool:
        return self._end(lambda tx: tx.shards.complete(self._lease, rows_total=rows_total))

    def stop(self) -> bool:
        """Stops the shard, whose job was told to stop."""
        return self._end(lambda tx: tx.shards.stop_held(self._lease))

    def hand_back(self, tokens_lost: int) -> bool:
        """This worker drains; another one continues."""
        handed_back = self._return(lambda tx: tx.leases.hand_back(self._lease), HANDED_BACK, tokens_lost)
        if handed_back:
            failpoints.hit("worker.handed_back")
        return handed_back

    def after(self, error: NightshiftError, tokens_lost: int) -> str:
        """Returns what became of the shard, for the log."""
        if isinstance(error, ObjectDamaged | CorruptSegment | ObjectNotFound):
            return self._fail(error)  # listed results are lost, for any worker
        if isinstance(error, StorageError):
            return self._postpone(error, results_fault(error), tokens_lost)
        return self._fail(error)

    def after_input(self, error: NightshiftError, tokens_lost: int, param: str = "input") -> str:
        """The same for the input, which may lie in the user's own store, or an image that a row names."""
        is_ours = param != IMAGE and is_file_id(self._shard.uri)
        if storage_verdict(error, in_our_store=is_ours) == "fail":
            return self._fail(error, as_input_error(error, param))
        return self._postpone(error, input_fault(error, param, in_our_store=is_ours), tokens_lost)

    def break_off(self, error: Exception, tokens_lost: int) -> str:
        """Ends the shard after an unforeseen exception: another worker may try, up to a limit."""
        attempts = self._shard.attempts_in_a_row
        if attempts >= BROKEN_MAX:
            self._end(lambda tx: tx.shards.fail_held(self._lease))
        else:
            delay = timedelta(seconds=self._fault_delay_s(attempts, self._shard.id))
            self._return(
                lambda tx: tx.leases.return_broken(
                    self._lease, tx.now() + delay, Fault(error=BROKEN_FAULT, met_at=tx.now())
                ),
                BROKEN,
                tokens_lost,
            )
        return f"broke: {type(error).__name__}: {error}"

    def _postpone(self, error: NightshiftError, why: InputError, tokens_lost: int) -> str:
        """Delay the next lease of the shard, longer each time."""
        delay = timedelta(seconds=self._fault_delay_s(self._shard.faults + 1, self._shard.id))

        def change(tx: Transaction) -> bool:
            return tx.leases.delay(self._lease, tx.now() + delay, Fault(error=why, met_at=tx.now()))

        self._return(change, POSTPONED, tokens_lost)
        return f"postponed: {error.message}"

    def _fail(self, error: NightshiftError, why: InputError | None = None) -> str:
        """Fails the shard: no retry can succeed. `why`: of the input, which the job then fails with."""

        def change(tx: Transaction) -> bool:
            fault = None if why is None else Fault(error=why, met_at=tx.now())
            return tx.shards.fail_held(self._lease, fault)

        self._end(change)
        return f"failed: {error.message}"

    def _return(self, change: Callable[[Transaction], bool], cause: str, tokens_lost: int) -> bool:
        """Ends the lease of a shard that goes on with another."""

        def work(tx: Transaction) -> bool:
            returned = change(tx)
            if returned:
                record_returned(tx, self._claim, cause)
            return returned

        return self._end(work, tokens_lost)

    def _end(self, change: Callable[[Transaction], bool], tokens_lost: int = 0) -> bool:
        with self._held_time.charged(self._lease) as worker_time:

            def work(tx: Transaction) -> bool:
                transitions.count_time(tx, self._lease.job_id, worker_time)  # of a lost lease, too
                ended = change(tx)
                if ended:
                    transitions.count_redone(tx, self._lease.job_id, tokens_lost)
                return ended

            return self._store.run(work)
