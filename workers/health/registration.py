"""This worker's row in the database."""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Final

from nightshift.errors import DatabaseUnavailable
from nightshift.fleet.models import Model
from nightshift.fleet.workers import Machine, Worker, WorkerState
from nightshift.store import Store, Transaction
from nightshift.store.databases.migrate import check_schema

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
ALIVE_WITHIN: Final = timedelta(seconds=30)  # of their last heartbeat: six of them


class Registration:
    def __init__(self, store: Store, worker_id: str, machine: Machine) -> None:
        self._store = store
        self._worker_id = worker_id
        self._machine = machine

    def register(self) -> None:
        """Records that the worker exists, and loads its models. Raises DatabaseUnusable."""
        self._retry(lambda: check_schema(self._store.database))
        self._retry(self._insert)

    def open(self, models: Iterable[Model], warm: Sequence[str] | None = None) -> None:
        """Records that it can serve these and is ready. `warm`: those that are loaded; None: all."""
        served = list(models)
        self._retry(lambda: self._serve(served, warm))

    def models_changed(self, served: Sequence[str], warm: Sequence[str], loaded: Model | None = None) -> None:
        """Records what is served and warm, and what is known of a model now that it is loaded."""
        self._retry(lambda: self._record(served, warm, loaded))

    def warm_elsewhere(self, tx: Transaction) -> set[str]:
        """The models that other workers have warm."""
        return tx.workers.warm_elsewhere(self._worker_id, tx.now() - ALIVE_WITHIN)

    def _record(self, served: Sequence[str], warm: Sequence[str], loaded: Model | None) -> None:
        with self._store.transaction() as tx:
            if loaded is not None:
                tx.workers.register_model(loaded, tx.now())
            tx.workers.record_models(self._worker_id, served, warm)

    def _retry(self, act: Callable[[], None]) -> None:
        """Waits for the database: a worker that ended would be restarted until its supervisor gave up.

        It is told once, and again where it is away for another kind of reason.
        """
        told: str | None = None
        while True:
            try:
                act()
                return
            except DatabaseUnavailable as error:
                if error.code != told:
                    told = error.code
                    about = {"action": "database_awaited", "reason": error.message}
                    log.warning("waiting for the database", extra=about)
            time.sleep(RETRY_S)

    def _insert(self) -> None:
        with self._store.transaction() as tx:
            now = tx.now()
            tx.workers.register(
                Worker(
                    id=self._worker_id,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    state=WorkerState.STARTING,
                    models=(),
                    started_at=now,
                    heartbeat_at=now,
                    capacity=self._machine.capacity,
                    pools=self._machine.pools,
                )
            )

    def _serve(self, models: Sequence[Model], warm: Sequence[str] | None) -> None:
        with self._store.transaction() as tx:
            now = tx.now()
            for model in models:
                tx.workers.register_model(model, now)
            tx.workers.serves(self._worker_id, [model.id for model in models], now, warm)

    def mark(self, state: WorkerState) -> None:
        """Records the state; where the database is away, recovery sees the heartbeats end."""
        try:
            with self._store.transaction() as tx:
                tx.workers.mark(self._worker_id, state, tx.now())
        except DatabaseUnavailable as error:
            log.warning("state not recorded", extra={"action": "mark_failed", "reason": error.message})

    def is_replaceable(self, models: Iterable[str]) -> bool:
        """Whether another ready worker has these models and this capacity. False if the database is away."""
        needed = set(models)
        try:
            with self._store.snapshot() as tx:
                ready = tx.workers.list(heartbeat_since=tx.now() - ALIVE_WITHIN, state=WorkerState.READY)
        except DatabaseUnavailable:
            return False
        return any(
            other.id != self._worker_id
            and other.capacity is self._machine.capacity
            and needed <= set(other.models)
            for other in ready
        )
