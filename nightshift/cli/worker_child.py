"""One Celery worker as a supervisor sees it: how it is called, and what is done when it has died.

The worker is another program, known here by its command line. Every start has a worker id of its own, so that
what a dead one held can be told from what its successor holds.
"""

import logging
import sys
from typing import Final

from nightshift.errors import DatabaseUnavailable
from nightshift.ids import new_id
from nightshift.recovery import release_worker
from nightshift.settings import WorkerSettings
from nightshift.store import Store
from nightshift.supervisor import Child, Death, Launch

log = logging.getLogger(__name__)

WORKER_ID: Final = "NIGHTSHIFT_WORKER_ID"
APP: Final = "workers.app"
POOL: Final = "workers.pool:EnginePool"
DRAIN_MARGIN_S: Final = 5.0  # on top of the worker's own limit, which it keeps by itself
DEATHS_IN_A_ROW_MAX: Final = 5  # then whoever supervises us decides: it may have another machine


def worker_child(settings: WorkerSettings, *, app: str = APP, pool: str = POOL) -> Child:
    """The worker as a child of its supervisor. `app` and `pool` name the Celery application and its pool: a
    worker whose computing is somebody else's is supervised all the same.
    """

    def launch() -> Launch:
        worker_id = new_id("wrk")
        environment = {
            WORKER_ID: worker_id,
            "NIGHTSHIFT_MODELS": ",".join(settings.models),
            "CELERY_CUSTOM_WORKER_POOL": pool,
            "TQDM_DISABLE": "1",  # progress bars of libraries fill a log and tell it nothing
        }
        messages_max = settings.online_slots + settings.shards_max
        return Launch(celery_command(worker_id, messages_max, app), environment)

    return Child(name="worker", launch=launch, grace_s=settings.drain_s + DRAIN_MARGIN_S)


def celery_command(worker_id: str, messages_max: int, app: str = APP) -> tuple[str, ...]:
    """How the worker is called. `messages_max` is how many messages it may hold unacknowledged."""
    return (
        *(sys.executable, "-P", "-m", "celery", "--app", app, "--quiet", "worker"),
        *("--pool", "custom", "--queues", "online,bulk", "--concurrency", str(messages_max)),
        *("--hostname", f"{worker_id}@%h", "--loglevel", "WARNING"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
    )


class Undertaker:
    """Told of a worker's death: returns its shards to the queue, and says whether to start another."""

    def __init__(self, store: Store, attempts_max: int) -> None:
        self._store = store
        self._attempts_max = attempts_max
        self.gave_up_on: Death | None = None

    def __call__(self, death: Death) -> bool:
        self._release(death.launch.environment[WORKER_ID])
        if death.is_configuration or death.in_a_row >= DEATHS_IN_A_ROW_MAX:
            self.gave_up_on = death
        return self.gave_up_on is None

    def _release(self, worker_id: str) -> None:
        try:
            with self._store.transaction() as tx:
                recovered = release_worker(tx, worker_id, self._attempts_max, tx.now())
        except DatabaseUnavailable as error:
            log.warning(
                "leases of a dead worker not released; they will run out",
                extra={"action": "release_failed", "worker": worker_id, "reason": error.message},
            )
            return
        log.info(
            "leases of a dead worker released",
            extra={"action": "worker_released", "worker": worker_id, "shards": recovered.shards},
        )
