"""Dynamic batching for encoders: inputs leave the queue in batches of similar length.

There is no KV and no next token: an input is encoded once, in one forward pass, and is done. No torch.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core.roofline import EncoderRoofline
from ..core.stats import ClassHistograms, EncoderStats, EngineHistograms
from ..errors import (
    DuplicateRequest,
    EncodeInputInvalid,
    EncodeInputTooLong,
    EncodeQueueFull,
    InvalidBatching,
)
from .batcher import EncoderBatcher, WaitingInput
from .config import QUEUE_SIZE_MAX, EncoderConfig
from .request import EncodeOutput, EncodeRequest, Input, Vector


class Encoder(Protocol):
    """A model that turns inputs into vectors: embeddings, or a score for each label."""

    @property
    def max_length(self) -> int:
        """Tokens of the longest input the model takes."""

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens of one forward pass, padding counted, beyond which the model gets no faster."""

    def objection(self, input: Any) -> str | None:
        """The reason why an input of a right length cannot be encoded, after "input 3"; None: it can."""

    def encode(self, inputs: Sequence[Any]) -> NDArray[np.float32]:
        """float32 [inputs, dimensions]; a row depends on its own input only."""


@dataclass(slots=True, eq=False)
class _Unfinished:
    """A request in the engine: its inputs not yet encoded, by index, and the vectors of the others."""

    waiting: dict[int, WaitingInput]
    num_prompt_tokens: int
    counts: ClassHistograms
    embeddings: dict[int, Vector] = field(default_factory=dict)


