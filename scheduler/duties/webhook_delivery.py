"""Delivers the events owed to webhook endpoints, at least once under one id, and records every attempt.

A pass only starts attempts, each in its own thread. A delivery is reserved first: if this process dies, it is
due again later. What is owed to a receiver that keeps failing waits (`webhooks/circuits.py`); what is owed to
one that answers 410 is recorded as dead.
"""

import logging
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from nightshift.outbound.webhooks import Delivery, DeliveryState
from nightshift.store import PendingWork, Store
from nightshift.tenants.vault import Vault
from scheduler.runtime.duty import PassResult
from scheduler.webhooks.attempts import Poster, WebhookAttempts, fields
from scheduler.webhooks.circuits import CircuitConfig, Circuits
from scheduler.webhooks.in_flight import AttemptOutcome, InFlightLimiter, SlotLimits, webhook_destination

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WebhookDeliveryConfig:
    interval_s: float = 0.1  # between passes: most of an event's wait for its first attempt
    slots: SlotLimits = field(default_factory=SlotLimits)
    circuits: CircuitConfig = field(default_factory=CircuitConfig)
    reserved_s: float = 60.0  # a delivery whose scheduler died is due again after this long
    of_progress: bool = False  # deliver progress, or all else: neither waits for the other

    @classmethod
    def for_progress(cls) -> "WebhookDeliveryConfig":
        """The configuration for progress: few slots of its own, one for each receiver."""
        slots = SlotLimits(in_all=32, per_tenant=8, per_tenant_unanswered=4, per_destination=1)
        return cls(interval_s=1.0, slots=slots, of_progress=True)


@dataclass(frozen=True, kw_only=True)
class Delivered(PassResult):
    """Attempts that a pass started, and how attempts ended since the pass before."""

    started: int = 0
    delivered: int = 0
    failed: int = 0  # they are tried again
    dead: int = 0


class WebhookDelivery:
    def __init__(
        self,
        store: Store,
        vault: Vault,
        egress: Poster,
        config: WebhookDeliveryConfig = WebhookDeliveryConfig(),
        jitter: Callable[[], float] = random.random,
        observe: Callable[[DeliveryState, float], None] = lambda state, seconds: None,
    ) -> None:
        """`observe`: an attempt took so many seconds, and the delivery's state after it."""
        self.name = "progress_delivery" if config.of_progress else "webhook_delivery"
        self._store = store
        self._config = config
        self._observe = observe
        self._attempts = WebhookAttempts(store, vault, egress, jitter)
        self._in_flight = InFlightLimiter(config.slots)
        self._circuits = Circuits(config.circuits)
        self.interval_s = config.interval_s
        self.wait_until_idle = self._in_flight.wait_until_idle

    def due_at(self, work: PendingWork) -> datetime | None:
        if self._in_flight.has_outcomes:
            return work.at
        return work.next_progress_at if self._config.of_progress else work.next_delivery_at

    def run_once(self, now: datetime) -> Delivered:
        """Starts the due attempts that the limits allow.

        Raises RuntimeError if no thread can be started; what was not started is due again later.
        """
        ended = self._in_flight.take_outcomes()
        for outcome in ended:
            self._observe(outcome.state, outcome.seconds)
            if outcome.answered is not None:
                self._circuits.record(outcome.destination, outcome.ended_at, answered=outcome.answered)
        if self._in_flight.is_full:
            return _counted(ended, started=0)
        due = self._due(now)
        self._postpone(due, now)
        reserved = self._reserve([delivery for delivery in due if self._may_start(delivery, now)], now)
        self._start_attempts(reserved)
        # A page full of one tenant's deliveries hides the others' only until that tenant is at its limit.
        return _counted(
            ended, started=len(reserved), has_more=bool(reserved) and len(due) >= self._config.slots.in_all
        )

    def _due(self, now: datetime) -> Sequence[Delivery]:
        busy = [at for at in self._in_flight.destinations() if not self._circuits.answers(at)]
        with self._store.snapshot() as tx:
            return tx.deliveries.due(
                now,
                self._config.slots.in_all,
                except_tenants=self._in_flight.full_tenants(),
                except_destinations=busy,
                of_progress=self._config.of_progress,
            )

    def _may_start(self, delivery: Delivery, now: datetime) -> bool:
        destination = webhook_destination(delivery)
        if self._circuits.open_until(destination, now) is not None:
            return False
        return self._in_flight.acquire(delivery, answers=self._circuits.answers(destination))

    def _postpone(self, due: Sequence[Delivery], now: datetime) -> None:
        """Makes deliveries to open circuits due when those may be tried again: they hide no others."""
        times = (
            (delivery, self._circuits.open_until(webhook_destination(delivery), now)) for delivery in due
        )
        postponed = [(delivery, until) for delivery, until in times if until is not None]
        if postponed:
            with self._store.transaction() as tx:
                for delivery, until in postponed:
                    tx.deliveries.reserve(delivery, until)

    def _reserve(self, admitted: Sequence[Delivery], now: datetime) -> Sequence[Delivery]:
        if not admitted:
            return ()
        until = now + timedelta(seconds=self._config.reserved_s)
        reserved: list[Delivery] = []
        try:
            with self._store.transaction() as tx:
                reserved = [delivery for delivery in admitted if tx.deliveries.reserve(delivery, until)]
        finally:
            for delivery in admitted:
                if delivery not in reserved:
                    self._in_flight.release(delivery, None)
        return reserved

    def _start_attempts(self, reserved: Sequence[Delivery]) -> None:
        waiting = deque(reserved)
        try:
            while waiting:
                delivery = waiting[0]
                threading.Thread(
                    target=self._run_attempt, args=(delivery,), name=delivery.id, daemon=True
                ).start()
                waiting.popleft()
        finally:
            for delivery in waiting:
                self._in_flight.release(delivery, None)

    def _run_attempt(self, delivery: Delivery) -> None:
        outcome: AttemptOutcome | None = None
        try:
            outcome = self._attempts.make(delivery)
        except Exception:  # our own failure is no attempt: the delivery is due again
            log.exception("delivery not attempted", extra=fields(delivery, "delivery_trouble"))
        finally:
            self._in_flight.release(delivery, outcome)


def _counted(ended: Sequence[AttemptOutcome], *, started: int, has_more: bool = False) -> Delivered:
    states = Counter(outcome.state for outcome in ended)
    return Delivered(
        started=started,
        delivered=states[DeliveryState.DELIVERED],
        failed=states[DeliveryState.PENDING],
        dead=states[DeliveryState.DEAD],
        has_more=has_more,
    )
