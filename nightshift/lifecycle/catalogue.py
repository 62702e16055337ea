"""The models that workers serve or the operator announced."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from nightshift import endpoints
from nightshift.errors import DatabaseUnavailable, InvalidRequest, UnknownModel
from nightshift.fleet.checkpoints import model_id
from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import InputError
from nightshift.store import Transaction

CACHED_S: Final = 5.0  # the longest a served model is answered from the cache
RESTARTED_WITHIN: Final = timedelta(minutes=10)  # what a crashed worker served is expected back


@dataclass(frozen=True)
class ServedModel:
    """A model as clients see it. Only the name is known until a worker registers it."""

    id: str
    kind: ModelKind | None = None
    context_length: int | None = None  # tokens
    created_at: datetime | None = None
    registered: Model | None = None

    @property
    def parent(self) -> str | None:
        """The model that an adapter changes. None: it is none, or none that has been registered."""
        return None if self.registered is None else self.registered.parent

    def serves(self, endpoint: str) -> bool:
        """Whether it serves the endpoint; an unregistered model is assumed to serve every one."""
        return self.kind is None or self.kind in endpoints.get(endpoint).model_kinds


class Catalogue:
    def __init__(self, registered: Sequence[Model], announced: Iterable[str] = ()) -> None:
        """`announced`: hub ids or paths from NIGHTSHIFT_MODELS."""
        self._has_registered = bool(registered)
        self.by_id = {
            model.id: ServedModel(model.id, model.kind, model.context_length, model.created_at, model)
            for model in registered
        }
        for id in map(model_id, announced):
            self.by_id.setdefault(id, ServedModel(id))

    @property
    def models(self) -> Sequence[ServedModel]:
        """Registered models in the workers' order, then announced ones."""
        return list(self.by_id.values())

    @property
    def registered(self) -> Mapping[str, Model]:
        """Models of which more than the name is known, by id."""
        return {id: model.registered for id, model in self.by_id.items() if model.registered is not None}

    def find(self, name: str) -> ServedModel:
        """Raises UnknownModel."""
        model = self.by_id.get(name)
        if model is None:
            raise UnknownModel.called(name)
        return model

    def serves(self, name: str, endpoint: str) -> bool:
        model = self.by_id.get(name)
        return model is not None and model.serves(endpoint)

    def check(self, name: str, endpoint: str) -> None:
        """Raises UnknownModel, or InvalidRequest for a model of another kind."""
        model = self.find(name)
        if not model.serves(endpoint):
            kinds = " or ".join(sorted(endpoints.get(endpoint).model_kinds))
            raise InvalidRequest(
                f"The model '{name}' does not serve {endpoint}: its kind is {model.kind}, and that needs "
                f"{kinds}.",
                param="model",
                code="model_not_supported",
            )

    def objection(self, name: str, endpoint: str) -> InputError | None:
        """The reason an accepted job cannot use this model, or None.

        Before the first worker registers, no model is unknown: the job waits for one.
        """
        try:
            self.check(name, endpoint)
        except UnknownModel as error:
            return _input_error(error) if self._has_registered else None
        except InvalidRequest as error:
            return _input_error(error)
        return None


class CachedCatalogue:
    """Caches the catalogue for `CACHED_S`, except for models it lacks, so that a new model is served at
    once.
    """

    def __init__(
        self,
        announced: Sequence[str],
        clock_s: Callable[[], float] = time.monotonic,
        snapshot: Callable[[], AbstractContextManager[Transaction]] | None = None,
    ) -> None:
        """`snapshot`: reads what `known` lacks."""
        self._announced = announced
        self._clock_s = clock_s
        self._snapshot = snapshot
        self._cached = Catalogue(())
        self._cached_until_s = 0.0

    def read(self, tx: Transaction) -> Catalogue:
        """The announced models and those of live workers. Where none is announced, all registered ones: their
        workers may be scaled to none for now.
        """
        registered = tx.workers.models()
        if self._announced:
            wanted = {*map(model_id, self._announced), *tx.workers.served(tx.now() - RESTARTED_WITHIN)}
            registered = [model for model in registered if model.id in wanted]
        return Catalogue(registered, self._announced)

    def known(self, name: str) -> Model | None:
        """A registered model, perhaps as it was a while ago; None: there is none, or the database is away."""
        model = self._cached.by_id.get(name)
        if model is None and self._snapshot is not None:
            with suppress(DatabaseUnavailable), self._snapshot() as tx:
                model = self._renew(tx).by_id.get(name)
        return None if model is None else model.registered

    def check(self, tx: Transaction, name: str, endpoint: str) -> None:
        """Raises UnknownModel, which lists the served models, or InvalidRequest."""
        model = self._cached.by_id.get(name)
        if self._clock_s() < self._cached_until_s and model is not None and model.serves(endpoint):
            return
        self._renew(tx)
        try:
            self._cached.check(name, endpoint)
        except UnknownModel as error:
            raise UnknownModel.called(name, [model.id for model in self._cached.models]) from error

    def _renew(self, tx: Transaction) -> Catalogue:
        self._cached = self.read(tx)
        self._cached_until_s = self._clock_s() + CACHED_S
        return self._cached


def _input_error(error: InvalidRequest) -> InputError:
    assert error.code is not None, "an objection to a model has a code"
    return InputError(error.code, error.message, param=error.param)
