"""Conversations as a chat template writes them: its arguments, and the thoughts of earlier answers."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from nightshift.endpoints.requests import invalid_value
from nightshift.endpoints.texts.generation import Conversation, Ending, Thinking
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject
from nightshift_engine import InvalidRequest as EngineRefusal
from nightshift_engine.models import Tokenizer
from workers.serving.model_server import invalid

KWARGS: Final = "chat_template_kwargs"
ROLES: Final = ("system", "user", "assistant", "tool")
_MARK: Final = "\N{SYMBOL FOR UNIT SEPARATOR}%d\N{SYMBOL FOR UNIT SEPARATOR}"
_ENDINGS: Final[Mapping[Ending, dict[str, Any]]] = {
    "answer": {},
    "message": {"add_generation_prompt": False},
    "open": {"add_generation_prompt": False, "continue_final_message": True},
}


class ChatTokenizer(Protocol):
    """A model's tokenizer, as far as conversations need it."""

    def chat_text(self, messages: Sequence[Mapping[str, Any]], **template_arguments: Any) -> str: ...

    def with_thought(self, message: Mapping[str, Any], thought: str) -> dict[str, Any]: ...

    def effort_arguments(self, effort: str) -> dict[str, Any]: ...


def conversation_text(tokenizer: ChatTokenizer, prompt: Conversation, field: str, effort_field: str) -> str:
    """The text that the model reads. Raises InvalidRequest naming `field`, which has the messages, the field
    whose arguments the template refuses, or the place of a part that is no text.
    """
    for place, kind in prompt.media.items():
        raise invalid_value(place, f"content of type {kind!r} is not supported by this model; use text")
    messages = [_with_thought(tokenizer, message) for message in prompt.messages]
    shown = _ENDINGS[prompt.ending] | ({"tools": list(prompt.tools)} if prompt.tools else {})
    effort = {} if prompt.effort is None else tokenizer.effort_arguments(prompt.effort)
    arguments = effort | dict(prompt.arguments)
    try:
        text = tokenizer.chat_text(messages, **shown, **arguments)
        _check_roles(messages, partial(tokenizer.chat_text, **shown, **arguments), field)
        return text
    except EngineRefusal as error:
        if arguments and _takes(tokenizer, messages, shown):
            field = KWARGS if prompt.arguments else effort_field
        raise invalid(error, field) from error


def _check_roles(messages: list[JsonObject], written: Callable[[list[JsonObject]], str], field: str) -> None:
    """Raises InvalidRequest for the first message in a role of its own that the template leaves out."""
    own = [at for at, message in enumerate(messages) if message["role"] not in ROLES]
    marked = list(messages)
    for at in own:
        marked[at] = messages[at] | {"content": _MARK % at}
    shown = set(re.findall(_MARK.replace("%d", r"(\d+)"), written(marked)) if own else ())
    for at in own:
        if str(at) not in shown:
            role = messages[at]["role"]
            raise invalid_value(f"{field}[{at}].role", f"the chat template leaves out the role {role!r}")


def thought_budget(tokenizer: Tokenizer, thinking: Thinking | None) -> int | None:
    """Tokens after which a thought is ended. Without a switch in the template, the effort `none` ends it
    where it begins. Raises InvalidRequest for a limit on thoughts whose end is not known.
    """
    if thinking is None:
        return None
    if thinking.budget is not None and tokenizer.thought_format is None:
        raise InvalidRequest(
            "This model's chat template and tokens name no marker of a thought's end, so none can be forced.",
            param="thinking_token_budget",
            code="unsupported_parameter",
        )
    if thinking.budget is None and thinking.effort == "none" and not tokenizer.effort_arguments("none"):
        return 0
    return thinking.budget


def _with_thought(tokenizer: ChatTokenizer, message: JsonObject) -> JsonObject:
    if "reasoning_content" not in message:
        return message
    others = {name: value for name, value in message.items() if name != "reasoning_content"}
    return tokenizer.with_thought(others, message["reasoning_content"])


def _takes(tokenizer: ChatTokenizer, messages: list[JsonObject], shown: dict[str, Any]) -> bool:
    """Whether the template takes the messages without further arguments."""
    try:
        tokenizer.chat_text(messages, **shown)
    except EngineRefusal:
        return False
    return True
