"""A request as an upstream gets it: the body that was given, without the fields that are ours. Pure.

Upstreams know chats and no other form of a conversation: a response is asked for as a chat, and functions are
offered as tools.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from nightshift.endpoints import Endpoint
from nightshift.endpoints.encoders.images import is_image, shown
from nightshift.endpoints.requests import ModelRequest, unsupported
from nightshift.endpoints.responses.request import STATEFUL, ResponsesRequest
from nightshift.endpoints.responses.storing import FIELDS
from nightshift.endpoints.structured.tools import Tools
from nightshift.endpoints.texts.chat import ChatRequest, with_text_arguments
from nightshift.endpoints.texts.conversations import ConversationFields
from nightshift.endpoints.texts.functions import in_new_form
from nightshift.endpoints.texts.generation import Conversation, GenerationRequest, TextEndpoint
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject
from nightshift.jobs.priorities import PriorityClass
from workers.serving.model_server import Inference
from workers.upstreams.served import CHATS, CLASSIFY, LIMITS, ServedModel

OURS: Final = {"priority", "service_tier", "request_id", "metadata", "store", "stream", "stream_options"}
"""Fields that are for this service: of its queue, its records, and how it answers its own client."""
NOT_PASSED_ON: Final = {
    *("api_base", "api_key", "base_url", "extra_headers", "user_config", "models", "fallbacks", "provider"),
    *("custom_llm_provider", "extra_body", "preset", "route", "plugins", "rid", "session_params", "id_slot"),
    *("lora", "lora_path", "lora_request", "adapter_id", "custom_logit_processor", "disaggregated_params"),
    *("bootstrap_host", "bootstrap_port", "bootstrap_room"),
}
"""Fields by which LiteLLM, OpenRouter, SGLang, TensorRT-LLM, TGI or llama.cpp would run another model, call
another server or use what another tenant has left there. Other unknown fields are passed on.
"""
DATA: Final = re.compile("data:", re.I)
ADDRESS: Final = re.compile(r"[\x00-\x20]*[a-z][a-z0-9+.-]*:/", re.I)
REFERENCES: Final = re.compile(r"(^|_)(url|image|video|audio)$")
"""Fields of parts with an address, for which SGLang takes a path of its machine too."""
NOT_OF_CHATS: Final = {*ResponsesRequest.model_fields, *STATEFUL, *FIELDS} - {*ChatRequest.model_fields}
ROUTES: Final[Mapping[str, str]] = {"/v1/responses": CHATS, "/v1/classify": CLASSIFY}
"""Upstreams' routes for ours, where they are others."""
RANKS: Final = {PriorityClass.INTERACTIVE: 0, PriorityClass.STANDARD: 1, PriorityClass.BACKGROUND: 2}
"""The numbers of vLLM's `priority`, and of SGLang's where it is told so: lower is sooner."""

MIXED: Final = 4  # characters of a token, roughly; settled by the answer's usage


def route_of(endpoint: Endpoint) -> str:
    """The upstream's route for its requests."""
    return ROUTES.get(endpoint.route, endpoint.route)


def check_request(body: JsonObject, request: ModelRequest, *, may_fetch: bool) -> None:
    """Raises InvalidRequest for a field that is not passed on, and for an address where the upstream may not
    fetch what requests name: it may reach what only the operator should.
    """
    for name in sorted(NOT_PASSED_ON & body.keys()):
        raise unsupported(name)
    left: list[tuple[str, Any]] = [] if may_fetch else [("", part) for part in _media(body, request)]
    while left:
        name, given = left.pop()
        if isinstance(given, dict):
            left += given.items()
        elif isinstance(given, list):
            left += [(name, one) for one in given]
        elif isinstance(given, str) and _is_address(name, given):
            says = "is not fetched for this model: give the content itself, as a data URI."
            raise InvalidRequest(
                f"{shown(given)} {says}", param="messages" if "messages" in body else "input"
            )


def _is_address(name: str, given: str) -> bool:
    return not DATA.match(given) and bool(REFERENCES.search(name) or ADDRESS.match(given))


def upstream_body(inference: Inference, served: ServedModel, *, streams: bool) -> JsonObject:
    """The body for the upstream that serves the model."""
    assert inference.body is not None, "an upstream's server takes bodies"
    request, body = inference.request, inference.body
    if isinstance(request, ResponsesRequest):
        body = _as_chat(request, body)
    elif isinstance(request, ChatRequest):
        body = in_new_form(body)
    body = {name: value for name, value in body.items() if name not in OURS and name not in LIMITS}
    body["model"] = served.id_there
    if isinstance(request, GenerationRequest) and request.output_tokens_max is not None:
        body[served.limit_field] = request.output_tokens_max
    if streams:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if served.takes_priority and streams:
        body["return_token_ids"] = True  # vLLM's: a part may have several tokens
    if served.takes_priority and isinstance(inference.endpoint, TextEndpoint):
        body["priority"] = RANKS[inference.priority]
    return body


def _media(body: JsonObject, request: ModelRequest) -> Iterator[JsonObject]:
    """The parts of a request that are no text."""
    given = body.get("input")
    if not isinstance(request, GenerationRequest):
        yield from filter(is_image, given if isinstance(given, list) else [given])
    prompts = request.prompts_given if isinstance(request, GenerationRequest) else ()
    for prompt in [request.conversation()] if isinstance(request, ConversationFields) else prompts:
        for message in prompt.messages if isinstance(prompt, Conversation) and prompt.media else ():
            content = message["content"]
            yield from (part for part in content if isinstance(part, dict) and part["type"] != "text")


def _as_chat(request: ResponsesRequest, body: JsonObject) -> JsonObject:
    """A request for a response as a chat. Fields that are known to neither stay."""
    (conversation,), text = request.prompts_given, request.text
    form = None if text is None or text.format is None else {**text.format}
    if form is not None and form["type"] == "json_schema":
        form = {"type": form.pop("type"), "json_schema": form}
    said: JsonObject = {
        "messages": [*map(with_text_arguments, conversation.messages)],
        "response_format": form,
        "reasoning_effort": request.effort,
        "verbosity": None if text is None else text.verbosity,
        "logprobs": None if request.logprobs_asked is None else True,
        "top_logprobs": request.logprobs_asked,
        **_tools(request.callable_tools),
    }
    kept = {name: value for name, value in body.items() if name not in {*NOT_OF_CHATS, *said}}
    return kept | {name: value for name, value in said.items() if value is not None}


def _tools(tools: Tools | None) -> JsonObject:
    """The tools of a chat: those that may be called, since few servers can be shown others beside them."""
    if tools is None:
        return {"tools": None, "tool_choice": None, "parallel_tool_calls": None}
    shown = [tool for tool in tools.given if tool["function"]["name"] in tools.callable]
    return {"tools": shown, "tool_choice": "required" if tools.must_call else "auto"}


def tokens_expected(inference: Inference) -> int:
    """An estimate of the tokens that a request takes, for a budget; its answer's usage corrects it."""
    request = inference.request
    generated = getattr(request, "output_tokens_max", None) or 0
    return request.text_chars // MIXED + generated * request.num_choices + 1
