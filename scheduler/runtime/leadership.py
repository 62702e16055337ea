"""One active scheduler at a time: a row in the database names the leader, until a time it must renew.

Two clocks are involved, and never compared. When the leader's time is over by the database's clock, any
scheduler may take the row under the next term. The leader itself trusts its leadership only until its **trust
deadline**, on its own monotonic clock, counted from the moment *before* it asked for the renewal: a slow
round trip, a paused process or a database that is away can only make it stop early, never late.

    renewal asked              trust ends              the row runs out, a standby takes over
    |--------- trust_s ------------|------ safety ---------|
    |------------------------- ttl_s ----------------------|

This keeps two schedulers from doing the same work twice, most of the time. Where it fails (a pass that began
in time may outlast the deadline) nothing breaks: every duty's writes are guarded by the state they change.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from nightshift.errors import DatabaseUnavailable
from nightshift.jobs.leases import Term
from nightshift.store import Store

log = logging.getLogger(__name__)

DUTY: Final = "scheduler"


@dataclass(frozen=True)
class LeadershipConfig:
    """Seconds, with the reason for each."""

    ttl_s: float = 15.0  # a killed leader is replaced after this long at most, and one attempt
    attempt_s: float = 3.0  # between two attempts to lead, or to go on leading: four fit into the trust
    trust_s: float = 10.0  # without a renewal for this long, a leader stops by itself

    def __post_init__(self) -> None:
        if not 0 < self.attempt_s < self.trust_s < self.ttl_s:
            raise ValueError(
                "leadership needs attempt_s < trust_s < ttl_s, "
                f"got {self.attempt_s} / {self.trust_s} / {self.ttl_s}"
            )


class Elector:
    """Tries to lead, and to go on leading. `attempt` is one try; tests call exactly this."""

    def __init__(
        self,
        store: Store,
        leader_id: str,
        config: LeadershipConfig = LeadershipConfig(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is monotonic, in seconds; `leader_id` is unique to this process."""
        self._store = store
        self._leader_id = leader_id
        self._config = config
        self._clock = clock
        self._term: Term | None = None
        self._trusted_until_s = float("-inf")

    @property
    def is_leading(self) -> bool:
        """Whether this process may do a leader's work right now. Cheap; any thread may ask."""
        return self._clock() < self._trusted_until_s

    def attempt(self) -> bool:
        """Take the lead if it is free, keep it if it is ours. Returns whether this process leads.

        Raises DatabaseUnavailable; what was trusted before stays trusted until its own deadline.
        """
        asked_at_s = self._clock()
        term = self._renewed() or self._acquired()
        if term is None:
            self._step_down("leadership lost")
            return False
        if term != self._term:
            log.info(
                "leading", extra={"action": "leadership_gained", "term": term, "leader": self._leader_id}
            )
        self._term = term
        self._trusted_until_s = asked_at_s + self._config.trust_s
        return self.is_leading

    def resign(self) -> None:
        """Let another scheduler lead at once; with the database away, it waits for the time to run out."""
        term = self._term
        self._step_down("leadership given up")
        if term is None:
            return
        with self._store.transaction() as tx:
            tx.leadership.resign(DUTY, self._leader_id, term, tx.now())

    def run(self, stop: threading.Event) -> None:
        """Attempt again and again until told to stop, then resign. No error ends it: a scheduler without this
        thread would live on and never lead again.
        """
        while not stop.is_set():
            try:
                self.attempt()
            except DatabaseUnavailable as error:
                log.warning("no attempt to lead: %s", error, extra={"action": "leadership_unknown"})
            except Exception:  # no schema yet, or a backup is being restored: wait for that too
                log.exception("no attempt to lead", extra={"action": "leadership_unknown"})
            stop.wait(self._config.attempt_s)
        try:
            self.resign()
        except DatabaseUnavailable as error:
            log.warning("leadership not given up: %s", error, extra={"action": "resign_failed"})
        except Exception:
            log.exception("leadership not given up", extra={"action": "resign_failed"})

    def _renewed(self) -> Term | None:
        """Our term, if the row still says it is ours."""
        if self._term is None:
            return None
        with self._store.transaction() as tx:
            until = tx.now() + timedelta(seconds=self._config.ttl_s)
            return self._term if tx.leadership.renew(DUTY, self._leader_id, self._term, until) else None

    def _acquired(self) -> Term | None:
        """A new term, if there is no leader or it is late."""
        with self._store.transaction() as tx:
            now = tx.now()
            until = now + timedelta(seconds=self._config.ttl_s)
            return tx.leadership.acquire(DUTY, self._leader_id, now, until)

    def _step_down(self, why: str) -> None:
        if self._term is not None:
            log.info(why, extra={"action": "leadership_ended", "term": self._term})
        self._term = None
        self._trusted_until_s = float("-inf")
