"""Elects one active scheduler, by a row in the database that the leader renews.

Once the row's time is over by the database's clock, any scheduler may take it. The leader trusts itself for
`trust_s` from *before* it asked for the renewal, by its own monotonic clock: a slow round trip or a paused
process makes it stop early, never late.

    renewal asked              trust ends              the row runs out
    |--------- trust_s ------------|------ safety ---------|

A pass may outlast the trust: every duty's writes are guarded by the state they change.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from nightshift.errors import DatabaseUnavailable, NightshiftError
from nightshift.jobs.leases import SCHEDULER_DUTY, Lead, Term
from nightshift.store import Store
from nightshift.store.databases.migrate import check_schema

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeadershipConfig:
    ttl_s: float = 15.0  # until a killed leader can be replaced
    attempt_s: float = 3.0  # between attempts: four fit into the trust
    trust_s: float = 10.0  # without a renewal, until a leader stops by itself


class Elector:
    def __init__(
        self,
        store: Store,
        leader_id: str,
        config: LeadershipConfig = LeadershipConfig(),
        clock: Callable[[], float] = time.monotonic,
        stalled: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`clock` is monotonic, in seconds; `leader_id` is unique to this process. Each renewal says what
        `stalled` names as standing still.
        """
        self._store = store
        self._leader_id = leader_id
        self._config = config
        self._clock = clock
        self._stalled = stalled
        self._has_checked_schema = False
        self._term: Term | None = None
        self._trusted_until_s = float("-inf")

    @property
    def is_leading(self) -> bool:
        """Whether this process may act as the leader. For any thread."""
        return self._clock() < self._trusted_until_s

    @property
    def lead(self) -> Lead | None:
        """The lead that guards a write of the leader; None: another may lead. For any thread."""
        term = self._term
        return Lead(SCHEDULER_DUTY, self._leader_id, term) if term is not None and self.is_leading else None

    def attempt(self) -> bool:
        """Takes or renews the lead, once the schema is as it must be. Raises DatabaseUnavailable; earlier
        trust then holds to its deadline. Raises DatabaseUnusable.
        """
        if not self._has_checked_schema:
            check_schema(self._store.database)
            self._has_checked_schema = True
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
        """Raises DatabaseUnavailable."""
        term = self._term
        self._step_down("leadership given up")
        if term is None:
            return
        with self._store.transaction() as tx:
            tx.leadership.resign(SCHEDULER_DUTY, self._leader_id, term, tx.now())

    def run(self, stop: threading.Event) -> None:
        """Attempt until told to stop, then resign. No error ends it."""
        while not stop.is_set():
            try:
                self.attempt()
            except NightshiftError as error:
                log.warning("no attempt to lead: %s", error, extra={"action": "leadership_unknown"})
            except Exception:  # for example a backup is being restored
                log.exception("no attempt to lead", extra={"action": "leadership_unknown"})
            stop.wait(self._config.attempt_s)
        try:
            self.resign()
        except DatabaseUnavailable as error:
            log.warning("leadership not given up: %s", error, extra={"action": "resign_failed"})
        except Exception:
            log.exception("leadership not given up", extra={"action": "resign_failed"})

    def _renewed(self) -> Term | None:
        if self._term is None:
            return None
        # Not durable: a power failure takes this process with its SQLite, and the term stays.
        with self._store.transaction(durable=False) as tx:
            until = tx.now() + timedelta(seconds=self._config.ttl_s)
            is_held = tx.leadership.renew(SCHEDULER_DUTY, self._leader_id, self._term, until, self._stalled())
            return self._term if is_held else None

    def _acquired(self) -> Term | None:
        with self._store.snapshot() as tx:  # SQLite has one writer at a time
            leader = tx.leadership.leader(SCHEDULER_DUTY)
            if leader is not None and leader.expires_at > tx.now():
                return None
        with self._store.transaction() as tx:
            now = tx.now()
            until = now + timedelta(seconds=self._config.ttl_s)
            return tx.leadership.acquire(SCHEDULER_DUTY, self._leader_id, now, until)

    def _step_down(self, why: str) -> None:
        if self._term is not None:
            log.info(why, extra={"action": "leadership_ended", "term": self._term})
        self._term = None
        self._trusted_until_s = float("-inf")
