"""An encoder: serves embedding requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nightshift.endpoints import Endpoint
from nightshift.endpoints.encoders.images import ImageInput
from nightshift.endpoints.encoding import EncoderEndpoint, EncoderRequest
from nightshift.endpoints.requests import MAY_BE_CUT, ModelRequest
from nightshift.endpoints.results import Result
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import Model
from nightshift_engine.encoders.batching.config import EncoderConfig
from nightshift_engine.encoders.request import EncodeOutput, Vector
from nightshift_engine.encoders.texts import EncoderText, TextInput, TextTokens
from nightshift_engine.encoders.vectors.matryoshka import cut
from nightshift_engine.encoders.vectors.prompts import UnknownPrompt
from workers.serving.inference import check_length
from workers.serving.model_server import OnFatal, takes_no_images
from workers.serving.servers.encoder_server import EncoderServer, Running
from workers.serving.servers.tokenizing import Part, Text, tokens_kept

if TYPE_CHECKING:  # needs torch
    from nightshift_engine.encoders.model import EncoderModel


@dataclass(frozen=True, slots=True)
class _Text(Text):
    """A text to be tokenised behind a prompt."""

    prompt: str = ""
    max_tokens: int | None = None  # to which it is cut


class EmbeddingServer(EncoderServer):
    """An encoder: embeddings."""

    def __init__(
        self,
        model: Model,
        encoder: "EncoderModel",
        on_fatal: OnFatal,
        config: EncoderConfig | None = None,
    ) -> None:
        super().__init__(model, encoder, on_fatal, config)
        self._encoder = encoder

    def check(self, endpoint: Endpoint, request: ModelRequest) -> None:
        assert isinstance(request, EncoderRequest), "its requests are for vectors"
        if request.dimensions is None:
            return
        objection = self._encoder.matryoshka.objection(request.dimensions, self._encoder.dimensions)
        if objection is not None:
            raise InvalidRequest(
                f"Invalid 'dimensions' for '{self.model.id}': {objection}.",
                param="dimensions",
                code="invalid_value",
            )

    def input_place(self, endpoint: Endpoint, request: ModelRequest, index: int | None) -> str:
        assert isinstance(endpoint, EncoderEndpoint), "the model's kind was checked"
        return endpoint.input_field

    def result(self, running: Running, output: EncodeOutput) -> Result:
        assert isinstance(running.endpoint, EncoderEndpoint), "the model's kind was checked"
        assert isinstance(running.request, EncoderRequest), "its requests are for vectors"
        size = running.request.dimensions
        vectors = [self._sized(each, size).astype("<f4", copy=False).tobytes() for each in output.embeddings]
        return running.endpoint.result(
            running.request, vectors, output.num_prompt_tokens, running.num_truncated
        )

    def _sized(self, vector: Vector, dimensions: int | None) -> Vector:
        if dimensions is None or dimensions == len(vector):
            return vector
        return cut(vector, dimensions, is_normalized=self._encoder.is_normalized)

    def encode(self, texts: Sequence[Text]) -> list[TextInput]:
        asked = [each for each in texts if isinstance(each, _Text)]
        assert len(asked) == len(texts), "as `parts` makes them"
        return self._encoder.tokenize_texts(
            [EncoderText(each.text, each.prompt, each.max_tokens) for each in asked]
        )

    def parts(self, endpoint: Endpoint, request: ModelRequest) -> list[Part] | InvalidRequest:
        assert isinstance(endpoint, EncoderEndpoint), "the model's kind was checked"
        assert isinstance(request, EncoderRequest), "its requests are for vectors"
        try:
            max_tokens = tokens_kept(request.truncate_prompt_tokens, self.context_length)
            prompt = self._prompt(request)
            return [self._part(each, endpoint.input_field, prompt, max_tokens) for each in request.inputs]
        except InvalidRequest as error:
            return error

    def _prompt(self, request: EncoderRequest) -> str:
        """Raises InvalidRequest for a prompt that the checkpoint has not, and before token ids."""
        prompts, field = self._encoder.prompts, request.prompt_field
        if field is None:
            return prompts.default
        if not all(isinstance(each, str) for each in request.inputs):
            raise InvalidRequest("A prompt goes before texts, not before token ids.", param=field)
        try:
            if request.prompt_name is not None:
                return prompts.named(request.prompt_name)
            return prompts.for_input_type(request.input_type or "")
        except UnknownPrompt as error:
            message = f"Invalid '{field}' for '{self.model.id}': {error}."
            raise InvalidRequest(message, param=field, code="invalid_value") from error

    def _part(
        self, each: str | list[int] | ImageInput, field: str, prompt: str, max_tokens: int | None
    ) -> Part:
        """Raises InvalidRequest."""
        if isinstance(each, ImageInput):
            raise takes_no_images(self.model, field)
        if isinstance(each, str):
            if max_tokens is None or not self._encoder.reads_parts:
                advice = MAY_BE_CUT if max_tokens is None else ""
                check_length(len(each), self.context_length, field, advice)
            return _Text(each, field, prompt=prompt, max_tokens=max_tokens)
        if max_tokens is None or len(each) <= max_tokens:
            return each
        return TextTokens(each[:max_tokens], is_cut=True)
