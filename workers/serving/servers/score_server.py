"""A classifier: serves requests for scores."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nightshift.endpoints import Endpoint
from nightshift.endpoints.encoders.scoring import (
    RankingRequest,
    Scored,
    ScoredText,
    ScoringEndpoint,
    ScoringRequest,
)
from nightshift.endpoints.requests import MAY_BE_CUT, ModelRequest, too_long
from nightshift.endpoints.results import Result
from nightshift.errors import InvalidRequest
from nightshift.fleet.models import Model
from nightshift_engine import InvalidRequest as EngineRefusal
from nightshift_engine.encoders import (
    Activation,
    EncodeOutput,
    EncoderConfig,
    FramedTokens,
    Labels,
    PairText,
    activated,
)
from nightshift_engine.errors import EncodeInputTooLong, NoRoomForText
from workers.serving.inference import check_length
from workers.serving.model_server import Inference, OnFatal, invalid, takes_no_images
from workers.serving.servers.encoder_server import EncoderServer
from workers.serving.servers.model_tokens import Tokenizer
from workers.serving.servers.tokenizing import Part, tokens_kept

if TYPE_CHECKING:  # needs torch
    from nightshift_engine.models import TextScorer


def scores_of(inference: Inference, output: EncodeOutput, labels: Labels, activation: Activation) -> Result:
    """The answer, of the logits of each input."""
    endpoint = inference.endpoint
    assert isinstance(endpoint, ScoringEndpoint), "the model's kind was checked"
    scores = [activated(logits, activation) for logits in output.embeddings]
    as_bytes = [vector.astype("<f4", copy=False).tobytes() for vector in scores]
    scored = Scored(inference.identity, labels.names, as_bytes, output.num_prompt_tokens)
    return endpoint.result(inference.request, scored)


class ScoreServer(EncoderServer):
    """Classifications and rankings."""

    makes = "scores"

    def __init__(
        self,
        model: Model,
        scorer: "TextScorer",
        on_fatal: OnFatal,
        config: EncoderConfig | None = None,
    ) -> None:
        super().__init__(model, scorer, on_fatal, config)
        self._scorer = scorer

    @property
    def tokenizer(self) -> Tokenizer:
        return self._scorer.tokenizer

    def check(self, endpoint: Endpoint, request: ModelRequest) -> None:
        assert isinstance(endpoint, ScoringEndpoint), "the model's kind was checked"
        num_labels = self._scorer.num_labels
        if endpoint.ranks and num_labels != 1:
            raise InvalidRequest(
                f"'{self.model.id}' has {num_labels} labels: {endpoint} takes a model with one score for a "
                "pair of texts. /v1/classifications shows the scores of all labels.",
                param="model",
                code="model_not_supported",
            )
        if _instruction_of(request) is not None and not self._scorer.takes_instructions:
            raise InvalidRequest(
                f"'{self.model.id}' reads no instruction: it ranks as it was trained to.",
                param="instruction",
                code="unsupported_parameter",
            )

    def input_place(self, endpoint: Endpoint, request: ModelRequest, index: int | None) -> str:
        assert isinstance(request, ScoringRequest), "its requests are for scores"
        return request.texts[index or 0].place

    def result(self, inference: Inference, output: EncodeOutput) -> Result:
        endpoint, request = inference.endpoint, inference.request
        assert isinstance(endpoint, ScoringEndpoint), "the model's kind was checked"
        assert isinstance(request, ScoringRequest), "its requests are for scores"
        activation = self._activation(endpoint, request)
        return scores_of(inference, output, self._scorer.labels, activation)

    def refused(self, endpoint: Endpoint, request: ModelRequest, error: EngineRefusal) -> InvalidRequest:
        """Blames the first text of a pair that is too long where no document fits behind it."""
        assert isinstance(request, ScoringRequest), "its requests are for scores"
        if isinstance(error, EncodeInputTooLong):
            first_place = self._too_long_first(request, request.texts[error.input_index])
            if first_place is not None:
                however = (
                    "the text leaves no room for another behind it: together they have "
                    f"{error.num_tokens} tokens"
                )
                return too_long(error.max_tokens, however, first_place)
        return super().refused(endpoint, request, error)

    def _too_long_first(self, request: ScoringRequest, text: ScoredText) -> str | None:
        """The place of a text that leaves no token for its pair, if that is why they are too long."""
        if text.pair is None:
            return None
        cut = PairText(text.text, text.pair, self.context_length, _instruction_of(request))
        try:
            self._scorer.tokenize_all([cut])
        except NoRoomForText:
            return text.first_place
        return None

    def _activation(self, endpoint: ScoringEndpoint, request: ScoringRequest) -> Activation:
        if not request.use_activation:
            return "identity"
        labels = self._scorer.labels
        return labels.ranking_activation if endpoint.ranks else labels.activation

    def encode(self, texts: Sequence[PairText]) -> list[FramedTokens]:
        return self._scorer.tokenize_all(texts)

    def blamed(
        self, endpoint: Endpoint, request: ModelRequest, index: int, error: EngineRefusal
    ) -> InvalidRequest:
        assert isinstance(request, ScoringRequest), "its requests are for scores"
        text = request.texts[index]
        has_no_room = isinstance(error, NoRoomForText) and text.first_place is not None
        return invalid(error, text.first_place or "" if has_no_room else text.place)

    def parts(self, endpoint: Endpoint, request: ModelRequest) -> list[Part] | InvalidRequest:
        assert isinstance(request, ScoringRequest), "its requests are for scores"
        try:
            max_tokens = tokens_kept(request.truncate_prompt_tokens, self.context_length)
            return [self._part(text, max_tokens, request) for text in request.texts]
        except InvalidRequest as error:
            return error

    def _part(self, given: ScoredText, max_tokens: int | None, request: ScoringRequest) -> PairText:
        instruction = _instruction_of(request)
        pair_tokens_max = request.max_tokens_per_doc or None if isinstance(request, RankingRequest) else None
        if given.is_image:
            raise takes_no_images(self.model, given.place)
        if given.pair is None and not self._scorer.takes_texts:
            raise InvalidRequest(
                f"'{self.model.id}' takes a pair, not one text: it scores a document for a query.",
                param=given.place,
                code="invalid_value",
            )
        if given.pair is not None and not self._scorer.takes_pairs:
            raise InvalidRequest(
                f"'{self.model.id}' takes one text, not a pair: its tokenizer puts nothing between two.",
                param=given.place,
                code="invalid_value",
            )
        is_cut = max_tokens is not None or (given.pair is not None and pair_tokens_max is not None)
        is_read_whole = not (is_cut and self._scorer.reads_parts)
        uncut = given.text if is_read_whole or given.pair is not None else ""
        also = given.pair if is_read_whole and given.pair is not None else ""
        if given.first_place is not None:  # it is never cut
            check_length(len(uncut) + len(instruction or ""), self.context_length, given.first_place)
        num_chars = len(uncut) + len(also) + len(instruction or "")
        check_length(num_chars, self.context_length, given.place, MAY_BE_CUT if max_tokens is None else "")
        return PairText(given.text, given.pair, max_tokens, instruction, pair_tokens_max)


def _instruction_of(request: ModelRequest) -> str | None:
    return request.instruction if isinstance(request, RankingRequest) else None
