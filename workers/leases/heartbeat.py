"""Renews this worker's leases, and tells their holders when one is lost or its job is to stop or to pause.

One statement renews all of them; a lease that its answer lacks may be another worker's. The end of a job's
window is told in advance: a beat is made just then. A beat may wait for
the database: a second thread, the fence, gives up untrusted leases by the clock alone.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

from nightshift.errors import DatabaseUnavailable
from nightshift.fleet.figures import WorkerFigures
from nightshift.fleet.workers import MachineNotice, WorkerState
from nightshift.jobs import StopReason
from nightshift.jobs.leases import Lease, LeaseConfig, Trust
from nightshift.outbound.cloud_metadata import Notice
from nightshift.store import Store, Transaction
from nightshift.store.shards.leases import HeldLease

log = logging.getLogger(__name__)

FENCE_LOOKS_PER_BEAT: Final = 5
PAUSED_BY_S: Final = 0.05  # after a window's end, so that the beat is not just before it
RETRY_S: Final = 1.0  # after a failed beat, so that leases are renewed in time once the database is back


class LeaseLost(Exception):
    """Another worker may have the shard: nothing more may be written for it."""


class Holder(Protocol):
    """The holder of a lease. Called from the heartbeat's threads, `lease_lost` also from the one that
    claims; both must return at once.
    """

    def lease_lost(self) -> None:
        """Writes nothing more."""

    def stop_requested(self, reason: StopReason) -> None:
        """Starts nothing more; what runs may finish within the grace period. Called repeatedly."""

    def pause_requested(self) -> None:
        """Saves what there is and gives the lease back. Called repeatedly."""


@dataclass
class _Held:
    lease: Lease
    holder: Holder
    trust: Trust
    tokens_at_risk: Callable[[], int]


class Heartbeat:
    """Thread-safe."""

    def __init__(
        self,
        store: Store,
        worker_id: str,
        config: LeaseConfig,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        on_drain_request: Callable[[], None] = lambda: None,
        figures: Callable[[], WorkerFigures | None] = lambda: None,
    ) -> None:
        """`on_drain_request` is called with every beat while the operator wants this worker to drain.
        `figures`: what is told of this worker with each; called from the heartbeat's thread.
        """
        self._store = store
        self._worker_id = worker_id
        self._config = config
        self._ttl = timedelta(seconds=config.ttl_s)
        self._beat = timedelta(seconds=config.heartbeat_s)
        self._clock_s = clock_s
        self._on_drain_request = on_drain_request
        self._figures = figures
        self.notice: Callable[[], Notice | None] = lambda: None  # that this machine has; recorded as well
        self.state = WorkerState.STARTING  # recorded with every beat: recovery may have marked it lost
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}  # by shard id
        self._wake = threading.Event()
        self._pauses_in_s: float | None = None  # until the first end of a window, from the last beat on
        self._stopped = threading.Event()
        self._threads = (
            threading.Thread(target=self._run, name="heartbeat", daemon=True),
            threading.Thread(target=self._fence, name="fence", daemon=True),
        )

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    @property
    def is_alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def beat_now(self) -> None:
        """Beats without waiting for the interval. Returns at once."""
        self._wake.set()

    def clock_s(self) -> float:
        """The monotonic clock that trust is measured on."""
        return self._clock_s()

    def hold(
        self,
        lease: Lease,
        holder: Holder,
        claimed_at_s: float,
        tokens_at_risk: Callable[[], int] = lambda: 0,
        pauses_at: datetime | None = None,
    ) -> None:
        """Keeps a lease from now on. `claimed_at_s` is this clock *before* the claim was asked for.

        `tokens_at_risk`, called from the heartbeat's thread, returns how many tokens would be generated again
        if this process died. `pauses_at`: the end of its job's window; if that is soon, the next beat is told
        to come then. The holder of an earlier term of this shard is told that its lease is lost: it
        expired by the database's clock and not by ours.
        """
        trust = Trust(self._config)
        trust.renewed(claimed_at_s)
        with self._lock:
            before = self._held.get(lease.shard_id)
            self._held[lease.shard_id] = _Held(lease, holder, trust, tokens_at_risk)
        if before is not None:
            self._tell_lost(before)
        if pauses_at is not None and pauses_at <= lease.expires_at - self._ttl + self._beat:
            self.beat_now()  # its answer says in how many seconds

    def release(self, lease: Lease) -> None:
        """The lease has ended, or is not to be renewed any more."""
        with self._lock:
            held = self._held.get(lease.shard_id)
            if held is not None and held.lease.term == lease.term:
                del self._held[lease.shard_id]

    def trusts(self, lease: Lease) -> bool:
        """Whether results may still be written under this lease, as far as this worker knows."""
        with self._lock:
            held = self._held.get(lease.shard_id)
            return held is not None and held.lease.term == lease.term and held.trust.holds(self._clock_s())

    def beat(self) -> bool:
        """Renews everything once. False: the database is away."""
        with self._lock:
            to_renew = list(self._held.values())
        at_risk = {held.lease.shard_id: held.tokens_at_risk() for held in to_renew}
        figures, notice = self._told(), self.notice()
        asked_at_s = self._clock_s()

        def renew(tx: Transaction) -> tuple[Sequence[HeldLease], bool]:
            now = tx.now()
            kept = tx.leases.renew([held.lease for held in to_renew], now, self._config.ttl_s, at_risk)
            told = None if notice is None else MachineNotice(notice.kind, now, notice.at)
            return kept, tx.workers.record_heartbeat(self._worker_id, self.state, now, figures, told)

        try:
            kept, is_to_drain = self._store.run(renew)
        except DatabaseUnavailable as error:
            log.warning("heartbeat failed", extra={"action": "heartbeat_failed", "reason": error.message})
            self.drop_untrusted()
            return False
        ends_s = [held.pauses_in_s for held in kept if held.pauses_in_s is not None and not held.is_paused]
        self._pauses_in_s = min(ends_s, default=None)
        self._settle(to_renew, {(held.shard_id, held.term): held for held in kept}, asked_at_s)
        if is_to_drain:
            self._on_drain_request()
        return True

    def _told(self) -> WorkerFigures | None:
        """Leases are renewed whatever becomes of the figures."""
        try:
            return self._figures()
        except Exception:
            log.exception("figures not read", extra={"action": "figures_failed"})
            return None

    def drop_untrusted(self) -> None:
        """Gives up leases not renewed for so long that another worker may have them."""
        with self._lock:
            now_s = self._clock_s()
            lost = [held for held in self._held.values() if held.trust.is_lost(now_s)]
        for held in lost:
            self._lose(held)

    def _settle(
        self, to_renew: list[_Held], kept: dict[tuple[str, int], HeldLease], asked_at_s: float
    ) -> None:
        for held in to_renew:
            answer = kept.get((held.lease.shard_id, held.lease.term))
            if answer is None:
                self._lose(held)
                continue
            held.trust.renewed(asked_at_s)
            if answer.stop_reason is not None:
                held.holder.stop_requested(answer.stop_reason)
            elif answer.is_paused:
                held.holder.pause_requested()

    def _lose(self, held: _Held) -> None:
        with self._lock:
            current = self._held.get(held.lease.shard_id)
            if current is not held:
                return  # released meanwhile, or replaced
            del self._held[held.lease.shard_id]
        self._tell_lost(held)

    def _tell_lost(self, held: _Held) -> None:
        log.warning(
            "lease lost",
            extra={"action": "lease_lost", "shard": held.lease.shard_id, "term": held.lease.term},
        )
        held.holder.lease_lost()

    def _run(self) -> None:
        pause_s = self._config.heartbeat_s
        while True:
            self._wake.wait(pause_s)
            self._wake.clear()
            if self._stopped.is_set():
                return
            pause_s = self._config.heartbeat_s
            try:
                if not self.beat():
                    pause_s = min(pause_s, RETRY_S)
                elif self._pauses_in_s is not None:
                    pause_s = min(pause_s, self._pauses_in_s + PAUSED_BY_S)
            except Exception:
                log.exception("heartbeat failed", extra={"action": "heartbeat_failed"})

    def _fence(self) -> None:
        while not self._stopped.wait(self._config.heartbeat_s / FENCE_LOOKS_PER_BEAT):
            try:
                self.drop_untrusted()
            except Exception:
                log.exception("fence failed", extra={"action": "fence_failed"})
