"""An answer that was cut off and goes on from its text: for which requests, and how it is asked for. Pure."""

from typing import Final

from nightshift.endpoints.requests import ModelRequest
from nightshift.endpoints.texts.chat import ChatRequest
from nightshift.endpoints.texts.completions import CompletionRequest
from nightshift.endpoints.texts.generation import GenerationRequest
from nightshift.jobs import JsonObject
from workers.serving.carry_over import ChoiceSoFar

LONG_TOKENS: Final = 256  # shorter answers are made again whole: each token of a stream costs time
LEAST: Final = {"max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 0}
"""Limits on generated tokens, of which those that are there are taken off, and the least of each."""


def may_be_long(request: ModelRequest) -> bool:
    if not isinstance(request, GenerationRequest):
        return False
    return request.output_tokens_max is None or request.output_tokens_max >= LONG_TOKENS


def may_continue(request: ModelRequest, *, continues_chats: bool) -> bool:
    """Whether the rest of an answer follows from its text: one text with no form, no tools and no
    log-probabilities, and no penalties, which count only what an answer generates itself. A chat's template
    is used as it was when it was asked whether it continues chats.
    """
    match request:
        case ChatRequest():
            has_own_end = request.add_generation_prompt is False or request.messages[-1].role == "assistant"
            has_more = request.tools or request.functions or request.chat_template_kwargs
            is_text = continues_chats and not (has_own_end or has_more)
        case CompletionRequest():
            is_text = request.num_prompts == 1 and isinstance(request.prompts_given[0], str)
        case _:
            return False
    looks_back = request.presence_penalty or request.frequency_penalty
    shows_more = request.logprobs_asked is not None or request.reads_prompts or request.shows_token_ids
    has_form = request.guidance is not None or request.echoed(0)
    return is_text and request.num_choices == 1 and not (looks_back or shows_more or has_form)


def continued(body: JsonObject, request: ModelRequest, so_far: ChoiceSoFar) -> JsonObject:
    """The body that asks for the rest of an answer."""
    assert isinstance(request, GenerationRequest), "only text is continued"
    limits = {name: body[name] for name in LEAST if body.get(name) is not None}
    if request.output_tokens_max is not None:
        limits.setdefault("max_tokens", request.output_tokens_max)  # a completion's default
    rest = {name: max(LEAST[name], count - so_far.num_tokens) for name, count in limits.items()}
    if isinstance(request, CompletionRequest):
        return body | rest | {"prompt": f"{request.prompts_given[0]}{so_far.text}"}
    return begun(body | rest, so_far.text)


def begun(body: JsonObject, text: str) -> JsonObject:
    """A chat whose answer has begun with this text: as vLLM and SGLang are told, and llama.cpp sees."""
    messages = [*body["messages"], {"role": "assistant", "content": text}]
    return body | {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
