"""Dynamic batching for encoders: inputs leave the queue in batches of similar length.

There is no KV and no next token: an input is encoded once, in one forward pass, and is done. So a step
takes the most urgent inputs that fit its budget of padded tokens, in buckets of similar length, and runs
one pass per bucket. Knows token ids and vectors; the model is behind `Encoder`. No torch.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import DuplicateRequest, EngineError, InvalidConfig, InvalidRequest
from ..request import PRIORITY_RANKS, PriorityClass
from ..stats import EncoderStats

Vector = NDArray[np.float32]

LENGTH_RATIO_MAX = 1.5
"""Within a forward pass the longest input is at most this many times the shortest, which bounds padding..."""

SHORT_INPUT_TOKENS = 32
"""...except that inputs up to this length go together: another pass would cost more than their padding."""


class EncodeInputTooLong(InvalidRequest):
    """An input exceeds the model's context. It is never cut silently: half a document has another meaning."""

    def __init__(self, input_index: int, num_tokens: int, max_tokens: int) -> None:
        super().__init__(f"input {input_index} has {num_tokens} tokens, the model takes at most {max_tokens}")
        self.input_index = input_index
        self.num_tokens = num_tokens
        self.max_tokens = max_tokens


class EncodeInputInvalid(InvalidRequest):
    """An input is empty or holds a token id outside the vocabulary; or there is no input at all."""

    def __init__(self, reason: str, input_index: int | None = None) -> None:
        super().__init__(reason if input_index is None else f"input {input_index} {reason}")
        self.input_index = input_index


class EncodeQueueFull(EngineError):
    """Too many inputs are waiting; try again when some are done. Nothing of the request was accepted."""

    def __init__(self, num_inputs: int, num_waiting: int, max_queue_size: int) -> None:
        super().__init__(
            f"{num_inputs} inputs on top of {num_waiting} waiting exceed the queue of {max_queue_size} inputs"
        )
        self.num_inputs = num_inputs
        self.num_waiting = num_waiting
        self.max_queue_size = max_queue_size


@dataclass(frozen=True, slots=True)
class EncodeRequest:
    """Inputs to encode together, each a list of token ids; one vector comes back for each, in order."""

    id: str
    inputs: Sequence[Sequence[int]]
    priority: PriorityClass = "standard"


@dataclass(frozen=True, slots=True, eq=False)
class EncodeOutput:
    """All vectors of one request, in the order of its inputs; each float32 [dimensions]."""

    id: str
    embeddings: list[Vector]
    num_prompt_tokens: int
    """Tokens of all inputs together, padding not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """Limits of one encoder engine, named as in Triton's dynamic batcher where it has the name."""

    max_num_batched_tokens: int | None = None
    """Tokens of one step, padding counted. Bounds its memory, and how long it keeps others waiting.

    None takes what the model runs best at.
    """

    preferred_batch_size: int = 32
    """With this many inputs waiting, a step starts at once..."""

    max_queue_delay_us: int = 0
    """...with fewer, it waits this long for more, from the arrival of the oldest.

    At 0, the next batch gathers while a step runs, which adds no latency.
    """

    max_queue_size: int = 100_000
    """Inputs that may wait; a request that would exceed it is refused whole."""

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "preferred_batch_size", "max_queue_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidConfig(f"{name} must be at least 1, got {value}")
        if self.max_queue_delay_us < 0:
            raise InvalidConfig(f"max_queue_delay_us must not be negative, got {self.max_queue_delay_us}")


