"""Loads and unloads a worker's lazy models as work comes, on its own thread.

    work waits for a cold model ─► policy ─► models in its place: claim nothing more for them, hand their bulk
                                             shards back, let their online requests end, unload them
                                          ─► load it ─► claim work for it

Nothing is claimed for a model that is not loaded: what waits for it stays in the queue, for any worker.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from nightshift.errors import ConfigurationError, DatabaseUnavailable
from nightshift.fleet.models import Model
from nightshift.fleet.workers import Machine
from nightshift.jobs.backoff import Backoff
from nightshift.process import memory
from nightshift.store import Store, Transaction
from nightshift.store.shards.claims import WaitingWork
from workers.serving.model_server import ModelServer
from workers.serving.models import LazyModel, Models
from workers.serving.residency.policy import (
    Load,
    ResidencyConfig,
    Resident,
    Residents,
    Unload,
    Wanted,
    next_change,
)

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0  # between looks at what waits
LOOK_SPACING_S: Final = 0.2  # … when messages wake it
UNLOADING_LOOK_S: Final = 0.05  # between looks whether a model has work left
REFUSED: Final = Backoff(
    first_s=60.0, longest_s=3600.0
)  # until a model that could not be loaded is tried again


class Work(Protocol):
    """The work that the worker runs."""

    def count_of(self, model_id: str) -> int:
        """Requests and shards of this model."""

    def hand_back_of(self, model_id: str) -> None:
        """Hands back a model's bulk shards: they go to the queue with what they have."""


class Registered(Protocol):
    """This worker's row."""

    def models_changed(
        self, served: Sequence[str], warm: Sequence[str], loaded: Model | None = None
    ) -> None: ...

    def warm_elsewhere(self, tx: Transaction) -> set[str]: ...


@dataclass
class _Warm:
    bytes: int
    loaded_at_s: float
    used_at_s: float


@dataclass
class ResidencyCounts:
    """Since the worker started."""

    loads: int = 0
    load_seconds: float = 0.0
    swaps: int = 0  # loads in place of others
    refusals: int = 0  # loads that failed


