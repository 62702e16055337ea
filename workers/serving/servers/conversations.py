"""Conversations as a chat template writes them: its arguments, and the thoughts of earlier answers."""

from typing import Any, Final

from nightshift.endpoints.texts.generation import Conversation, TextEndpoint, Thinking
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject
from nightshift_engine import InvalidRequest as EngineRefusal
from nightshift_engine.models import Tokenizer
from workers.serving.model_server import invalid

KWARGS: Final = "chat_template_kwargs"


def conversation_text(tokenizer: Tokenizer, prompt: Conversation, endpoint: TextEndpoint, field: str) -> str:
    """The text that the model reads. Raises InvalidRequest naming `field`, which has the messages, or the
    field whose arguments the template refuses.
    """
    messages = [_with_thought(tokenizer, message) for message in prompt.messages]
    shown = {"tools": list(prompt.tools)} if prompt.tools else {}
    effort = {} if prompt.effort is None else tokenizer.effort_arguments(prompt.effort)
    arguments = effort | dict(prompt.arguments)
    try:
        return tokenizer.chat_text(messages, **shown, **arguments)
    except EngineRefusal as error:
        if arguments and _takes(tokenizer, messages, shown):
            field = KWARGS if prompt.arguments else ".".join(endpoint.effort_path)
        raise invalid(error, field) from error


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


def _with_thought(tokenizer: Tokenizer, message: JsonObject) -> JsonObject:
    if "reasoning_content" not in message:
        return message
    others = {name: value for name, value in message.items() if name != "reasoning_content"}
    return tokenizer.with_thought(others, message["reasoning_content"])


def _takes(tokenizer: Tokenizer, messages: list[JsonObject], shown: dict[str, Any]) -> bool:
    """Whether the template takes the messages without further arguments."""
    try:
        tokenizer.chat_text(messages, **shown)
    except EngineRefusal:
        return False
    return True
