"""The shapes of answers, for the OpenAPI document. Answers are built as dictionaries, not through these."""

from typing import Literal

from pydantic import BaseModel


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: int


class AnswerUsage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionTokensDetails | None = None  # where there are such tokens


class TokenLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class ChosenLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    content: list[ChosenLogprob] | None
    refusal: list[ChosenLogprob] | None


class AnsweredFunction(BaseModel):
    name: str
    arguments: str


class AnsweredCall(BaseModel):
    id: str
    type: Literal["function"]
    function: AnsweredFunction


class AnsweredMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: str | None = None  # the thought before it
    reasoning: str | None = None  # the same
    tool_calls: list[AnsweredCall] = []
    function_call: AnsweredFunction | None = None  # in place of these where `functions` were given


class ChatChoice(BaseModel):
    index: int
    message: AnsweredMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    token_ids: list[int] = []  # where they are asked for


class PromptLogprob(BaseModel):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""A place per token of the prompt, the first of them null: tokens by their ids, as in vLLM."""


class ChatCompletionObject(BaseModel):
    """POST /v1/chat/completions, not streamed."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: AnswerUsage
    service_tier: str | None
    system_fingerprint: str | None
    prompt_logprobs: PromptLogprobs = []  # where they are asked for
    prompt_token_ids: list[int] = []  # likewise


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    prompt_logprobs: PromptLogprobs = []  # where they are asked for
    token_ids: list[int] = []  # likewise
    prompt_token_ids: list[int] = []


class CompletionObject(BaseModel):
    """POST /v1/completions, not streamed."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: AnswerUsage


class EmbeddingObject(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str  # Base64 of little-endian float32 when so asked


class EmbeddingUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class TruncatedUsage(EmbeddingUsage):
    truncated_inputs: int | None = None  # where `truncate_prompt_tokens` was given


class EmbeddingList(BaseModel):
    """POST /v1/embeddings."""

    object: Literal["list"]
    data: list[EmbeddingObject]
    model: str
    usage: TruncatedUsage


class LabelScore(BaseModel):
    label: str
    score: float


class ClassifiedText(BaseModel):
    index: int
    label: str  # of the highest score
    scores: list[LabelScore]


class ClassificationList(BaseModel):
    """POST /v1/classifications."""

    object: Literal["list"]
    model: str
    data: list[ClassifiedText]
    usage: EmbeddingUsage


class ProbabilityList(BaseModel):
    index: int
    label: str  # of the highest probability
    probs: list[float]  # in the order of the model's labels
    num_classes: int


class ClassifiedList(BaseModel):
    """POST /v1/classify."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ProbabilityList]
    usage: EmbeddingUsage


class Moderated(BaseModel):
    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[Literal["text"]]]


class ModerationObject(BaseModel):
    """POST /v1/moderations."""

    id: str
    model: str
    results: list[Moderated]


class TokenizedText(BaseModel):
    """POST /v1/tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None  # where they are asked for


class DetokenizedText(BaseModel):
    """POST /v1/detokenize."""

    prompt: str


class RerankedDocument(BaseModel):
    text: str


class RerankedResult(BaseModel):
    index: int
    relevance_score: float
    document: RerankedDocument | None = None


class RerankObject(BaseModel):
    """POST /v1/rerank."""

    id: str
    model: str
    results: list[RerankedResult]
    usage: EmbeddingUsage


class PairScore(BaseModel):
    index: int
    object: Literal["score"]
    score: float


class ScoreList(BaseModel):
    """POST /v1/score."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[PairScore]
    usage: EmbeddingUsage
