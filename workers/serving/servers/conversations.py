"""Conversations as a chat template writes them: its arguments, and the thoughts of earlier answers."""

from typing import Any

from nightshift.endpoints.texts.generation import Conversation, TextEndpoint
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject
from nightshift_engine import InvalidRequest as EngineRefusal
from nightshift_engine.models import Tokenizer
from workers.serving.model_server import invalid

KWARGS = "chat_template_kwargs"


def conversation_text(tokenizer: Tokenizer, prompt: Conversation, endpoint: TextEndpoint, field: str) -> str:
    """The text that the model reads. Raises InvalidRequest naming `field`, which has the messages, or the
    field whose arguments the template refuses.
    """
    messages = [_with_thought(tokenizer, message) for message in prompt.messages]
    shown = {"tools": list(prompt.tools)} if prompt.tools else {}
    effort_field = ".".join(endpoint.effort_path)
    arguments = _effort_arguments(tokenizer, prompt, effort_field) | dict(prompt.arguments)
    try:
        return tokenizer.chat_text(messages, **shown, **arguments)
    except EngineRefusal as error:
        if arguments and _takes(tokenizer, messages, shown):
            field = KWARGS if prompt.arguments else effort_field
        raise invalid(error, field) from error


def check_budget(tokenizer: Tokenizer, budget: int | None) -> None:
    """Raises InvalidRequest for a limit on thoughts whose end is not known."""
    if budget is not None and tokenizer.thought_format is None:
        raise InvalidRequest(
            "This model's chat template and tokens name no marker of a thought's end, so none can be forced.",
            param="thinking_token_budget",
            code="unsupported_parameter",
        )


def _with_thought(tokenizer: Tokenizer, message: JsonObject) -> JsonObject:
    if "reasoning_content" not in message:
        return message
    others = {name: value for name, value in message.items() if name != "reasoning_content"}
    return tokenizer.with_thought(others, message["reasoning_content"])


def _effort_arguments(tokenizer: Tokenizer, prompt: Conversation, field: str) -> dict[str, Any]:
    """Arguments for an effort. A template that knows none leaves its model as it is, which cannot be silent
    about a thought that was not wanted.
    """
    if prompt.effort is None:
        return {}
    arguments = tokenizer.effort_arguments(prompt.effort)
    if arguments is None and prompt.effort == "none" and tokenizer.thought_format is not None:
        raise InvalidRequest(
            "This model's chat template has no switch for its thoughts. 'thinking_token_budget': 0 ends each "
            "where it begins.",
            param=field,
            code="unsupported_parameter",
        )
    return arguments or {}


def _takes(tokenizer: Tokenizer, messages: list[JsonObject], shown: dict[str, Any]) -> bool:
    """Whether the template takes the messages without further arguments."""
    try:
        tokenizer.chat_text(messages, **shown)
    except EngineRefusal:
        return False
    return True
