"""One loaded model and the thread that runs it: requests in from any thread, progress out to listeners.

Listeners are called on the engine thread, between steps, and must return at once. An exception that escapes a
step ends the process, which would otherwise keep its leases and run nothing.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

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
from workers.serving.turns import StepTurns

OnFatal = Callable[[BaseException], None]

Tokens = Sequence[Any]
"""The token ids of each of a request's prompts, or what its model takes for each of its inputs."""

# Steps until nothing cancelled is in the engine: the one under way may have it, the next takes it out.
STEPS_UNTIL_CANCELLED: Final = 2


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
    num_truncated: int = 0  # of its inputs, as its server cut them
    is_streamed: bool = True  # else the listener may hear of its end only, and `generated` tells the rest


class ModelServer(ABC):
    """A model and its thread, which steps while there is work."""

    def __init__(self, model: Model, on_fatal: OnFatal) -> None:
        self.model = model
        self.adapters: Mapping[str, Model] = {}
        """Models by name that are this one with an adapter."""
        self._on_fatal = on_fatal
        self._turns = StepTurns(one_at_a_time=False)
        self._changed = threading.Condition()
        self._is_stopping = False
        self._after_cancelled: list[tuple[int, Callable[[], None]]] = []  # (step, callback)
        self.stepping_since_s: float | None = None  # monotonic; None: no step is under way
        self.steps = 0  # that have ended
        self.step_seconds = 0.0  # and how long they took together
        self.engine_stats: EngineStats | EncoderStats | None = None  # as of the last step's end
        self._busy = RecentShare(time.monotonic())
        self._near_roofline = RecentShare()  # of the time in steps
        self._thread = threading.Thread(target=self._run, name=f"engine-{model.id}", daemon=True)

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

    def start(self) -> None:
        self.engine_stats = self._read_stats()
        self._thread.start()

    def stop(self) -> None:
        """Lets the step in progress end and starts no other."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        self._call_after_cancelled()  # what it still holds runs no more
        self._close()
        self._turns.forget(self.model.id)

    def use_files(self, files: Files) -> None:  # noqa: B027 most kinds need none
        """Sets the files that requests may name. Called before `start`."""

    def share_device(self, turns: StepTurns) -> None:
        """Steps in turn with other models; called before `start`."""
        self._turns = turns

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

    def after_cancelled(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once nothing cancelled before this is in the engine, which a stuck step may never
        reach. On the engine's thread; at once where that does not run.
        """
        with self._changed:
            runs = self._thread.is_alive() and not self._is_stopping
            if runs:
                self._after_cancelled.append((self.steps + STEPS_UNTIL_CANCELLED, callback))
                self._changed.notify()
        if not runs:
            callback()

    @property
    def histograms(self) -> EngineHistograms | None:
        """Histograms of its requests and steps. None: it keeps none."""
        return None

    @property
    def busy_seconds(self) -> float:
        """Seconds that the server has been in steps since its start, the one under way included."""
        ended_s, since_s = self.step_seconds, self.stepping_since_s
        return ended_s + (0.0 if since_s is None else max(0.0, time.monotonic() - since_s))

    @property
    def busy_fraction(self) -> float:
        """Share of the last seconds in which it was in a step, from 0 to 1."""
        share = self._busy.at(time.monotonic(), self.busy_seconds)
        return 0.0 if share is None else min(1.0, max(0.0, share))

    @property
    def roofline_fraction(self) -> float | None:
        """Share of the last seconds in steps that they take at the device's best; None: it is not known."""
        least_s = getattr(self.engine_stats, "roofline_seconds", None)
        return None if least_s is None else self._near_roofline.at(self.step_seconds, least_s)

    @property
    def made_by(self) -> JsonObject | None:
        """Facts that tokens generated here depend on, as a carry-over records them."""
        return None

    def made_by_of(self, model_id: str) -> JsonObject | None:
        """The same of requests that name this model or adapter."""
        return self.made_by

    @property
    @abstractmethod
    def _has_work(self) -> bool: ...

    @property
    def _is_urgent(self) -> bool:
        """Whether a client waits for an answer of the class interactive."""
        return False

    def _close(self) -> None:  # noqa: B027 most keep nothing outside
        """Gives back what it holds outside this process. No step is under way."""

    def _prepare_step(self) -> None:  # noqa: B027 most have nothing to wait for
        """Waits for what a step needs before it needs the device."""

    @abstractmethod
    def _step(self) -> None: ...

    def _read_stats(self) -> EngineStats | EncoderStats | None:
        """Called between steps."""
        return None

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._has_work or self._is_stopping or bool(self._after_cancelled)
                    )
                    if self._is_stopping:
                        return
                if self._has_work:
                    self._timed_step()
                self._call_after_cancelled()
        except BaseException as error:  # noqa: BLE001 the thread's edge
            self._on_fatal(error)

    def _call_after_cancelled(self) -> None:
        """Calls `callback` between steps, or after the last. Without work the engine holds nothing."""
        with self._changed:
            is_empty, waiting = not self._has_work or self._is_stopping, self._after_cancelled
            due = [callback for step, callback in waiting if is_empty or step <= self.steps]
            self._after_cancelled = [] if is_empty else [one for one in waiting if one[0] > self.steps]
        for callback in due:
            callback()

    def _timed_step(self) -> None:
        self._prepare_step()
        with self._turns.turn(self.model.id, is_urgent=self._is_urgent):
            began_s = self.stepping_since_s = time.monotonic()
            self._step()
            self.stepping_since_s = None
        self.steps += 1
        ended_s = time.monotonic()
        self.step_seconds += ended_s - began_s
        self._busy.note(ended_s, self.step_seconds)
        self.engine_stats = self._read_stats()
        least_s = getattr(self.engine_stats, "roofline_seconds", None)
        if least_s is not None:
            self._near_roofline.note(self.step_seconds, least_s)


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
    if isinstance(error, InvalidTokenIds) and error.field in ("logit_bias", "stop_token_ids"):
        param = error.field
    message = str(error)
    return InvalidRequest(message[:1].upper() + message[1:] + ".", param=param)
