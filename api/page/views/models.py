"""The models that are served: what they are, and where they are loaded."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from api.operation.readiness import WORKER_SILENCE_MAX
from api.page.view import Asked, Context, View
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


def load(tx: Transaction, asked: Asked, now: datetime) -> Context:
    after = asked.text("after")
    found = tx.workers.models_page(limit=PER_PAGE + 1, after=after)
    ready = tx.workers.page((WorkerState.READY, WorkerState.DRAINING), limit=WORKERS_MAX)
    present = [each for each in ready if now - each.heartbeat_at <= WORKER_SILENCE_MAX]
    announced = dict.fromkeys(map(model_id, asked.services.settings.submission.announced_models))
    return {
        "rows": _rows(found[:PER_PAGE], present),
        "awaited": [] if after else [id for id in announced if tx.workers.model(id) is None],
        "older": found[PER_PAGE - 1].id if len(found) > PER_PAGE else None,
        "is_first": after is None,
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


VIEW: Final = View(path="/ui/models", title="Models", template="models.html", load=load)
