"""Token counts and the error envelope."""

from nightshift.errors import MESSAGE_BYTES_MAX, PARAM_BYTES_MAX, shortened
from nightshift.jobs import JsonObject, Usage


def usage_json(usage: Usage) -> JsonObject:
    """A job's token counts."""
    return answer_usage(usage) | {"prompt_tokens_details": {"cached_tokens": usage.cached_tokens}}


def error_body(message: str, type: str, *, param: str | None = None, code: str | None = None) -> JsonObject:
    """The error envelope, with shortened texts."""
    about = None if param is None else shortened(param, PARAM_BYTES_MAX)
    message = shortened(message, MESSAGE_BYTES_MAX)
    return {"error": {"message": message, "type": type, "param": about, "code": code}}


def answer_usage(usage: Usage) -> JsonObject:
    """An answer's token counts, without cached tokens: those depend on the other load, and a repeated row
    must give the same bytes.
    """
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
