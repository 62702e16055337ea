"""An encoder: serves embedding requests."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nightshift.endpoints.encoding import EncoderEndpoint, EncoderRequest
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import Model
from workers.engine import EncoderStats
from workers.engine import InvalidRequest as EngineRefusal
from workers.engine.encoders.engine import EncoderEngine
from workers.engine.encoders.errors import EncodeQueueFull
from workers.engine.encoders.request import EncodeRequest
from workers.serving.inference import Listener, Progress, check_length
from workers.serving.model_server import Busy, Inference, ModelServer, OnFatal, engine_class, invalid

if TYPE_CHECKING:  # needs torch
    from workers.engine.encoders.model import EncoderModel


@dataclass(frozen=True)
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
        inputs = [self._token_ids(item, endpoint.input_field) for item in request.inputs]
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

    def _token_ids(self, item: str | list[int], field: str) -> list[int]:
        if not isinstance(item, str):
            return item
        check_length(len(item), self.model.context_length, field)
        return self._encoder.tokenize(item)

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
