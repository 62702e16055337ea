"""Models that are done with an input after one step, and the first of them: encoders of texts.

A kind of server adds how a request becomes inputs, and what its vectors are as an answer.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeGuard

import numpy as np

from nightshift.endpoints import Endpoint
from nightshift.endpoints.encoders.embeddings import EmbeddingRequest
from nightshift.endpoints.encoders.encoding import EncoderEndpoint, EncoderRequest
from nightshift.endpoints.encoders.images import ImageInput
from nightshift.endpoints.requests import MAY_BE_CUT, ModelRequest
from nightshift.endpoints.results import Result
from nightshift.endpoints.texts.generation import Conversation, Prompt
from nightshift.endpoints.tokenizers.endpoint import TokenizerEndpoint
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import Model
from nightshift_engine import EncoderStats, EngineHistograms
from nightshift_engine import InvalidRequest as EngineRefusal
from nightshift_engine.encoders import (
    EncodeOutput,
    Encoder,
    EncoderConfig,
    EncoderEngine,
    EncodeRequest,
    EncoderText,
    TextInput,
    TextTokens,
    Vector,
    cut,
)
from nightshift_engine.errors import EncodeQueueFull, UnknownPrompt
from workers.serving.inference import Progress, breakdown, check_length
from workers.serving.model_server import (
    Busy,
    Inference,
    OnFatal,
    Tokens,
    engine_class,
    invalid,
    takes_no_images,
)
from workers.serving.servers.model_tokens import ModelTokens, Tokenizer, show_tokens
from workers.serving.servers.tokenizing import Part, tokenize, tokens_kept
from workers.serving.stepping_server import SteppingServer

if TYPE_CHECKING:  # needs torch
    from nightshift_engine.models import EncoderModel

TEXTS_AT_ONCE: Final = 64  # of one request: as many are read before the first wrong one is seen


def _has_many(parts: Sequence[Part] | InvalidRequest | None) -> TypeGuard[Sequence[Part]]:
    return isinstance(parts, Sequence) and len(parts) > TEXTS_AT_ONCE


class EncoderServer(SteppingServer):
    """Runs requests on an encoder engine: each input once, batched with others like it in length."""

    makes: ClassVar[str] = "vectors"
    """The word for its outputs in messages."""

    def __init__(
        self, model: Model, encoder: Encoder, on_fatal: OnFatal, config: EncoderConfig | None = None
    ) -> None:
        super().__init__(model, on_fatal)
        roofline = getattr(encoder, "roofline", None)  # known of some kinds
        self._engine = EncoderEngine(encoder, config, roofline=roofline)
        self._running: dict[str, Inference] = {}

    def check(self, endpoint: Endpoint, request: ModelRequest) -> None:
        """Raises InvalidRequest for what this model cannot do, whatever the inputs."""

    def left(self, inference_id: str) -> None:
        """A request has left the engine."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer; None: it takes no texts."""
        return None

    @abstractmethod
    def input_place(self, endpoint: Endpoint, request: ModelRequest, index: int | None) -> str:
        """The field of a request that errors about an input name; None: about all of them."""

    def parts(self, endpoint: Endpoint, request: ModelRequest) -> Sequence[Part] | InvalidRequest | None:
        """The texts or token ids of a request, or why it cannot run. None: its inputs are no texts."""
        return None

    def encode(self, texts: Sequence[Any]) -> Sequence[Any]:
        """The token ids of each text. Raises the engine's InvalidRequest if any of them is no text."""
        raise NotImplementedError(f"{self.model.id} takes no texts")

    @abstractmethod
    def result(self, inference: Inference, output: EncodeOutput) -> Result:
        """The answer, made of a vector for each input."""

    def submit(self, inference: Inference) -> None:
        endpoint, request = inference.endpoint, inference.request
        if isinstance(endpoint, TokenizerEndpoint):
            show_tokens(inference, self.tokenizer, self.model)
            return
        self.check(endpoint, request)
        inputs = inference.tokens or self.tokenize(endpoint, [request])[0]
        if isinstance(inputs, InvalidRequest):
            raise inputs
        assert inputs is not None, "every server of encoders tokenises"
        inference.num_truncated = sum(isinstance(text, TextTokens) and text.is_cut for text in inputs)
        self._running[inference.id] = inference
        try:
            self.enqueue(inference, inputs)
        except (Busy, InvalidRequest):
            self._running.pop(inference.id, None)  # a cancel may have been quicker
            raise

    def enqueue(self, inference: Inference, inputs: Tokens) -> None:
        """Hands the inputs of a running request to the engine. Raises Busy or InvalidRequest."""
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

    def blamed(
        self, endpoint: Endpoint, request: ModelRequest, index: int, error: EngineRefusal
    ) -> InvalidRequest:
        """An error about a text that has no tokens."""
        return invalid(error, self.input_place(endpoint, request, index))

    def tokenize(
        self, endpoint: Endpoint, requests: Sequence[ModelRequest]
    ) -> list[Tokens | InvalidRequest | None]:
        """Requests with few texts together; one with many by itself, up to the first that is refused."""
        if isinstance(endpoint, TokenizerEndpoint):
            return [None] * len(requests)
        parts = [(request, self.parts(endpoint, request)) for request in requests]
        few = [(request, texts) for request, texts in parts if texts is not None and not _has_many(texts)]
        tokens = iter(self._tokenized(endpoint, few))
        return [
            None
            if texts is None
            else self._in_groups(endpoint, request, texts)
            if _has_many(texts)
            else next(tokens)
            for request, texts in parts
        ]

    def _tokenized(
        self,
        endpoint: Endpoint,
        requests: Sequence[tuple[ModelRequest, Sequence[Part] | InvalidRequest]],
        start: int = 0,
    ) -> list[Tokens | InvalidRequest]:
        """`start`: the index of the first part in its request."""
        return tokenize(
            self.encode,
            [parts for _, parts in requests],
            lambda number, index, error: self.blamed(endpoint, requests[number][0], start + index, error),
        )

    def _in_groups(
        self, endpoint: Endpoint, request: ModelRequest, parts: Sequence[Part]
    ) -> Tokens | InvalidRequest:
        all_tokens: list[Any] = []
        for start in range(0, len(parts), TEXTS_AT_ONCE):
            [tokens] = self._tokenized(endpoint, [(request, parts[start : start + TEXTS_AT_ONCE])], start)
            if isinstance(tokens, InvalidRequest):
                return tokens
            try:
                self._engine.check(tokens, start)
            except EngineRefusal as error:
                return self.refused(endpoint, request, error)
            all_tokens += tokens
        return all_tokens

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
            inference = self._running.pop(output.id, None)
            self.left(output.id)
            if inference is None:
                continue
            result = self._finite_result(inference, output)
            output.embeddings = []  # the result has them: the others of the pass need not be kept for one
            inference.listener(Progress(result=result, times=output))

    def _finite_result(self, inference: Inference, output: EncodeOutput) -> Result:
        """JSON has no other numbers, and half precision overflows on some inputs."""
        if not all(np.isfinite(vector).all() for vector in output.embeddings):
            return breakdown(f"its {self.makes} are no finite numbers")
        return self.result(inference, output)

    def _num_tokens_max(self) -> int | None:
        """Tokens of the next pass, at the pace of those before it. None: as many as its budget allows."""
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


