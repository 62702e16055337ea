"""OpenTelemetry's names for what a model does, which are not stable yet: only this module knows them.

As in https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/, version 1.37. Its attributes for
prompts and answers are left out on purpose.
"""

from collections.abc import Mapping
from typing import Final

from nightshift.process.tracing.spans import Value

_OPERATION: Final = "gen_ai.operation.name"
_MODEL: Final = "gen_ai.request.model"
_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"

# By route. Those that it has no name for have ours: the last word of the route.
_OPERATIONS: Final[Mapping[str, str]] = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}


def operation(route: str) -> str:
    return _OPERATIONS.get(route) or route.rpartition("/")[2]


def span_name(route: str, model: str | None) -> str:
    """The name of the span of one request or row in a model."""
    return f"{operation(route)} {model}" if model else operation(route)


def request(route: str, model: str | None) -> dict[str, Value]:
    attributes: dict[str, Value] = {_OPERATION: operation(route)}
    if model is not None:
        attributes[_MODEL] = model
    return attributes


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Value]:
    return {_INPUT_TOKENS: prompt_tokens, _OUTPUT_TOKENS: completion_tokens}