class Encoder(Protocol):
    """What turns token ids into vectors."""

    @property
    def max_length(self) -> int:
        """Tokens of the longest input the model takes."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens of one forward pass, padding counted, beyond which the model gets no faster."""

    def encode(self, inputs: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """float32 [inputs, dimensions]; a row depends on its own input only."""


@dataclass(frozen=True, slots=True, eq=False)
class WaitingInput:
    """One input in the queue. `number` counts arrivals of all classes; `arrived_us` is the engine's clock."""

    request_id: str
    input_index: int
    token_ids: Sequence[int]
    priority_rank: int
    number: int
    arrived_us: int

    def __len__(self) -> int:
        """In tokens."""
        return len(self.token_ids)


def length_buckets(inputs: Sequence[Sized], max_num_batched_tokens: int) -> list[list[int]]:
    """Divide inputs into forward passes by their lengths: lists of indices, longest inputs first.

    A pass pads to at most `max_num_batched_tokens`; only an input longer than that exceeds it, alone.
    """
    order = sorted(range(len(inputs)), key=lambda index: len(inputs[index]))
    ascending = [inputs[index] for index in order]
    buckets = []
    while order:
        window = bucket_around(len(order) - 1, ascending, max_num_batched_tokens)
        buckets.append(order[window])
        del order[window], ascending[window]
    return buckets


def bucket_around(position: int, inputs: Sequence[Sized], max_num_batched_tokens: int) -> slice:
    """Inputs that share a pass with the one at `position`: the nearest in length, while they fit.

    `inputs` ascend in length. The slice always holds `position`, even where that alone exceeds the budget.
    """

    def fits(first: int, last: int) -> bool:
        if first < 0 or last >= len(inputs):
            return False
        longest, shortest = len(inputs[last]), len(inputs[first])
        is_alike = longest <= max(SHORT_INPUT_TOKENS, LENGTH_RATIO_MAX * shortest)
        return is_alike and (last - first + 1) * longest <= max_num_batched_tokens

    first = last = position
    while wider := [window for window in ((first - 1, last), (first, last + 1)) if fits(*window)]:
        first, last = min(wider, key=lambda window: len(inputs[window[1]]) - len(inputs[window[0]]))
    return slice(first, last + 1)


class EncoderBatcher:
    """The inputs that wait, and which of them the next step takes. Not thread-safe, no clock of its own.

    Two promises, which the tests hold it to:
      - a step never exceeds its budget of padded tokens, as long as no single input does;
      - the oldest input of the most urgent class is always in the next step, so no length starves.
    """

    def __init__(
        self, *, max_num_batched_tokens: int, preferred_batch_size: int = 1, max_queue_delay_us: int = 0
    ) -> None:
        self._max_num_batched_tokens = max_num_batched_tokens
        self._preferred_batch_size = preferred_batch_size
        self._max_queue_delay_us = max_queue_delay_us
        self._classes = [_ClassQueue() for _ in PRIORITY_RANKS]
        self._num_tokens = 0

    @property
    def num_waiting(self) -> int:
        return sum(len(queue.by_arrival) for queue in self._classes)

    def add(self, waiting: WaitingInput) -> None:
        self._classes[waiting.priority_rank].add(waiting)
        self._num_tokens += len(waiting)

    def remove(self, waiting: WaitingInput) -> None:
        self._classes[waiting.priority_rank].remove(waiting)
        self._num_tokens -= len(waiting)

    def delay_us(self, now_us: int) -> int | None:
        """How long the next step should wait for more inputs: 0 is not at all, None is until one arrives."""
        arrivals = [next(iter(q.by_arrival.values())).arrived_us for q in self._classes if q.by_arrival]
        if not arrivals:
            return None
        is_full = self._num_tokens >= self._max_num_batched_tokens
        if is_full or self.num_waiting >= self._preferred_batch_size:
            return 0
        return max(0, min(arrivals) + self._max_queue_delay_us - now_us)

    def plan(self) -> list[list[WaitingInput]]:
        """Choose the next step's forward passes, most urgent class first. Nothing leaves the queue.

        Each pass is the oldest input not yet chosen and those of its class that are most like it in length.
        When that oldest input no longer fits the budget, the plan ends: no younger one overtakes it.
        """
        passes: list[list[WaitingInput]] = []
        tokens_left = self._max_num_batched_tokens
        for queue in self._classes:
            unchosen = list(queue.by_length)
            chosen: set[int] = set()
            for oldest in queue.by_arrival.values():
                if oldest.number in chosen:
                    continue
                if passes and len(oldest) > tokens_left:
                    return passes
                position = bisect_left(unchosen, _length_order(oldest), key=_length_order)
                window = bucket_around(position, unchosen, tokens_left)
                inputs = unchosen[window]
                del unchosen[window]
                chosen.update(waiting.number for waiting in inputs)
                tokens_left -= len(inputs) * len(inputs[-1])
                passes.append(inputs)
        return passes

    def check_integrity(self) -> None:
        """Assert that both orders of every class hold the same inputs, and that the token count is theirs."""
        for queue in self._classes:
            assert queue.by_length == sorted(queue.by_arrival.values(), key=_length_order), "orders disagree"
            assert list(queue.by_arrival) == sorted(queue.by_arrival), "arrivals out of order"
        waiting = [w for queue in self._classes for w in queue.by_length]
        assert self._num_tokens == sum(map(len, waiting)), f"{self._num_tokens} tokens counted"


@dataclass(slots=True)
class _ClassQueue:
    """The waiting inputs of one class, in two orders."""

    by_length: list[WaitingInput] = field(default_factory=list)
    by_arrival: dict[int, WaitingInput] = field(default_factory=dict)

    def add(self, waiting: WaitingInput) -> None:
        insort(self.by_length, waiting, key=_length_order)
        self.by_arrival[waiting.number] = waiting

    def remove(self, waiting: WaitingInput) -> None:
        position = bisect_left(self.by_length, _length_order(waiting), key=_length_order)
        assert self.by_length[position] is waiting, f"input {waiting.number} is not where its length says"
        del self.by_length[position]
        del self.by_arrival[waiting.number]


def _length_order(waiting: WaitingInput) -> tuple[int, int]:
    return len(waiting), waiting.number


@dataclass(slots=True, eq=False)
class _Unfinished:
    """A request in the engine: its inputs not yet encoded, by index, and the vectors of the others."""

    waiting: dict[int, WaitingInput]
    num_prompt_tokens: int
    embeddings: dict[int, Vector] = field(default_factory=dict)


class EncoderEngine:
    """Takes requests from any thread; one thread at a time calls `step`, as long as there is work.

    An input leaves the queue only with its vector in hand: a step that raises has lost nothing and can be
    repeated.
    """

    def __init__(
        self,
        model: Encoder,
        config: EncoderConfig | None = None,
        *,
        clock_us: Callable[[], int] = lambda: time.monotonic_ns() // 1_000,
    ) -> None:
        """Raises InvalidConfig where the model's longest input would not fit a step."""
        self.config = config or EncoderConfig()
        max_num_batched_tokens = self.config.max_num_batched_tokens or model.max_num_batched_tokens
        if max_num_batched_tokens < model.max_length:
            raise InvalidConfig(
                f"max_num_batched_tokens of {max_num_batched_tokens} is less than "
                f"the model's longest input of {model.max_length} tokens"
            )
        self._model = model
        self._clock_us = clock_us
        self._batcher = EncoderBatcher(
            max_num_batched_tokens=max_num_batched_tokens,
            preferred_batch_size=self.config.preferred_batch_size,
            max_queue_delay_us=self.config.max_queue_delay_us,
        )
        self._unfinished: dict[str, _Unfinished] = {}
        self._num_arrivals = 0
        self._steps = self._tokens_computed = 0
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
        """Queue all inputs of a request, or none.

        Raises EncodeInputTooLong, EncodeInputInvalid, DuplicateRequest, or EncodeQueueFull.
        """
        self._validate(request.inputs)
        with self._changed:
            if request.id in self._unfinished:
                raise DuplicateRequest(request.id)
            if self.num_waiting + len(request.inputs) > self.config.max_queue_size:
                raise EncodeQueueFull(len(request.inputs), self.num_waiting, self.config.max_queue_size)
            self._enqueue(request)
            self._changed.notify_all()

    def abort(self, request_id: str) -> bool:
        """Forget a request; even if a running step holds it, no output will come. False: it is not here."""
        with self._changed:
            request = self._unfinished.pop(request_id, None)
            if request is None:
                return False
            for waiting in request.waiting.values():
                self._batcher.remove(waiting)
            self._changed.notify_all()
            return True

    def step(self) -> list[EncodeOutput]:
        """Encode one batch and return the requests it completed, often none.

        Waits for up to `max_queue_delay_us` while the batch is small; does nothing where there is no work.
        """
        with self._stepping:
            with self._changed:
                self._wait_for_more()
                passes = self._batcher.plan()
            vectors = [self._model.encode([waiting.token_ids for waiting in inputs]) for inputs in passes]
            self._steps += 1
            self._tokens_computed += sum(len(waiting) for inputs in passes for waiting in inputs)
            with self._changed:
                return [
                    output
                    for inputs, rows in zip(passes, vectors, strict=True)
                    for waiting, row in zip(inputs, rows, strict=True)
                    if (output := self._deliver(waiting, row)) is not None
                ]

    def stats(self) -> EncoderStats:
        """Call it on the engine's thread, or between steps: it takes no lock."""
        return EncoderStats(self.num_waiting, self._steps, self._tokens_computed)

    def check_integrity(self) -> None:
        """Assert that queue and requests hold the same inputs."""
        with self._changed:
            self._batcher.check_integrity()
            expected = sum(len(request.waiting) for request in self._unfinished.values())
            assert self.num_waiting == expected, f"{self.num_waiting} inputs wait, requests miss {expected}"

    def _validate(self, inputs: Sequence[Sequence[int]]) -> None:
        if not inputs:
            raise EncodeInputInvalid("the request has no input")
        for index, token_ids in enumerate(inputs):
            if not token_ids:
                raise EncodeInputInvalid("has no tokens", index)
            if len(token_ids) > self._model.max_length:
                raise EncodeInputTooLong(index, len(token_ids), self._model.max_length)
            if min(token_ids) < 0 or max(token_ids) >= self._model.vocab_size:
                raise EncodeInputInvalid(f"has a token id outside 0 to {self._model.vocab_size - 1}", index)

    def _enqueue(self, request: EncodeRequest) -> None:
        rank, now_us = PRIORITY_RANKS[request.priority], self._clock_us()
        numbers = range(self._num_arrivals, self._num_arrivals + len(request.inputs))
        self._num_arrivals += len(request.inputs)
        waiting = {
            index: WaitingInput(request.id, index, tuple(token_ids), rank, number, now_us)
            for number, (index, token_ids) in zip(numbers, enumerate(request.inputs), strict=True)
        }
        self._unfinished[request.id] = _Unfinished(waiting, sum(map(len, waiting.values())))
        for item in waiting.values():
            self._batcher.add(item)

    def _wait_for_more(self) -> None:
        while delay_us := self._batcher.delay_us(self._clock_us()):
            self._changed.wait(delay_us / 1_000_000)

    def _deliver(self, waiting: WaitingInput, vector: Vector) -> EncodeOutput | None:
        """Note an input's vector; the output, if it was the request's last. Aborted meanwhile: nothing."""
        request = self._unfinished.get(waiting.request_id)
        # The id may have been aborted and added anew during the step: only the very same input counts.
        if request is None or request.waiting.get(waiting.input_index) is not waiting:
            return None
        self._batcher.remove(waiting)
        del request.waiting[waiting.input_index]
        # A copy, so that a request waiting for its last input does not keep the vectors of others alive.
        request.embeddings[waiting.input_index] = vector.copy()
        if request.waiting:
            return None
        del self._unfinished[waiting.request_id]
        ordered = [request.embeddings[index] for index in range(len(request.embeddings))]
        return EncodeOutput(waiting.request_id, ordered, request.num_prompt_tokens)
