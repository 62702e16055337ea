"""One loaded model and the thread that runs it: requests in from any thread, progress out to listeners.

Listeners are called on the engine thread, between steps; they must only note what they hear and return. An
exception that escapes a step ends the process: a live worker with a dead engine would hold its leases for
ever.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from nightshift.endpoints.requests import ChatRequest, CompletionRequest, EmbeddingRequest, Request
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import Model
from nightshift.jobs import JsonObject
from nightshift.jobs.priorities import PriorityClass
from workers.engine import (
    EngineDraining,
    InvalidTokenIds,
    MadeBy,
    PromptTooLong,
)
from workers.engine import (
    InvalidRequest as EngineRefusal,
)
from workers.engine import (
    Request as EngineRequest,
)
from workers.engine.encoders.batcher import EncodeInputTooLong, EncodeQueueFull, EncoderEngine, EncodeRequest
from workers.serving.carry_over import CarryOver, ChoiceSoFar
from workers.serving.inference import (
    Identity,
    Listener,
    Progress,
    SamplingDefaults,
    TextAnswer,
    check_length,
    choice_seed,
    embedding_answer,
    prompt_chars,
    sampling_params,
)

if TYPE_CHECKING:  # they need torch, which whoever loads a model has
    from workers.engine import Engine
    from workers.engine.encoders.model import EncoderModel

log = logging.getLogger(__name__)

OnFatal = Callable[[BaseException], None]

# Ends of steps after which nothing cancelled before is in the engine: the step under way may have it, and the
# next one takes it out.
STEPS_UNTIL_CANCELLED: Final = 2


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
    carry_over: CarryOver | None = None  # what an earlier attempt had generated
    group: str | None = None  # the job of a bulk row; None: somebody waits for this one


class ModelServer(ABC):
    """What the two kinds of model have in common: a thread that steps while there is work."""

    def __init__(self, model: Model, on_fatal: OnFatal) -> None:
        self.model = model
        self._on_fatal = on_fatal
        self._changed = threading.Condition()
        self._is_stopping = False
        self._after_cancelled: list[tuple[int, Callable[[], None]]] = []  # (step, callback)
        self.stepping_since_s: float | None = None  # monotonic; None: no step is under way
        self.steps = 0  # that have ended
        self.step_seconds = 0.0  # and how long they took together
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

    def after_cancelled(self, callback: Callable[[], None]) -> None:
        """Call `callback` once nothing that was cancelled before this is in the engine: a cancel only asks
        for that, and a stuck step does not end. On the engine's thread; at once where that does not run.
        """
        with self._changed:
            runs = self._thread.is_alive()
            if runs:
                self._after_cancelled.append((self.steps + STEPS_UNTIL_CANCELLED, callback))
                self._changed.notify()
        if not runs:
            callback()

    @property
    def made_by(self) -> JsonObject | None:
        """What has a part in the tokens this model generates here, as a carry-over records it."""
        return None

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
                    self._changed.wait_for(
                        lambda: self._has_work or self._is_stopping or bool(self._after_cancelled)
                    )
                    if self._is_stopping:
                        return
                if self._has_work:
                    self._timed_step()
                self._call_after_cancelled()
        except BaseException as error:  # noqa: BLE001 the thread's edge: nothing may end it in silence
            self._on_fatal(error)

    def _call_after_cancelled(self) -> None:
        """Between steps. Without work the engine has nothing."""
        with self._changed:
            is_empty, asked = not self._has_work, self._after_cancelled
            due = [callback for step, callback in asked if is_empty or step <= self.steps]
            self._after_cancelled = [] if is_empty else [one for one in asked if one[0] > self.steps]
        for callback in due:
            callback()

    def _timed_step(self) -> None:
        began_s = self.stepping_since_s = time.monotonic()
        self._step()
        self.stepping_since_s = None
        self.steps += 1
        self.step_seconds += time.monotonic() - began_s


@dataclass
class _Asked:
    """A request in the engine, as one sequence per choice."""

    answer: TextAnswer
    listener: Listener
    sequence_ids: Sequence[str]


class TextServer(ModelServer):
    """A decoder: chat and completions."""

    def __init__(self, model: Model, engine: "Engine", on_fatal: OnFatal, defaults: SamplingDefaults) -> None:
        super().__init__(model, on_fatal)
        self._engine = engine
        self._defaults = defaults
        self._asked: dict[str, _Asked] = {}  # by inference id
        self._choices: dict[str, tuple[str, int]] = {}  # inference id and choice, by sequence id

    @property
    def made_by(self) -> JsonObject:
        return asdict(self._engine.made_by)

    def submit(self, inference: Inference) -> None:
        request = inference.request
        assert isinstance(request, ChatRequest | CompletionRequest), "the endpoint was checked at claim"
        ids = _sequence_ids(inference.id, request.num_choices)
        self._asked[inference.id] = _Asked(
            TextAnswer(request, inference.identity, self._engine.tokenizer), inference.listener, ids
        )
        self._choices |= {id: (inference.id, choice) for choice, id in enumerate(ids)}
        try:
            self._add(inference, self._sequences(inference, request, ids))
        except EngineDraining as error:
            self._forget(inference.id)
            raise Busy from error
        except (EngineRefusal, InvalidRequest) as error:
            self._forget(inference.id)
            raise _invalid(error, _prompt_field(request)) from error
        except Exception:
            self._forget(inference.id)
            raise
        if inference.id not in self._asked:  # cancelled before the engine knew of it
            self._abort(ids)
        self._wake()

    def cancel(self, inference_id: str) -> None:
        asked = self._forget(inference_id)
        if asked is not None:
            self._abort(asked.sequence_ids)
            self._wake()

    @property
    def _has_work(self) -> bool:
        return self._engine.has_work

    def _step(self) -> None:
        for output in self._engine.step():
            inference_id, choice = self._choices.get(output.id, ("", 0))
            asked = self._asked.get(inference_id)
            if asked is None:
                continue  # cancelled meanwhile
            progress = asked.answer.take(choice, output)
            if progress.answer is not None or progress.failed is not None:
                self._forget(inference_id)
            if progress.failed is not None:
                self._abort(asked.sequence_ids)  # the choices that did not fail go with the one that did
            asked.listener(progress)

    def _sequences(
        self, inference: Inference, request: ChatRequest | CompletionRequest, ids: Sequence[str]
    ) -> list[EngineRequest]:
        """One engine request per choice: the same prompt, whose KV they share, and each its own seed."""
        prompt = tuple(self._prompt(request))
        sampling = sampling_params(request, inference.identity.seed, self._defaults)
        assert sampling.seed is not None, "every request has one, given or its own"
        return [
            EngineRequest(
                id=id,
                prompt_token_ids=prompt,
                sampling=replace(sampling, seed=choice_seed(sampling.seed, choice)),
                priority=_engine_class(inference.priority),
                group=inference.group,
            )
            for choice, id in enumerate(ids)
        ]

    def _add(self, inference: Inference, sequences: Sequence[EngineRequest]) -> None:
        """Hand all choices to the engine, or none. Raises what the engine raises."""
        added: list[str] = []
        try:
            for sequence, so_far in zip(sequences, self._so_far(inference, sequences), strict=True):
                self._engine.add(_resumed(sequence, so_far))
                added.append(sequence.id)
        except Exception:
            self._abort(added)
            raise

    def _so_far(self, inference: Inference, sequences: Sequence[EngineRequest]) -> Sequence[ChoiceSoFar]:
        """What an earlier attempt left of each choice; nothing, if it cannot be continued here."""
        carry_over = inference.carry_over
        if carry_over is not None:
            why_not = self._why_not(carry_over, sequences)
            if why_not is None:
                return carry_over.choices
            log.info(
                "request begins anew",
                extra={"action": "carry_over_dropped", "inference": inference.id, "reason": why_not},
            )
        return [ChoiceSoFar() for _ in sequences]

    def _why_not(self, carry_over: CarryOver, sequences: Sequence[EngineRequest]) -> str | None:
        """Why tokens made elsewhere cannot be continued here; None: they can."""
        misfit = carry_over.misfit([sequence.sampling for sequence in sequences])
        if misfit is not None:
            return misfit
        try:
            for sequence, so_far in zip(sequences, carry_over.choices, strict=True):
                self._engine.check(_resumed(sequence, so_far))  # all, before the first is in the engine
            if carry_over.made_by is None:
                return None
            is_exact = self._engine.made_by.accepts(MadeBy.from_json(carry_over.made_by))
        except EngineRefusal as error:
            return str(error)
        if not is_exact:
            log.info(
                "request continues inexactly",
                extra={"action": "carry_over_inexact", "made_by": carry_over.made_by},
            )
        return None

    def _forget(self, inference_id: str) -> _Asked | None:
        asked = self._asked.pop(inference_id, None)
        for id in asked.sequence_ids if asked is not None else ():
            self._choices.pop(id, None)
        return asked

    def _abort(self, sequence_ids: Sequence[str]) -> None:
        for id in sequence_ids:
            self._engine.abort(id)

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

    def __init__(self, model: Model, encoder: "EncoderModel", on_fatal: OnFatal) -> None:
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


def _sequence_ids(inference_id: str, num_choices: int) -> list[str]:
    return [inference_id] if num_choices == 1 else [f"{inference_id}/{n}" for n in range(num_choices)]


def _resumed(sequence: EngineRequest, so_far: ChoiceSoFar) -> EngineRequest:
    return replace(sequence, output_token_ids=tuple(so_far.token_ids), output_logprobs=tuple(so_far.logprobs))


def _engine_class(priority: PriorityClass) -> Literal["interactive", "standard", "background"]:
    return priority.value


def _prompt_field(request: Request) -> str:
    return "messages" if isinstance(request, ChatRequest) else "prompt"


def _invalid(error: Exception, param: str) -> InvalidRequest:
    if isinstance(error, InvalidRequest):
        return error
    too_long = isinstance(error, PromptTooLong | EncodeInputTooLong)
    if isinstance(error, InvalidTokenIds) and error.field == "logit_bias":
        param = error.field
    message = str(error)
    return InvalidRequest(
        message[:1].upper() + message[1:] + ".",
        param=param,
        code="context_length_exceeded" if too_long else "invalid_value",
    )
