"""A request as an upstream gets it: the body that was given, without the fields that are ours. Pure.

Upstreams know chats and no other form of a conversation: a response is asked for as a chat, and functions are
offered as tools.
"""

from collections.abc import Mapping
from typing import Final

from nightshift.endpoints import Endpoint
from nightshift.endpoints.requests import unsupported
from nightshift.endpoints.responses.request import STATEFUL, ResponsesRequest
from nightshift.endpoints.responses.storing import FIELDS
from nightshift.endpoints.texts.chat import ChatRequest, with_text_arguments
from nightshift.endpoints.texts.functions import in_new_form
from nightshift.endpoints.texts.generation import GenerationRequest, TextEndpoint
from nightshift.jobs import JsonObject
from nightshift.jobs.priorities import PriorityClass
from workers.serving.model_server import Inference
from workers.upstreams.probe import CHATS, CLASSIFY, LIMITS, ServedModel

OURS: Final = ("priority", "service_tier", "request_id", "metadata", "store", "stream", "stream_options")
"""Fields that are for this service: of its queue, its records, and how it answers its own client."""
NOT_PASSED_ON: Final = {
    *("api_base", "api_key", "base_url", "extra_headers", "user_config", "models", "fallbacks", "provider"),
    *("route", "plugins", "lora_path", "rid", "session_params", "id_slot", "custom_logit_processor"),
    *("bootstrap_host", "bootstrap_port", "bootstrap_room"),
}
"""Fields by which LiteLLM, OpenRouter, SGLang or llama.cpp would run another model, call another server or
use what another tenant has left there. Other unknown fields are passed on.
"""
NOT_OF_CHATS: Final = {*ResponsesRequest.model_fields, *STATEFUL, *FIELDS} - {*ChatRequest.model_fields}
ROUTES: Final[Mapping[str, str]] = {"/v1/responses": CHATS, "/v1/classify": CLASSIFY}
"""Upstreams' routes for ours, where they are others."""
RANKS: Final = {PriorityClass.INTERACTIVE: 0, PriorityClass.STANDARD: 1, PriorityClass.BACKGROUND: 2}
"""The numbers of vLLM's and SGLang's `priority`: lower is sooner."""

MIXED: Final = 4  # characters of a token, roughly; settled by the answer's usage


def route_of(endpoint: Endpoint) -> str:
    """The upstream's route for its requests."""
    return ROUTES.get(endpoint.route, endpoint.route)


def check_fields(body: JsonObject) -> None:
    """Raises InvalidRequest for a field that is not passed on."""
    for name in sorted(NOT_PASSED_ON & body.keys()):
        raise unsupported(name)


def upstream_body(inference: Inference, served: ServedModel, *, streams: bool) -> JsonObject:
    """The body for the upstream that serves the model."""
    assert inference.body is not None, "an upstream's server takes bodies"
    request, body = inference.request, inference.body
    if isinstance(request, ResponsesRequest):
        body = _as_chat(request, body)
    elif isinstance(request, ChatRequest):
        body = in_new_form(body)
    body = {name: value for name, value in body.items() if name not in (*OURS, *LIMITS)}
    body["model"] = served.id_there
    if isinstance(request, GenerationRequest) and request.output_tokens_max is not None:
        body[served.limit_field] = request.output_tokens_max
    if streams:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    ranks = served.engine.takes_priority
    if ranks and streams:
        body["return_token_ids"] = True  # vLLM's: a part may have several tokens
    if ranks and isinstance(inference.endpoint, TextEndpoint):
        body["priority"] = RANKS[inference.priority]
    return body


def _as_chat(request: ResponsesRequest, body: JsonObject) -> JsonObject:
    """A request for a response as a chat. Fields that are known to neither stay."""
    (conversation,), text = request.prompts_given, request.text
    form = None if text is None or text.format is None else dict(text.format)
    if form is not None and form["type"] == "json_schema":
        form = {"type": form.pop("type"), "json_schema": form}
    said: JsonObject = {
        "messages": [*map(with_text_arguments, conversation.messages)],
        "response_format": form,
        "reasoning_effort": request.effort,
        "verbosity": None if text is None else text.verbosity,
        "logprobs": None if request.logprobs_asked is None else True,
        "top_logprobs": request.logprobs_asked,
        **_tools(request),
    }
    kept = {name: value for name, value in body.items() if name not in {*NOT_OF_CHATS, *said}}
    return kept | {name: value for name, value in said.items() if value is not None}


def _tools(request: ResponsesRequest) -> JsonObject:
    """The tools of a chat. Where some are allowed, only those are shown: few servers know more."""
    tools, choice = request.callable_tools, request.tool_choice
    if tools is None:
        return {"tools": None, "tool_choice": None, "parallel_tool_calls": None}
    if isinstance(choice, dict) and choice["type"] == "function":
        return {
            "tools": tools.given,
            "tool_choice": {"type": "function", "function": {"name": choice["name"]}},
        }
    callable = [tool for tool in tools.given if tool["function"]["name"] in tools.callable]
    return {"tools": callable, "tool_choice": "required" if tools.must_call else "auto"}


def tokens_expected(inference: Inference) -> int:
    """An estimate of the tokens that a request takes, for a budget; its answer's usage corrects it."""
    request = inference.request
    generated = getattr(request, "output_tokens_max", None) or 0
    return request.text_chars // MIXED + generated * request.num_choices + 1
