"""Token counts and the error envelope."""

from typing import Final

from nightshift.jobs import JsonObject, Usage

ERROR_CHARS_MAX: Final = 1000  # of an error's message, and of its `param`


def usage_json(usage: Usage) -> JsonObject:
    """A job's token counts."""
    return answer_usage(usage) | {"prompt_tokens_details": {"cached_tokens": usage.cached_tokens}}


def error_body(message: str, type: str, *, param: str | None = None, code: str | None = None) -> JsonObject:
    """The error envelope, with texts clipped to `ERROR_CHARS_MAX`."""
    about = None if param is None else _clipped(param)
    return {"error": {"message": _clipped(message), "type": type, "param": about, "code": code}}


def answer_usage(usage: Usage) -> JsonObject:
    """An answer's token counts, without cached tokens: those depend on the other load, and a repeated row
    must give the same bytes.
    """
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _clipped(text: str) -> str:
    return text if len(text) <= ERROR_CHARS_MAX else text[: ERROR_CHARS_MAX - 1] + "…"
