"""A classifier: serves requests for scores."""

from collections.abc import Sequence
from dataclasses import dataclass
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
from nightshift_engine.encoders.batching.config import EncoderConfig
from nightshift_engine.encoders.errors import EncodeInputTooLong, NoRoomForText
from nightshift_engine.encoders.request import EncodeOutput
from nightshift_engine.encoders.scoring.labels import Activation, Labels, activated
from nightshift_engine.encoders.scoring.pairs import FramedTokens, PairText
from workers.serving.inference import check_length
from workers.serving.model_server import OnFatal, takes_no_images
from workers.serving.servers.encoder_server import EncoderServer, Running
from workers.serving.servers.tokenizing import Part, Text, tokens_kept

if TYPE_CHECKING:  # needs torch
    from nightshift_engine.encoders.scoring.scorer import TextScorer


def scores_of(running: Running, output: EncodeOutput, labels: Labels, activation: Activation) -> Result:
    """The answer, of the logits of each input."""
    endpoint = running.endpoint
    assert isinstance(endpoint, ScoringEndpoint), "the model's kind was checked"
    scores = [activated(logits, activation) for logits in output.embeddings]
    as_bytes = [each.astype("<f4", copy=False).tobytes() for each in scores]
    scored = Scored(running.identity, labels.names, as_bytes, output.num_prompt_tokens)
    return endpoint.result(running.request, scored)


@dataclass(frozen=True, slots=True)
class _Text(Text):
    """A text or a pair to be tokenised."""

    pair: str | None = None
    max_tokens: int | None = None  # to which it is cut
    instruction: str | None = None
    first_place: str | None = None  # of the text before the one that may be cut

    def blamed_for(self, error: EngineRefusal) -> str:
        return self.first_place or self.place if isinstance(error, NoRoomForText) else self.place


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

    def result(self, running: Running, output: EncodeOutput) -> Result:
        endpoint, request = running.endpoint, running.request
        assert isinstance(endpoint, ScoringEndpoint), "the model's kind was checked"
        assert isinstance(request, ScoringRequest), "its requests are for scores"
        activation = self._activation(endpoint, request)
        return scores_of(running, output, self._scorer.labels, activation)

    def refused(self, endpoint: Endpoint, request: ModelRequest, error: EngineRefusal) -> InvalidRequest:
        """Of a pair that is too long, the first text is to blame where no document fits behind it."""
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

    def _too_long_first(self, request: ScoringRequest, each: ScoredText) -> str | None:
        """The place of a text that leaves no token for its pair, if that is why they are too long."""
        if each.pair is None:
            return None
        cut = PairText(each.text, each.pair, self.context_length, _instruction_of(request))
        try:
            self._scorer.tokenize_all([cut])
        except NoRoomForText:
            return each.first_place
        return None

    def _activation(self, endpoint: ScoringEndpoint, request: ScoringRequest) -> Activation:
        if not request.use_activation:
            return "identity"
        labels = self._scorer.labels
        return labels.ranking_activation if endpoint.ranks else labels.activation

    def encode(self, texts: Sequence[Text]) -> list[FramedTokens]:
        asked = [each for each in texts if isinstance(each, _Text)]
        assert len(asked) == len(texts), "as `parts` makes them"
        return self._scorer.tokenize_all(
            [PairText(each.text, each.pair, each.max_tokens, each.instruction) for each in asked]
        )

    def parts(self, endpoint: Endpoint, request: ModelRequest) -> list[Part] | InvalidRequest:
        assert isinstance(request, ScoringRequest), "its requests are for scores"
        try:
            max_tokens = tokens_kept(request.truncate_prompt_tokens, self.context_length)
            instruction = _instruction_of(request)
            return [self._part(each, max_tokens, instruction) for each in request.texts]
        except InvalidRequest as error:
            return error

    def _part(self, each: ScoredText, max_tokens: int | None, instruction: str | None) -> _Text:
        if each.is_image:
            raise takes_no_images(self.model, each.place)
        if each.pair is None and not self._scorer.takes_texts:
            raise InvalidRequest(
                f"'{self.model.id}' takes a pair, not one text: it scores a document for a query.",
                param=each.place,
                code="invalid_value",
            )
        if each.pair is not None and not self._scorer.takes_pairs:
            raise InvalidRequest(
                f"'{self.model.id}' takes one text, not a pair: its tokenizer puts nothing between two.",
                param=each.place,
                code="invalid_value",
            )
        is_read_whole = max_tokens is None or not self._scorer.reads_parts
        uncut = each.text if is_read_whole or each.pair is not None else ""
        also = each.pair if is_read_whole and each.pair is not None else ""
        if each.first_place is not None:  # it is never cut
            check_length(len(uncut) + len(instruction or ""), self.context_length, each.first_place)
        num_chars = len(uncut) + len(also) + len(instruction or "")
        check_length(num_chars, self.context_length, each.place, MAY_BE_CUT if max_tokens is None else "")
        return _Text(
            each.text,
            each.place,
            pair=each.pair,
            max_tokens=max_tokens,
            instruction=instruction,
            first_place=each.first_place,
        )


def _instruction_of(request: ModelRequest) -> str | None:
    return request.instruction if isinstance(request, RankingRequest) else None