class EmbeddingServer(EncoderServer):
    """Serves requests for embeddings of texts."""

    def __init__(
        self,
        model: Model,
        encoder: "EncoderModel",
        on_fatal: OnFatal,
        config: EncoderConfig | None = None,
    ) -> None:
        super().__init__(model, encoder, on_fatal, config)
        self._encoder = encoder

    @property
    def tokenizer(self) -> Tokenizer:
        return self._encoder.tokenizer

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
        is_conversation = isinstance(request, EmbeddingRequest) and request.messages is not None
        return "messages" if is_conversation else endpoint.input_field

    def result(self, inference: Inference, output: EncodeOutput) -> Result:
        endpoint, request = inference.endpoint, inference.request
        assert isinstance(endpoint, EncoderEndpoint), "the model's kind was checked"
        assert isinstance(request, EncoderRequest), "its requests are for vectors"
        vectors = [
            self._sized(vector, request.dimensions).astype("<f4", copy=False).tobytes()
            for vector in output.embeddings
        ]
        return endpoint.result(request, vectors, output.num_prompt_tokens, inference.num_truncated)

    def _sized(self, vector: Vector, dimensions: int | None) -> Vector:
        if dimensions is None or dimensions == len(vector):
            return vector
        return cut(vector, dimensions, is_normalized=self._encoder.is_normalized)

    def encode(self, texts: Sequence[EncoderText]) -> list[TextInput]:
        return self._encoder.tokenize_texts(texts)

    def parts(self, endpoint: Endpoint, request: ModelRequest) -> list[Part] | InvalidRequest:
        assert isinstance(endpoint, EncoderEndpoint), "the model's kind was checked"
        assert isinstance(request, EmbeddingRequest), "its requests are for vectors"
        field, adds = self.input_place(endpoint, request, None), request.adds_special_tokens
        try:
            max_tokens = tokens_kept(request.truncate_prompt_tokens, self.context_length)
            prompt = self._prompt(request)
            return [self._part(given, field, prompt, max_tokens, adds) for given in request.inputs]
        except InvalidRequest as error:
            return error

    def _prompt(self, request: EmbeddingRequest) -> str:
        """Raises InvalidRequest for a prompt that the checkpoint has not, and before token ids."""
        prompts, field = self._encoder.prompts, request.prompt_field
        if field is None:
            return prompts.default if request.adds_special_tokens else ""
        if not (request.adds_special_tokens and all(isinstance(given, str) for given in request.inputs)):
            message = (
                "A prompt goes before texts with their special tokens, not before token ids or messages."
            )
            raise InvalidRequest(message, param=field)
        try:
            if request.prompt_name is not None:
                return prompts.named(request.prompt_name)
            return prompts.for_input_type(request.input_type or "")
        except UnknownPrompt as error:
            message = f"Invalid '{field}' for '{self.model.id}': {error}."
            raise InvalidRequest(message, param=field, code="invalid_value") from error

    def _part(
        self, given: Prompt | ImageInput, field: str, prompt: str, max_tokens: int | None, adds_special: bool
    ) -> Part:
        """A text with its prompt, or token ids. Raises InvalidRequest."""
        if isinstance(given, Conversation):
            given, prompt = ModelTokens(self.tokenizer, self.context_length).shown(given), ""
        if isinstance(given, ImageInput):
            raise takes_no_images(self.model, field)
        if isinstance(given, str):
            if max_tokens is None or not self._encoder.reads_parts:
                advice = MAY_BE_CUT if max_tokens is None else ""
                check_length(len(given), self.context_length, field, advice)
            return EncoderText(given, prompt, max_tokens, adds_special)
        if max_tokens is None or len(given) <= max_tokens:
            return given
        return TextTokens(given[:max_tokens], is_cut=True)


def _to_encode(inference: Inference, inputs: Tokens) -> EncodeRequest:
    return EncodeRequest(inference.id, inputs, engine_class(inference.priority), inference.tenant_id)
