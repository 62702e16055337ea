"""Which models may be asked for what: those a worker has registered, and those the operator has announced."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nightshift.errors import InvalidRequest, UnknownModel
from nightshift.fleet.checkpoints import model_id
from nightshift.fleet.models import ModelKind
from nightshift.jobs import Endpoint
from nightshift.store import Transaction

REMEMBERED_S: Final = 5.0  # so long a model is served as it was, whatever workers register meanwhile


@dataclass(frozen=True)
class ServedModel:
    """A model as clients see it. Of one that no worker has registered yet, only the name is known."""

    id: str
    kind: ModelKind | None = None
    context_length: int | None = None  # tokens
    created_at: datetime | None = None

    def serves(self, endpoint: Endpoint) -> bool:
        """As far as anybody knows."""
        return self.kind is None or self.kind.serves(endpoint)


class Catalogue:
    """Asked with every request, and hardly ever different: what it has seen it remembers for moments. What it
    remembers lets in and never keeps out: a new model is served as soon as a worker has registered it.
    """

    def __init__(self, announced: Sequence[str], clock_s: Callable[[], float] = time.monotonic) -> None:
        """`announced`: ids or paths."""
        self._clock_s = clock_s
        self._announced = dict.fromkeys(map(model_id, announced))
        self._seen: dict[str, ServedModel] = {}
        self._seen_until_s = 0.0

    def served(self, tx: Transaction) -> Sequence[ServedModel]:
        """Every model, in the workers' order, then those announced."""
        registered = [
            ServedModel(model.id, model.kind, model.context_length, model.created_at)
            for model in tx.workers.models()
        ]
        known = {model.id for model in registered}
        return registered + [ServedModel(id) for id in self._announced if id not in known]

    def check(self, tx: Transaction, name: str, endpoint: Endpoint) -> None:
        """Raises UnknownModel, or InvalidRequest for a model that does something else."""
        seen = self._seen.get(name) if self._clock_s() < self._seen_until_s else None
        if seen is None or not seen.serves(endpoint):
            self._look(tx, name, endpoint)

    def _look(self, tx: Transaction, name: str, endpoint: Endpoint) -> None:
        served = self.served(tx)
        self._seen = {model.id: model for model in served}
        self._seen_until_s = self._clock_s() + REMEMBERED_S
        found = self._seen.get(name)
        if found is None:
            known = ", ".join(self._seen) or "none"
            raise UnknownModel(
                f"The model '{name}' does not exist or is not served here; served are: {known}.",
                param="model",
            )
        if not found.serves(endpoint):
            raise InvalidRequest(
                f"The model '{name}' does not serve {endpoint.value}.",
                param="model",
                code="model_not_supported",
            )
