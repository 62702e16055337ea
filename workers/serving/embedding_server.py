"""An encoder: serves embedding requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nightshift.endpoints import Endpoint
from nightshift.endpoints.encoding import EncoderEndpoint, EncoderRequest
from nightshift.endpoints.requests import ModelRequest
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import Model
from workers.engine import EncoderStats
from workers.engine import InvalidRequest as EngineRefusal
from workers.engine.encoders.engine import EncoderEngine
from workers.engine.encoders.errors import EncodeQueueFull
from workers.engine.encoders.request import EncodeRequest
from workers.serving.inference import Listener, Progress, check_length
from workers.serving.model_server import Busy, Inference, ModelServer, OnFatal, Tokens, engine_class, invalid
from workers.serving.tokenizing import Part, Text, tokenize

if TYPE_CHECKING:  # needs torch
    from workers.engine.encoders.model import EncoderModel


@dataclass(slots=True)  # one for each row: frozen ones take longer to make
class _Running:
    endpoint: EncoderEndpoint
    request: EncoderRequest
    listener: Listener


class EmbeddingServer(ModelServer):
    """An encoder: embeddings."""

    def __init__(self, model: Model, encoder: "EncoderModel", on_fatal: OnFatal) -> None:
        super().__init__(model, on_fatal)
        self._encoder = encoder
        self._engine = EncoderEngine(encoder)
        self._running: dict[str, _Running] = {}

    def submit(self, inference: Inference) -> None:
        request = inference.request
        endpoint = inference.endpoint
        assert isinstance(endpoint, EncoderEndpoint), "the model's kind was checked"
        assert isinstance(request, EncoderRequest), "its requests are for vectors"
        if request.dimensions not in (None, self._encoder.dimensions):
            raise InvalidRequest(
                f"'{self.model.id}' has {self._encoder.dimensions} dimensions and cannot be shortened.",
                param="dimensions",
            )
        inputs = inference.tokens or self.tokenize(endpoint, [request])[0]
        if isinstance(inputs, InvalidRequest):
            raise inputs
        self._running[inference.id] = _Running(endpoint, request, inference.listener)
        try:
            self._engine.add(EncodeRequest(inference.id, inputs, engine_class(inference.priority)))
        except EncodeQueueFull as error:
            self._running.pop(inference.id, None)  # a cancel may have been quicker
            raise Busy from error
        except EngineRefusal as error:
            self._running.pop(inference.id, None)  # a cancel may have been quicker
            raise invalid(error, endpoint.input_field) from error
        if inference.id not in self._running:  # cancelled before the engine knew of it
            self._engine.abort(inference.id)
        self._wake()

    def cancel(self, inference_id: str) -> None:
        if self._running.pop(inference_id, None) is not None:
            self._engine.abort(inference_id)

    def is_repeatable(self, request: ModelRequest) -> bool:
        return True

    def tokenize(self, endpoint: Endpoint, requests: Sequence[ModelRequest]) -> list[Tokens | InvalidRequest]:
        return tokenize(self._encode, [self._parts(endpoint, request) for request in requests])

    def _encode(self, texts: Sequence[Text]) -> list[list[int]]:
        return self._encoder.tokenize_all([each.text for each in texts])

    def _parts(self, endpoint: Endpoint, request: ModelRequest) -> list[Part] | InvalidRequest:
        assert isinstance(endpoint, EncoderEndpoint), "the model's kind was checked"
        assert isinstance(request, EncoderRequest), "its requests are for vectors"
        field = endpoint.input_field
        try:
            for each in request.inputs:
                if isinstance(each, str):
                    check_length(len(each), self.model.context_length, field)
        except InvalidRequest as error:
            return error
        return [Text(each, field) if isinstance(each, str) else each for each in request.inputs]

    @property
    def _has_work(self) -> bool:
        return self._engine.has_work

    def _step(self) -> None:
        for output in self._engine.step():
            running = self._running.pop(output.id, None)
            if running is None:
                continue
            vectors = [vector.astype("<f4", copy=False).tobytes() for vector in output.embeddings]
            result = running.endpoint.result(running.request, vectors, output.num_prompt_tokens)
            running.listener(Progress(result=result))

    def _read_stats(self) -> EncoderStats:
        return self._engine.stats()
