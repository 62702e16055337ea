"""The models that are served: what they are, and where they are loaded."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from api.operation.health import WORKER_SILENCE_MAX
from api.page.view import Context, PageRequest, View, paged
from nightshift.fleet.checkpoints import model_id
from nightshift.fleet.models import Model
from nightshift.fleet.workers import Worker, WorkerState
from nightshift.store import Transaction

PER_PAGE: Final = 50
WORKERS_MAX: Final = 500  # looked at for where models are loaded
WARM_SHOWN: Final = 5  # workers of a model


@dataclass(frozen=True)
class ModelRow:
    """`warm`: the first workers that have it loaded, of `warm_count`; `cold_count`: that could load it."""

    model: Model
    warm: Sequence[str]
    warm_count: int
    cold_count: int


def load(tx: Transaction, request: PageRequest, now: datetime) -> Context:
    after = request.text("after")
    rows = tx.workers.models_page(limit=PER_PAGE + 1, after=after)
    ready = tx.workers.page((WorkerState.READY, WorkerState.DRAINING), limit=WORKERS_MAX)
    present = [worker for worker in ready if now - worker.heartbeat_at <= WORKER_SILENCE_MAX]
    announced = dict.fromkeys(map(model_id, request.services.settings.submission.announced_models))
    return {
        "rows": _rows(rows[:PER_PAGE], present),
        "awaited": [] if after else [id for id in announced if tx.workers.model(id) is None],
        **paged(request, rows, PER_PAGE),
        "is_whole": len(ready) < WORKERS_MAX,
    }


def _rows(models: Sequence[Model], workers: Sequence[Worker]) -> list[ModelRow]:
    warm = Counter(id for worker in workers for id in set(worker.warm))
    served = Counter(id for worker in workers for id in set(worker.models))
    return [
        ModelRow(
            model,
            [worker.id for worker in workers if model.id in worker.warm][:WARM_SHOWN],
            warm[model.id],
            served[model.id] - warm[model.id],
        )
        for model in models
    ]


VIEW: Final = View(path="/ui/models", title="Models", template="service/models.html", load=load)
