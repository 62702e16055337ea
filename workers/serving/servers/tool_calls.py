"""Reads in a model's chat template whether it shows tools, and how their calls are written.

Source: the templates of Qwen 2.5, Qwen 3 and Hermes 2 Pro, which write a call as in
`nightshift/endpoints/structured/tools.py`. Qwen3-Coder and GLM 4.5 use the same tag around another form.
"""

from collections.abc import Sequence
from typing import Final

from nightshift.endpoints.structured.tools import BEGIN, Tools
from nightshift.endpoints.texts.generation import Conversation
from nightshift.errors import InvalidRequest
from nightshift.jobs import JsonObject

OTHER_FORMS: Final = ("<function=", "<arg_key>")


def writes_calls(template: str) -> bool:
    """Whether a model with this template calls tools in our form of its own accord."""
    has_form = BEGIN in template and "arguments" in template and "tools" in template
    return has_form and not any(mark in template for mark in OTHER_FORMS)


def check_template(template: str, conversation: Conversation, tools: Tools | None, field: str) -> None:
    """Raises InvalidRequest for what a template would leave out; `field` has the messages."""
    if tools is not None and not tools.must_call and not writes_calls(template):
        choice = tools.choice_field
        raise InvalidRequest(
            f"How this model calls tools is not known. It can be made to call one: set '{choice}' to "
            "'required' or to a function.",
            param=choice,
            code="unsupported_parameter",
        )
    if _has_calls(conversation.messages) and "tool_calls" not in template:
        raise InvalidRequest(
            "This model's chat template knows no 'tool_calls'.",
            param=field,
            code="unsupported_parameter",
        )


def _has_calls(messages: Sequence[JsonObject]) -> bool:
    return any("tool_calls" in message for message in messages)
