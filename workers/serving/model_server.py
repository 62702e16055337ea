"""The interface of a model's server: requests in from any thread, progress out to listeners.

Listeners are called on the server's thread and must return at once.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from prometheus_client.registry import Collector

from nightshift.endpoints import Endpoint
from nightshift.endpoints.requests import MAY_BE_CUT, ModelRequest, too_long
from nightshift.endpoints.results import Identity
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import Model
from nightshift.jobs import JsonObject, ShardObject
from nightshift.jobs.priorities import PriorityClass
from nightshift_engine import EncoderStats, EngineHistograms, EngineStats
from nightshift_engine.errors import EncodeInputTooLong, InvalidTokenIds, PromptTooLong
from workers.serving.busy import RecentShare
from workers.serving.carry_over import CarryOver
from workers.serving.inference import Listener, Progress

OnFatal = Callable[[BaseException], None]

Tokens = Sequence[Any]
"""The token ids of each of a request's prompts, or what its model takes for each of its inputs."""


class Files(Protocol):
    """Files that requests may name, each for a tenant. Called from many threads."""

    def read(self, reference: str, tenant_id: str, size_bytes_max: int, *, etag: str | None = None) -> bytes:
        """`etag`: of the object that is meant; None: of any.

        Raises InvalidRequest, and StorageError or NoAnswer where a retry may help.
        """


class Busy(Exception):
    """The model takes no request now: its queue is full."""


@dataclass(slots=True)  # one for each row: frozen ones take longer to make
class Inference:
    id: str  # unique in the engine at a time
    endpoint: Endpoint
    request: ModelRequest
    identity: Identity
    priority: PriorityClass
    listener: Listener
    carry_over: CarryOver | None = None  # what an earlier attempt had generated
    group: str | None = None  # the job of a bulk row; None: an online request
    tokens: Tokens | InvalidRequest | None = None  # as `tokenize` gave them; None: it was not asked
    tenant_id: str = ""  # whose files its request may name
    row_object: ShardObject | None = None  # where its request names this one, it is read as it was planned
    body: JsonObject | None = None  # of the request, as it was given; None: its server takes none
    num_truncated: int = 0  # of its inputs, as its server cut them
    is_streamed: bool = True  # else the listener may hear of its end only, and `generated` tells the rest
    breaks: int = 0  # as its last progress told them


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Requests of a model that runs elsewhere."""

    running: int
    waiting: int


class ModelServer(ABC):
    """A model that runs requests: on an engine here, or at other servers."""

    takes_bodies: ClassVar[bool] = False
    """Whether an inference needs the request's body beside what was read from it."""

    collector: Collector | None = None
    """More metrics of its own; several servers may share one."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.adapters: Mapping[str, Model] = {}
        """Models by name that are this one with an adapter."""
        self.stepping_since_s: float | None = None  # monotonic; None: no step is under way, or it has none
        self.steps = 0  # that have ended
        self.step_seconds = 0.0  # and how long they took together
        self.engine_stats: EngineStats | EncoderStats | RequestCounts | None = None  # as of the last step
        self._busy = RecentShare(time.monotonic())  # of `busy_seconds`

    @property
    def context_length(self) -> int:
        """Tokens of prompt and output together."""
        assert self.model.context_length is not None, "it is loaded"
        return self.model.context_length

    @property
    def models(self) -> Sequence[Model]:
        """The model, and its adapters."""
        return [self.model, *self.adapters.values()]

    def called(self, name: str | None) -> Model:
        """The model or adapter of this name that a request for this server gives."""
        return self.adapters.get(name or "", self.model)

    @abstractmethod
    def start(self) -> None:
        """Begins to run requests."""

    @abstractmethod
    def stop(self) -> None:
        """Lets what cannot be interrupted end, and runs nothing more."""

    def use_files(self, files: Files) -> None:  # noqa: B027 most kinds need none
        """Sets the files that requests may name. Called before `start`."""

    @abstractmethod
    def submit(self, inference: Inference) -> None:
        """Raises InvalidRequest when it can never run, Busy when it cannot be taken now."""

    def tokenize(
        self, endpoint: Endpoint, requests: Sequence[ModelRequest]
    ) -> Sequence[Tokens | InvalidRequest | None]:
        """The tokens of each request, or why it cannot run; on any thread. None: `submit` makes them."""
        return [None] * len(requests)

    def is_repeatable(self, request: ModelRequest) -> bool:
        """Whether the same request has the same answer, also of another row."""
        return False

    def generated(self, inference_id: str) -> Sequence[Progress]:
        """Tokens of a request that is not streamed, since the last call; on any thread."""
        return ()

    @abstractmethod
    def cancel(self, inference_id: str) -> None:
        """Forgets a request; its listener may still be called for what was under way. Unknown ids are
        ignored.
        """

    @abstractmethod
    def after_cancelled(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once nothing cancelled before this is being run, which a stuck step may never
        reach. On the server's thread; at once where that does not run.
        """

    @property
    @abstractmethod
    def busy_seconds(self) -> float:
        """Seconds since its start in which it ran requests."""

    @property
    def busy_fraction(self) -> float:
        """Share of the last seconds in which it ran requests, from 0 to 1."""
        share = self._busy.at(time.monotonic(), self.busy_seconds)
        return 0.0 if share is None else min(1.0, max(0.0, share))

    @property
    def roofline_fraction(self) -> float | None:
        """Share of the last seconds in steps that they take at the device's best; None: it is not known."""
        return None

    @property
    def problem(self) -> str | None:
        """The reason why it runs nothing at present, for owners of jobs and operators; None: it does."""
        return None

    @property
    def histograms(self) -> EngineHistograms | None:
        """Histograms of its requests and steps. None: it keeps none."""
        return None

    @property
    def made_by(self) -> JsonObject | None:
        """Facts that tokens generated here depend on, as a carry-over records them."""
        return None

    def made_by_of(self, model_id: str) -> JsonObject | None:
        """The same of requests that name this model or adapter."""
        return self.made_by


def engine_class(priority: PriorityClass) -> Literal["interactive", "standard", "background"]:
    return priority.value


def takes_no_images(model: Model, param: str) -> InvalidRequest:
    return InvalidRequest(f"'{model.id}' {model.kind.does}: it takes no images.", param=param)


def invalid(error: Exception, param: str) -> InvalidRequest:
    if isinstance(error, InvalidRequest):
        return error
    if isinstance(error, EncodeInputTooLong):
        text = f"input {error.input_index}" if param == "input" else f"'{param}'"
        return too_long(error.max_tokens, f"{text} has {error.num_tokens} tokens", param, MAY_BE_CUT)
    if isinstance(error, PromptTooLong):
        return too_long(error.limit, f"{error} ('{param}')", param)
    if isinstance(error, InvalidTokenIds) and error.field not in ("prompt", "output", "output_logprobs"):
        param = error.field
    message = str(error)
    return InvalidRequest(message[:1].upper() + message[1:] + ".", param=param)
