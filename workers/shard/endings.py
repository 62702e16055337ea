"""How one lease of a shard may end, each as a transaction under its term. False: the lease was lost."""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from nightshift.jobs import BulkClaim
from nightshift.jobs.leases import retry_delay_s
from nightshift.lifecycle import transitions
from nightshift.processes import failpoints
from nightshift.store import Store, Transaction

BROKEN_MAX: Final = 5  # leases of a shard that nobody knows how to run; then it is given up


class Endings:
    """The ends of one lease. `tokens_lost` are generated and in no checkpoint."""

    def __init__(self, claim: BulkClaim, store: Store) -> None:
        self._lease = claim.lease
        self._shard = claim.shard
        self._store = store

    def complete(self, rows_total: int) -> bool:
        """Every row is listed."""
        return self._end(lambda tx: tx.shards.complete(self._lease, rows_total=rows_total))

    def stop(self) -> bool:
        """Its job wants no more rows."""
        return self._end(lambda tx: tx.shards.stop_held(self._lease))

    def hand_back(self, tokens_lost: int) -> bool:
        """This worker has to go; another one goes on."""
        handed_back = self._end(lambda tx: tx.leases.hand_back(self._lease), tokens_lost)
        if handed_back:
            failpoints.hit("worker.handed_back")
        return handed_back

    def postpone(self, tokens_lost: int) -> bool:
        """Something outside the shard is in the way: it is left alone for a while, longer each time."""
        delay = timedelta(seconds=retry_delay_s(self._shard.faults + 1, self._shard.id))
        return self._end(lambda tx: tx.leases.delay(self._lease, tx.now() + delay), tokens_lost)

    def break_off(self, tokens_lost: int) -> bool:
        """A bug, most likely: somebody else may try, but not for ever."""
        attempts = self._shard.attempts_in_a_row
        if attempts >= BROKEN_MAX:
            return self.fail()
        delay = timedelta(seconds=retry_delay_s(attempts, self._shard.id))
        return self._end(lambda tx: tx.leases.return_broken(self._lease, tx.now() + delay), tokens_lost)

    def fail(self) -> bool:
        """No retry can mend this: the input's location is not allowed, or it cannot be read at all."""
        return self._end(lambda tx: tx.shards.fail_held(self._lease))

    def _end(self, change: Callable[[Transaction], bool], tokens_lost: int = 0) -> bool:
        def work(tx: Transaction) -> bool:
            ended = change(tx)
            if ended:
                transitions.count_redone(tx, self._lease.job_id, tokens_lost)
            return ended

        return self._store.run(work)
