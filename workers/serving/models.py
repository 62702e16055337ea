"""The models of one worker, by id: those that are loaded, and those that can be."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from nightshift.endpoints import Endpoint
from nightshift.endpoints.endpoint import check_sizes
from nightshift.errors import InvalidRequest, UnknownModel
from nightshift.fleet.models import Model
from nightshift.process.settings import ANSWER_BYTES_MAX, WorkerSettings
from workers.serving.model_server import Inference, ModelServer, OnFatal


@dataclass(frozen=True)
class LazyModel:
    """A model that is loaded when work waits for it."""

    model: Model
    """The facts that its files tell."""
    bytes: int
    """Memory of the device, for weights, KV and steps."""
    load: Callable[[], ModelServer]
    """Raises ConfigurationError."""
    capacity_bytes: int
    """Memory for it and all other lazy models of the worker together."""


# All models of the settings, in their order: servers of those that are loaded at start, and the others.
# Raises ConfigurationError.
LoadModels = Callable[[WorkerSettings, OnFatal], Sequence[ModelServer | LazyModel]]


class Models:
    """Routes a request to the model it names. Thread-safe."""

    def __init__(
        self, models: Sequence[ModelServer | LazyModel], answer_bytes_max: int = ANSWER_BYTES_MAX
    ) -> None:
        self._answer_bytes_max = answer_bytes_max
        self._ids = tuple(id for served in models for id in _ids_of(served))
        self._bases = {
            name: served.model.id
            for served in models
            if not isinstance(served, LazyModel)
            for name in served.adapters
        }
        self.lazy: Mapping[str, LazyModel] = {
            served.model.id: served for served in models if isinstance(served, LazyModel)
        }
        self._servers = {served.model.id: served for served in models if not isinstance(served, LazyModel)}
        self._claiming = threading.Lock()
        self._retired: set[str] = set()  # they run what they have
        self._refused: set[str] = set()  # they could not be loaded

    @property
    def ids(self) -> tuple[str, ...]:
        """Models that can be served here."""
        return tuple(id for id in self._ids if id not in self._refused)

    @property
    def lazy_capacity_bytes(self) -> int:
        """Bytes of the device for all lazy models together."""
        return min((model.capacity_bytes for model in self.lazy.values()), default=0)

    @property
    def ids_known(self) -> tuple[str, ...]:
        """All of the settings."""
        return self._ids

    @property
    def warm(self) -> tuple[str, ...]:
        """Models for which work may be claimed."""
        servers = [server for id, server in list(self._servers.items()) if id not in self._retired]
        return tuple(id for server in servers for id in _ids_of(server))

    def busy_seconds_of(self, model_id: str) -> float:
        """Seconds that the model's engine has been in steps since it was loaded; 0: it is not loaded."""
        server = self._servers.get(self._bases.get(model_id, model_id))
        return 0.0 if server is None else server.busy_seconds

    @contextmanager
    def claiming(self) -> Iterator[tuple[str, ...]]:
        """The warm models. None of them is retired while work is claimed for them and handed to them."""
        with self._claiming:
            yield self.warm

    def add(self, server: ModelServer) -> None:
        """Adds a model that is loaded and started."""
        with self._claiming:
            self._refused.discard(server.model.id)
            self._servers = self._servers | {server.model.id: server}

    def retire(self, model_id: str) -> None:
        """Claims nothing more for it. Waits for a claim under way."""
        with self._claiming:
            self._retired.add(model_id)

    def remove(self, model_id: str) -> ModelServer:
        """A retired model without work, to be stopped."""
        with self._claiming:
            servers = dict(self._servers)
            server = servers.pop(model_id)
            self._servers = servers
            self._retired.discard(model_id)
        return server

    def refuse(self, model_id: str) -> None:
        """Refuses a model that could not be loaded: until it can be, it is not served."""
        self._refused.add(model_id)

    def __iter__(self) -> Iterator[ModelServer]:
        """The servers that are loaded."""
        return iter(list(self._servers.values()))

    def get(self, model_id: str) -> ModelServer:
        """Raises UnknownModel."""
        try:
            return self._servers[self._bases.get(model_id, model_id)]
        except KeyError as error:
            raise UnknownModel.called(model_id) from error

    def find(self, model_id: str | None, endpoint: Endpoint) -> ModelServer | None:
        """The server of a model for this endpoint. None: no such model serves it here."""
        server = None if model_id is None else self._servers.get(self._bases.get(model_id, model_id))
        return server if server is not None and server.model.kind in endpoint.model_kinds else None

    def submit(self, inference: Inference) -> ModelServer:
        """Hands a request to the model it names. Raises UnknownModel, InvalidRequest or Busy."""
        server = self.get(inference.request.model)
        if server.model.kind not in inference.endpoint.model_kinds:
            does = server.model.kind.does
            raise InvalidRequest(
                f"The model '{server.model.id}' {does}; this endpoint asks for something else.",
                param="model",
                code="model_not_supported",
            )
        check_sizes(inference.endpoint, inference.request, server.model, self._answer_bytes_max)
        server.submit(inference)
        return server


def _ids_of(served: ModelServer | LazyModel) -> list[str]:
    """The names of a model and of its adapters."""
    return [served.model.id] if isinstance(served, LazyModel) else [model.id for model in served.models]
