"""One loaded model and the thread that runs it: requests in from any thread, progress out to listeners.

Listeners are called on the engine thread, between steps; they must only note what they hear and return. An
exception that escapes a step ends the process: a live worker with a dead engine would hold its leases for
ever.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from nightshift.errors import InvalidRequest
from nightshift.fleet import Model
from nightshift.priorities import PriorityClass
from nightshift.schemas import ChatRequest, CompletionRequest, EmbeddingRequest, Request
from workers.engine import (
    Engine,
    EngineDraining,
    PromptTooLong,
)
from workers.engine import (
    InvalidRequest as EngineRefusal,
)
from workers.engine import (
    Request as EngineRequest,
)
from workers.engine.encoders.batcher import EncodeInputTooLong, EncodeQueueFull, EncoderEngine, EncodeRequest
from workers.engine.encoders.model import EncoderModel
from workers.inference import (
    Identity,
    Listener,
    Progress,
    SamplingDefaults,
    TextAnswer,
    check_length,
    embedding_answer,
    prompt_chars,
    sampling_params,
)

log = logging.getLogger(__name__)

OnFatal = Callable[[BaseException], None]


class Busy(Exception):
    """The model takes nothing just now: its queue is full, or the worker is on its way out."""


@dataclass(frozen=True)
class Inference:
    """One request to a model."""

    id: str  # unique among what is in the engine at the same time
    request: Request
    identity: Identity
    priority: PriorityClass
    listener: Listener
    output_token_ids: Sequence[int] = ()  # what an earlier attempt had generated
    group: str | None = None  # the job of a bulk row; None: somebody waits for this one


class ModelServer(ABC):
    """What the two kinds of model have in common: a thread that steps while there is work."""

    def __init__(self, model: Model, on_fatal: OnFatal) -> None:
        self.model = model
        self._on_fatal = on_fatal
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=f"engine-{model.id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let the step in progress end, and no other begin."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    @abstractmethod
    def submit(self, inference: Inference) -> None:
        """Take a request in.

        Raises InvalidRequest when it can never run, Busy when it cannot be taken now.
        """

    @abstractmethod
    def cancel(self, inference_id: str) -> None:
        """Forget a request; its listener may still hear what was under way. Unknown ids are ignored."""

    @property
    @abstractmethod
    def _has_work(self) -> bool: ...

    @abstractmethod
    def _step(self) -> None: ...

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._has_work or self._is_stopping)
                    if self._is_stopping:
                        return
                self._step()
        except BaseException as error:  # noqa: BLE001 the thread's edge: nothing may end it in silence
            self._on_fatal(error)


class TextServer(ModelServer):
    """A decoder: chat and completions."""

    def __init__(self, model: Model, engine: Engine, on_fatal: OnFatal, defaults: SamplingDefaults) -> None:
        super().__init__(model, on_fatal)
        self._engine = engine
        self._defaults = defaults
        self._running: dict[str, tuple[TextAnswer, Listener]] = {}

    def submit(self, inference: Inference) -> None:
        request = inference.request
        assert isinstance(request, ChatRequest | CompletionRequest), "the endpoint was checked at claim"
        self._running[inference.id] = (
            TextAnswer(inference.id, request, inference.identity),
            inference.listener,
        )
        try:
            self._engine.add(
                EngineRequest(
                    id=inference.id,
                    prompt_token_ids=self._prompt(request),
                    sampling=sampling_params(request, inference.identity.seed, self._defaults),
                    priority=_engine_class(inference.priority),
                    output_token_ids=tuple(inference.output_token_ids),
                    group=inference.group,
                )
            )
        except EngineDraining as error:
            self._running.pop(inference.id, None)  # a cancel may have been quicker
            raise Busy from error
        except (EngineRefusal, InvalidRequest) as error:
            self._running.pop(inference.id, None)  # a cancel may have been quicker
            raise _invalid(error, _prompt_field(request)) from error
        if inference.id not in self._running:  # cancelled before the engine knew of it
            self._engine.abort(inference.id)
        self._wake()

    def cancel(self, inference_id: str) -> None:
        if self._running.pop(inference_id, None) is not None:
            self._engine.abort(inference_id)
            self._wake()

    @property
    def _has_work(self) -> bool:
        return self._engine.has_work

    def _step(self) -> None:
        for output in self._engine.step():
            running = self._running.get(output.id)
            if running is None:
                continue  # cancelled meanwhile
            answer, listener = running
            if output.finish_reason is not None:
                self._running.pop(output.id, None)
            listener(answer.take(output))

    def _prompt(self, request: ChatRequest | CompletionRequest) -> Sequence[int]:
        field = _prompt_field(request)
        check_length(prompt_chars(request), self.model.context_length, field)
        if isinstance(request, ChatRequest):
            return self._engine.tokenizer.render_chat(request.conversation)
        prompt = request.prompt
        token_ids = self._engine.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        if not token_ids:
            raise InvalidRequest("The prompt has no tokens.", param=field)
        return token_ids


class EmbeddingServer(ModelServer):
    """An encoder: embeddings."""

    def __init__(self, model: Model, encoder: EncoderModel, on_fatal: OnFatal) -> None:
        super().__init__(model, on_fatal)
        self._encoder = encoder
        self._engine = EncoderEngine(encoder)
        self._running: dict[str, tuple[EmbeddingRequest, Listener]] = {}

    def submit(self, inference: Inference) -> None:
        request = inference.request
        assert isinstance(request, EmbeddingRequest), "the endpoint was checked at claim"
        if request.dimensions not in (None, self._encoder.dimensions):
            raise InvalidRequest(
                f"'{self.model.id}' has {self._encoder.dimensions} dimensions and cannot be shortened.",
                param="dimensions",
            )
        inputs = [self._token_ids(item) for item in request.inputs]
        self._running[inference.id] = (request, inference.listener)
        try:
            self._engine.add(EncodeRequest(inference.id, inputs, _engine_class(inference.priority)))
        except EncodeQueueFull as error:
            self._running.pop(inference.id, None)  # a cancel may have been quicker
            raise Busy from error
        except EngineRefusal as error:
            self._running.pop(inference.id, None)  # a cancel may have been quicker
            raise _invalid(error, "input") from error
        if inference.id not in self._running:  # cancelled before the engine knew of it
            self._engine.abort(inference.id)
        self._wake()

    def cancel(self, inference_id: str) -> None:
        if self._running.pop(inference_id, None) is not None:
            self._engine.abort(inference_id)

    def _token_ids(self, item: str | list[int]) -> list[int]:
        if not isinstance(item, str):
            return item
        check_length(len(item), self.model.context_length, "input")
        return self._encoder.tokenize(item)

    @property
    def _has_work(self) -> bool:
        return self._engine.has_work

    def _step(self) -> None:
        for output in self._engine.step():
            running = self._running.pop(output.id, None)
            if running is None:
                continue
            request, listener = running
            vectors = [vector.astype("<f4", copy=False).tobytes() for vector in output.embeddings]
            listener(Progress(answer=embedding_answer(request, vectors, output.num_prompt_tokens)))


def _engine_class(priority: PriorityClass) -> Literal["interactive", "standard", "background"]:
    return priority.value


def _prompt_field(request: Request) -> str:
    return "messages" if isinstance(request, ChatRequest) else "prompt"


def _invalid(error: Exception, param: str) -> InvalidRequest:
    if isinstance(error, InvalidRequest):
        return error
    too_long = isinstance(error, PromptTooLong | EncodeInputTooLong)
    message = str(error)
    return InvalidRequest(
        message[:1].upper() + message[1:] + ".",
        param=param,
        code="context_length_exceeded" if too_long else "invalid_value",
    )
