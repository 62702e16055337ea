"""A model that is done with an input after one step: what its servers have in common.

A kind adds how a request becomes inputs, and what its vectors are as an answer.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeGuard

import numpy as np

from nightshift.endpoints import Endpoint
from nightshift.endpoints.requests import ModelRequest
from nightshift.endpoints.results import Identity, Result
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import Model
from nightshift_engine import EncoderStats
from nightshift_engine import InvalidRequest as EngineRefusal
from nightshift_engine.core.histograms import EngineHistograms
from nightshift_engine.encoders.batching.config import EncoderConfig
from nightshift_engine.encoders.engine import Encoder, EncoderEngine
from nightshift_engine.encoders.errors import EncodeQueueFull
from nightshift_engine.encoders.request import EncodeOutput, EncodeRequest
from nightshift_engine.encoders.texts import TextTokens
from workers.serving.inference import Listener, Progress, breakdown
from workers.serving.model_server import Busy, Inference, ModelServer, OnFatal, Tokens, engine_class, invalid
from workers.serving.servers.tokenizing import Part, Text, tokenize

TEXTS_AT_ONCE: Final = 64  # of one request: as many are read before the first wrong one is seen


def _has_many(parts: Sequence[Part] | InvalidRequest | None) -> TypeGuard[Sequence[Part]]:
    return isinstance(parts, Sequence) and len(parts) > TEXTS_AT_ONCE


@dataclass(slots=True)  # one for each row: frozen ones take longer to make
class Running:
    endpoint: Endpoint
    request: ModelRequest
    identity: Identity
    listener: Listener
    num_truncated: int = 0  # of its inputs


class EncoderServer(ModelServer):
    """Runs requests on an encoder engine: each input once, batched with others like it in length."""

    makes: ClassVar[str] = "vectors"
    """Of each input, in messages."""

    def __init__(
        self, model: Model, encoder: Encoder, on_fatal: OnFatal, config: EncoderConfig | None = None
    ) -> None:
        super().__init__(model, on_fatal)
        roofline = getattr(encoder, "roofline", None)  # known of some kinds
        self._engine = EncoderEngine(encoder, config, roofline=roofline)
        self._running: dict[str, Running] = {}

    def check(self, endpoint: Endpoint, request: ModelRequest) -> None:
        """Raise InvalidRequest for what this model cannot do, whatever the inputs."""

    def left(self, inference_id: str) -> None:
        """A request has left the engine."""

    @abstractmethod
    def input_place(self, endpoint: Endpoint, request: ModelRequest, index: int | None) -> str:
        """The field of a request that errors about an input name; None: about all of them."""

    def parts(self, endpoint: Endpoint, request: ModelRequest) -> Sequence[Part] | InvalidRequest | None:
        """The texts or token ids of a request, or why it cannot run. None: its inputs are no texts."""
        return None

    def encode(self, texts: Sequence[Text]) -> Sequence[Any]:
        """The token ids of each. Raises the engine's InvalidRequest if any of them is no text."""
        raise NotImplementedError(f"{self.model.id} takes no texts")

    @abstractmethod
    def result(self, running: Running, output: EncodeOutput) -> Result:
        """The answer, of a vector for each input."""

    def submit(self, inference: Inference) -> None:
        endpoint, request = inference.endpoint, inference.request
        self.check(endpoint, request)
        inputs = inference.tokens or self.tokenize(endpoint, [request])[0]
        if isinstance(inputs, InvalidRequest):
            raise inputs
        assert inputs is not None, "every server of encoders tokenises"
        self._running[inference.id] = Running(
            endpoint,
            request,
            inference.identity,
            inference.listener,
            sum(isinstance(each, TextTokens) and each.is_cut for each in inputs),
        )
        try:
            self.enqueue(inference, inputs)
        except (Busy, InvalidRequest):
            self._running.pop(inference.id, None)  # a cancel may have been quicker
            raise

    def enqueue(self, inference: Inference, inputs: Tokens) -> None:
        """Hand the inputs of a running request to the engine. Raises Busy or InvalidRequest."""
        try:
            self._engine.add(_to_encode(inference, inputs))
        except EncodeQueueFull as error:
            raise Busy from error
        except EngineRefusal as error:
            raise self.refused(inference.endpoint, inference.request, error) from error
        if inference.id not in self._running:  # cancelled before the engine knew of it
            self._engine.abort(inference.id)
        self._wake()

    def refused(self, endpoint: Endpoint, request: ModelRequest, error: EngineRefusal) -> InvalidRequest:
        """An error about an input, as the request names it."""
        index = getattr(error, "input_index", None)
        return invalid(error, self.input_place(endpoint, request, index))

    def tokenize(
        self, endpoint: Endpoint, requests: Sequence[ModelRequest]
    ) -> list[Tokens | InvalidRequest | None]:
        """Requests with few texts together; one with many by itself, up to the first that is refused."""
        parts = [self.parts(endpoint, request) for request in requests]
        few = [each for each in parts if not _has_many(each) and each is not None]
        tokens = iter(tokenize(self.encode, few))
        return [
            self._in_groups(endpoint, request, each)
            if _has_many(each)
            else None
            if each is None
            else next(tokens)
            for request, each in zip(requests, parts, strict=True)
        ]

    def _in_groups(
        self, endpoint: Endpoint, request: ModelRequest, parts: Sequence[Part]
    ) -> Tokens | InvalidRequest:
        found: list[Any] = []
        for start in range(0, len(parts), TEXTS_AT_ONCE):
            [tokens] = tokenize(self.encode, [parts[start : start + TEXTS_AT_ONCE]])
            if isinstance(tokens, InvalidRequest):
                return tokens
            try:
                self._engine.check(tokens, start)
            except EngineRefusal as error:
                return self.refused(endpoint, request, error)
            found += tokens
        return found

    def cancel(self, inference_id: str) -> None:
        if self._running.pop(inference_id, None) is not None:
            self._engine.abort(inference_id)

    def is_repeatable(self, request: ModelRequest) -> bool:
        return True

    @property
    def _has_work(self) -> bool:
        return self._engine.has_work

    def _prepare_step(self) -> None:
        self._engine.wait_for_batch()

    def _step(self) -> None:
        for output in self._engine.step(self._num_tokens_max()):
            running = self._running.pop(output.id, None)
            self.left(output.id)
            if running is None:
                continue
            result = self._finite_result(running, output)
            output.embeddings = []  # the result has them: the others of the pass need not be kept for one
            running.listener(Progress(result=result, times=output))

    def _finite_result(self, running: Running, output: EncodeOutput) -> Result:
        """JSON has no other numbers, and half precision overflows on some inputs."""
        if not all(np.isfinite(each).all() for each in output.embeddings):
            return breakdown(f"its {self.makes} are no finite numbers")
        return self.result(running, output)

    def _num_tokens_max(self) -> int | None:
        """Of the next pass, at the pace of those before it. None: as many as its budget allows."""
        step_s = self._turns.step_s(self.model.id)
        figures = self._engine.stats()
        if step_s is None or not self.step_seconds:
            return None
        tokens_per_s = (figures.tokens_computed + figures.tokens_padded) / self.step_seconds
        return max(1, round(tokens_per_s * step_s))

    @property
    def histograms(self) -> EngineHistograms:
        return self._engine.histograms

    def _read_stats(self) -> EncoderStats:
        return self._engine.stats()


def _to_encode(inference: Inference, inputs: Tokens) -> EncodeRequest:
    return EncodeRequest(inference.id, inputs, engine_class(inference.priority), inference.tenant_id)