class Residency:
    """`run_once` is its duty; the thread calls it every second, and when messages find no warm model."""

    def __init__(
        self,
        store: Store,
        models: Models,
        work: Work,
        registered: Registered,
        prepare: Callable[[ModelServer], None],
        *,
        machine: Machine,
        config: ResidencyConfig,
        on_change: Callable[[], None] = lambda: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`prepare` is called with each model before it starts, `on_change` when one has become warm."""
        self._store = store
        self._models = models
        self._work = work
        self._registered = registered
        self._prepare = prepare
        self._machine = machine
        self._config = config
        self._on_change = on_change
        self._clock_s = clock_s
        self._warm: dict[str, _Warm] = {}
        self._refused: dict[str, tuple[int, float]] = {}  # how often in a row, and until when
        self._swapped_at_s = float("-inf")
        self.loading_since_s: float | None = None  # None: no load is under way
        self.counts = ResidencyCounts()
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="residency", daemon=True)

    def start(self) -> None:
        """Starts the thread where there are lazy models; else it has nothing to do."""
        if self._models.lazy:
            self._thread.start()

    def stop(self) -> None:
        """Stops: it changes nothing more. A load under way is not waited for, and its model not started."""
        self._stopping.set()
        self._woken.set()

    @property
    def is_alive(self) -> bool:
        return not self._models.lazy or self._stopping.is_set() or self._thread.is_alive()

    def wake(self) -> None:
        """Wakes the thread: work may wait for a cold model."""
        self._woken.set()

    def run_once(self, now_s: float) -> Load | Unload | None:
        """Looks at what waits and makes at most one change. Raises DatabaseUnavailable."""
        with self._store.snapshot() as tx:
            waiting = tx.claims.waiting(self._models.ids_known, tx.now(), machine=self._machine)
            elsewhere = self._registered.warm_elsewhere(tx)
        busy = _best_ranks(waiting, set(self._models.warm))
        for model_id, warm in self._warm.items():
            if model_id in busy or self._work.count_of(model_id):
                warm.used_at_s = now_s
        change = next_change(
            self._residents(now_s), self._wanted(waiting, elsewhere, now_s), busy, now_s, self._config
        )
        if isinstance(change, Load):
            self._load(self._models.lazy[change.model_id], change.in_place_of)
        elif isinstance(change, Unload):
            self._unload([change.model_id])
            self._record()
        return change

    def _residents(self, now_s: float) -> Residents:
        lazy = {
            model_id: Resident(
                warm.bytes, warm.loaded_at_s, None if self._work.count_of(model_id) else warm.used_at_s
            )
            for model_id, warm in self._warm.items()
        }
        return Residents(lazy, self._models.lazy_capacity_bytes, self._swapped_at_s)

    def _wanted(
        self, waiting: Sequence[WaitingWork], elsewhere: set[str], now_s: float
    ) -> Mapping[str, Wanted]:
        wanted: dict[str, Wanted] = {}
        for work in waiting:
            lazy = self._models.lazy.get(work.model)
            is_refused = now_s < self._refused.get(work.model, (0, 0.0))[1]
            if lazy is None or work.model in self._warm or is_refused:
                continue
            new = Wanted(lazy.bytes, work.is_due, work.rank, work.waits_s, work.model in elsewhere)
            old = wanted.get(work.model, new)
            wanted[work.model] = replace(
                new,
                is_due=old.is_due or new.is_due,
                rank=min(old.rank, new.rank),
                waits_s=max(old.waits_s, new.waits_s),
            )
        return wanted

    def _load(self, model: LazyModel, in_place_of: Sequence[str]) -> None:
        began_s = self._clock_s()
        if in_place_of:
            self._swapped_at_s = began_s
            self._unload(in_place_of)
            self.counts.swaps += 1
        if self._stopping.is_set():
            return
        model_id = model.model.id
        self._record(loading=model_id)  # so that no other worker loads it for the same work
        self.loading_since_s = self._clock_s()
        try:
            server = model.load()
        except ConfigurationError as error:
            self._refuse(model_id, error)
            return
        finally:
            self.loading_since_s = None
        if self._stopping.is_set():
            return
        self._prepare(server)
        server.start()
        self._models.add(server)
        ended_s = self._clock_s()
        self._warm[model_id] = _Warm(model.bytes, ended_s, ended_s)
        self._refused.pop(model_id, None)
        self.counts.loads += 1
        self.counts.load_seconds += ended_s - began_s
        log.info(
            "model loaded",
            extra={
                "action": "model_loaded",
                "model": model_id,
                "in_place_of": list(in_place_of),
                "seconds": round(ended_s - began_s, 3),
            },
        )
        self._record(loaded=server.model)
        self._on_change()

    def _refuse(self, model_id: str, error: ConfigurationError) -> None:
        """Refuses a model until it can be loaded, so that requests for it are refused by name."""
        times, _ = self._refused.get(model_id, (0, 0.0))
        again_s = REFUSED.delay_s(times + 1)
        self._refused[model_id] = (times + 1, self._clock_s() + again_s)
        self._models.refuse(model_id)
        self.counts.refusals += 1
        log.error(
            "model not loaded: %s",
            error.message,
            extra={"action": "model_not_loaded", "model": model_id, "again_in_s": again_s},
        )
        memory.collect_and_give_back()
        self._record()

    def _unload(self, model_ids: Sequence[str]) -> None:
        """Unloads models once their shards are handed back and their requests have ended."""
        for model_id in model_ids:
            self._models.retire(model_id)
        self._record()
        for model_id in model_ids:
            self._work.hand_back_of(model_id)
        while any(self._work.count_of(model_id) for model_id in model_ids):
            if self._stopping.wait(UNLOADING_LOOK_S):
                return
        for model_id in model_ids:
            self._models.get(model_id).stop()  # a last step that is stuck is seen while it is one of them
            self._models.remove(model_id)
            del self._warm[model_id]
            log.info("model unloaded", extra={"action": "model_unloaded", "model": model_id})
        memory.collect_and_give_back()

    def _record(self, *, loading: str | None = None, loaded: Model | None = None) -> None:
        warm = [*self._models.warm, *([loading] if loading is not None else [])]
        self._registered.models_changed(self._models.ids, warm, loaded)

    # -- the thread

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                changed = self.run_once(self._clock_s())
            except DatabaseUnavailable as error:
                log.warning("models not looked at", extra={"action": "residency", "reason": error.message})
                changed = None
            if changed is None:
                self._woken.wait(LOOK_S)
            self._woken.clear()
            self._stopping.wait(LOOK_SPACING_S)


def _best_ranks(waiting: Sequence[WaitingWork], models: set[str]) -> Mapping[str, int]:
    """The best class that waits for each of these models."""
    ranks: dict[str, int] = {}
    for work in waiting:
        if work.model in models:
            ranks[work.model] = min(work.rank, ranks.get(work.model, work.rank))
    return ranks