class EncoderEngine:
    """Takes requests from any thread; one calls `step`. A step that raises loses nothing."""

    def __init__(
        self,
        model: Encoder,
        config: EncoderConfig | None = None,
        *,
        roofline: EncoderRoofline | None = None,
        clock_us: Callable[[], int] = lambda: time.monotonic_ns() // 1_000,
    ) -> None:
        """Raises InvalidBatching where the model's longest input would not fit a step."""
        self.config = config or EncoderConfig()
        max_num_batched_tokens = self.config.max_num_batched_tokens or model.max_num_batched_tokens
        if max_num_batched_tokens < model.max_length:
            raise InvalidBatching(
                "max_num_batched_tokens",
                f"of {max_num_batched_tokens} is less than "
                f"the model's longest input of {model.max_length} tokens",
            )
        self._model = model
        self._roofline = roofline
        self._roofline_s = 0.0
        self._clock_us = clock_us
        self._batcher = EncoderBatcher(self.config, max_num_batched_tokens)
        self.histograms = EngineHistograms()
        self._unfinished: dict[str, _Unfinished] = {}
        self._in_pass: Collection[WaitingInput] = ()
        self._num_arrivals = 0
        self._steps = self._tokens_computed = self._tokens_padded = 0
        self._stepping = threading.Lock()
        # Guards the batcher and the requests; notified when what a delayed step waits for may have changed.
        self._changed = threading.Condition()

    @property
    def has_work(self) -> bool:
        return bool(self._unfinished)

    @property
    def num_waiting(self) -> int:
        """Inputs, not requests, that no finished step has encoded."""
        return self._batcher.num_waiting

    def add(self, request: EncodeRequest) -> None:
        """Queues all inputs of a request, or none.

        Raises EncodeInputTooLong, EncodeInputInvalid, DuplicateRequest or EncodeQueueFull.
        """
        self._validate(request.inputs)
        with self._changed:
            if request.id in self._unfinished:
                raise DuplicateRequest(request.id)
            self._check_room(request)
            self._enqueue(request)
            self._changed.notify_all()

    def abort(self, request_id: str) -> bool:
        """Forgets a request; even if a running step holds it, no output will come. False: it is not here.

        Inputs that the step computes count as their flow's, as those of finished requests do.
        """
        with self._changed:
            request = self._unfinished.pop(request_id, None)
            for waiting in request.waiting.values() if request is not None else ():
                self._batcher.remove(waiting, is_computed=waiting in self._in_pass)
            self._changed.notify_all()
            return request is not None

    def wait_for_batch(self) -> None:
        """Waits until a step has something to do at once: up to `max_queue_delay_microseconds`."""
        with self._changed:
            while wait_us := self._batcher.wait_us(self._clock_us()):
                self._changed.wait(wait_us / 1_000_000)

    def step(self, num_tokens_max: int | None = None) -> list[EncodeOutput]:
        """Runs a forward pass of up to `num_tokens_max` tokens; returns the requests that it completed."""
        with self._stepping:
            with self._changed:
                self.wait_for_batch()
                inputs = self._batcher.plan(self._clock_us(), num_tokens_max)
                if not inputs:
                    return []
                self._in_pass = set(inputs)
            began_us = self._clock_us()
            try:
                vectors = self._model.encode([waiting.input for waiting in inputs])
            finally:
                with self._changed:
                    self._in_pass = ()
            self._count(inputs)
            with self._changed:
                return self._deliver(inputs, vectors, began_us)

    def stats(self) -> EncoderStats:
        """Is called on the engine's thread, or between steps: it takes no lock."""
        return EncoderStats(
            self.num_waiting,
            self._steps,
            self._tokens_computed,
            self._tokens_padded,
            None if self._roofline is None else self._roofline_s,
        )

    def check_integrity(self) -> None:
        """Asserts that queue and requests hold the same inputs."""
        with self._changed:
            self._batcher.check_integrity()
            expected = sum(len(request.waiting) for request in self._unfinished.values())
            assert self.num_waiting == expected, f"{self.num_waiting} inputs wait, requests miss {expected}"

    def _validate(self, inputs: Sequence[Input]) -> None:
        if not inputs:
            raise EncodeInputInvalid("the request has no input")
        self.check(inputs)

    def check(self, inputs: Sequence[Input], first_index: int = 0) -> None:
        """Raises EncodeInputTooLong and EncodeInputInvalid as `add` would; `first_index` is the first's."""
        for index, input in enumerate(inputs, first_index):
            if not len(input):
                raise EncodeInputInvalid("has no tokens", index)
            if len(input) > self._model.max_length:
                raise EncodeInputTooLong(index, len(input), self._model.max_length)
            if reason := self._model.objection(input):
                raise EncodeInputInvalid(reason, index)

    def _check_room(self, request: EncodeRequest) -> None:
        """A named flow may have as much as it leaves free: it never fills the queue before others."""
        num_inputs = len(request.inputs)
        limits = [(self.num_waiting, QUEUE_SIZE_MAX)]
        if request.flow:
            limits.append((self._batcher.waiting_of(request.flow), QUEUE_SIZE_MAX - self.num_waiting))
        for num_waiting, size in limits:
            if num_waiting + num_inputs > size:
                raise EncodeQueueFull(num_inputs, num_waiting, size)

    def _enqueue(self, request: EncodeRequest) -> None:
        now_us = self._clock_us()
        first, num_tokens = self._num_arrivals, 0
        self._num_arrivals += len(request.inputs)
        waiting: dict[int, WaitingInput] = {}
        for index, input in enumerate(request.inputs):
            one = WaitingInput(
                request.id, index, input, request.priority, first + index, now_us, request.flow
            )
            waiting[index] = one
            num_tokens += one.num_tokens
            self._batcher.add(one)
        counts = self.histograms.of_class(request.priority)
        self._unfinished[request.id] = _Unfinished(waiting, num_tokens, counts)

    def _count(self, inputs: Sequence[WaitingInput]) -> None:
        num_tokens = sum(waiting.num_tokens for waiting in inputs)
        self._steps += 1
        self.histograms.observe_step(len(inputs), num_tokens)
        self._tokens_computed += num_tokens
        self._tokens_padded += len(inputs) * max(waiting.num_tokens for waiting in inputs) - num_tokens
        if self._roofline is not None:
            self._roofline_s += self._roofline.least_seconds([waiting.num_tokens for waiting in inputs])

    def _deliver(
        self, inputs: Sequence[WaitingInput], vectors: Iterable[Vector], began_us: int
    ) -> list[EncodeOutput]:
        outputs = (self._finish(one, vector, began_us) for one, vector in zip(inputs, vectors, strict=True))
        return [output for output in outputs if output is not None]

    def _finish(self, waiting: WaitingInput, vector: Vector, began_us: int) -> EncodeOutput | None:
        """Notes an input's vector; the output, if it was the request's last. Aborted meanwhile: nothing."""
        request = self._unfinished.get(waiting.request_id)
        # The id may have been aborted and added anew during the step: only the very same input counts.
        if request is None or request.waiting.get(waiting.input_index) is not waiting:
            return None
        self._batcher.remove(waiting)
        del request.waiting[waiting.input_index]
        request.counts.queue_s.observe((began_us - waiting.arrived_us) / 1_000_000)
        request.counts.prompt_tokens += waiting.num_tokens
        if request.waiting:
            # A copy, so that a request waiting for its last input does not keep the vectors of others alive.
            request.embeddings[waiting.input_index] = vector.copy()
            return None
        request.embeddings[waiting.input_index] = vector
        del self._unfinished[waiting.request_id]
        ordered = [request.embeddings[index] for index in range(len(request.embeddings))]
        return EncodeOutput(
            waiting.request_id,
            ordered,
            request.num_prompt_tokens,
            added_s=waiting.arrived_us / 1_000_000,
            launched_s=began_us / 1_000_000,
        )
