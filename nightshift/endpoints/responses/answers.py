"""The Response object, whole and while it is being generated."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from nightshift.endpoints.answers import answer_id
from nightshift.endpoints.requests import Metadata
from nightshift.endpoints.responses.request import ResponsesRequest, TextOptions
from nightshift.endpoints.texts.generation import Choice
from nightshift.endpoints.texts.streams import AnswerHead
from nightshift.jobs import JsonObject, Usage
from nightshift.jobs.priorities import SERVICE_TIER_OF_CLASS

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class Part(BaseModel):
    """Every field is always there, also in the documentation."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


class OutputText(Part):
    type: Literal["output_text"] = "output_text"
    text: str = ""
    annotations: list[JsonObject] = []
    logprobs: list[JsonObject] = []


class OutputMessage(Part):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    content: list[OutputText]


class ReasoningText(Part):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str = ""


class ReasoningItem(Part):
    id: str
    type: Literal["reasoning"] = "reasoning"
    summary: list[JsonObject] = []
    content: list[ReasoningText]
    encrypted_content: None = None
    status: ItemStatus


class FunctionCall(Part):
    id: str
    type: Literal["function_call"] = "function_call"
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


OutputItem = ReasoningItem | OutputMessage | FunctionCall


class InputTokensDetails(Part):
    """Details that are not counted per answer: they depend on the other load. A job's usage has its cached
    tokens.
    """

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(Part):
    reasoning_tokens: int = 0


class ResponseUsage(Part):
    input_tokens: int
    input_tokens_details: InputTokensDetails = InputTokensDetails()
    output_tokens: int
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int


class IncompleteDetails(Part):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseFailure(Part):
    code: Literal["server_error", "invalid_prompt"]
    message: str


class ResponseObject(Part):
    """A request for a response, and its answer. A null `temperature` or `top_p` is the model's own."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    background: bool = False
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: Metadata
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    previous_response_id: str | None = None
    prompt_cache_key: str | None
    reasoning: JsonObject = {"effort": None, "summary": None}
    safety_identifier: str | None
    service_tier: str
    store: bool = False
    temperature: float | None
    text: JsonObject
    tool_choice: str | JsonObject
    tools: list[JsonObject]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None


def begun(request: ResponsesRequest, head: AnswerHead) -> ResponseObject:
    """The events before any output."""
    return ResponseObject(
        id=head.id,
        created_at=head.created_s,
        status="in_progress",
        service_tier=SERVICE_TIER_OF_CLASS[head.priority],
        metadata=request.metadata or {},
        parallel_tool_calls=request.parallel_tool_calls is not False,
        reasoning={"effort": request.effort, "summary": None},
        text=_text(request.text or TextOptions()),
        tool_choice=request.tool_choice or "auto",
        tools=[{"parameters": None, "strict": None} | tool for tool in request.tools or ()],
        top_logprobs=request.top_logprobs or 0,
        **request.model_dump(include=_ECHOED),
        **(request.storing.to_json() if request.storing is not None else {}),
    )


def ended(request: ResponsesRequest, head: AnswerHead, choice: Choice, usage: Usage) -> ResponseObject:
    is_cut = choice.finish_reason == "length"
    response = begun(request, head)
    response.status = "incomplete" if is_cut else "completed"
    response.incomplete_details = IncompleteDetails() if is_cut else None
    response.output = [*_output(choice, head.id, "incomplete" if is_cut else "completed")]
    response.usage = ResponseUsage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )
    return response


def broken(request: ResponsesRequest, head: AnswerHead, error: JsonObject) -> ResponseObject:
    """A response that failed with this error, an envelope."""
    said = error["error"]
    response = begun(request, head)
    response.status = "failed"
    is_ours = said["type"] == "server_error"
    response.error = ResponseFailure(
        code="server_error" if is_ours else "invalid_prompt", message=said["message"]
    )
    return response


def message_id(response_id: str) -> str:
    return answer_id("msg_", response_id)


def reasoning_id(response_id: str) -> str:
    return answer_id("rs_", response_id)


def _output(choice: Choice, response_id: str, status: ItemStatus) -> Sequence[OutputItem]:
    """The thought, the message and the calls. There is no message where calls have no text before them, nor
    after a thought that was cut off. `status`: of the last one.
    """
    items: list[OutputItem] = []
    if choice.reasoning:
        items.append(reasoning_item(response_id, choice.reasoning, "completed"))
    is_cut_thought = bool(items) and status == "incomplete"
    if choice.text or not (choice.calls or is_cut_thought):
        logprobs = choice.logprobs["content"] if choice.logprobs is not None else []
        items.append(message_item(response_id, choice.text, logprobs, "completed"))
    items += [call_item(call["id"], **call["function"], status="completed") for call in choice.calls]
    items[-1].status = status
    return items


def reasoning_item(response_id: str, text: str, status: ItemStatus) -> ReasoningItem:
    content = [ReasoningText(text=text)]
    return ReasoningItem(id=reasoning_id(response_id), content=content, status=status)


def message_item(
    response_id: str, text: str, logprobs: list[JsonObject], status: ItemStatus
) -> OutputMessage:
    content = [OutputText(text=text, logprobs=logprobs)]
    return OutputMessage(id=message_id(response_id), status=status, content=content)


def call_item(call_id: str, name: str, arguments: str, status: ItemStatus) -> FunctionCall:
    id = answer_id("fc_", call_id)
    return FunctionCall(id=id, call_id=call_id, name=name, arguments=arguments, status=status)


def _text(given: TextOptions) -> JsonObject:
    return {"format": given.format or {"type": "text"}, "verbosity": given.verbosity or "medium"}


_ECHOED = {
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "model",
    "prompt_cache_key",
    "safety_identifier",
    "temperature",
    "top_p",
    "user",
}
