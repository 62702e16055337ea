"""The words of a check about what it expects of an answer."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import openai

SHOWN_MAX: Final = 80  # characters of a value in a message


class ConformanceError(Exception):
    """Something went wrong. Without a message, the docstring of the class is the message."""

    def __init__(self, message: str | None = None) -> None:
        self.message = message or " ".join((type(self).__doc__ or "").split())
        super().__init__(self.message)


class Wrong(ConformanceError):
    """The server does not do what OpenAI does."""


class NotOffered(ConformanceError):
    """The server has no such route, or no model for it."""


class Skipped(ConformanceError):
    """The check says nothing about the server: it cannot run here, or is not meant for it."""


def expect(holds: bool, did: str, openai_does: str) -> None:
    """Raise Wrong unless it holds. The texts complete "The server …" and "OpenAI …"."""
    if not holds:
        raise Wrong(f"it {did}; OpenAI {openai_does}")


def expect_equal(actual: object, expected: object, what: str) -> None:
    is_equal = type(actual) is type(expected) and actual == expected
    expect(is_equal, f"answers {what} {shown(actual)}", f"answers {shown(expected)}")


def expect_id(actual: object, what: str) -> str:
    """Returns the id, which must be a text that is not empty."""
    expect(isinstance(actual, str) and actual != "", f"answers {what} {shown(actual)}", "answers an id")
    return str(actual)


def expect_count(actual: object, what: str) -> int:
    """A count is an integer of at least 0, and no boolean. Returns it."""
    is_count = isinstance(actual, int) and not isinstance(actual, bool) and actual >= 0
    expect(is_count, f"answers {what} {shown(actual)}", "answers an integer")
    assert isinstance(actual, int)
    return actual


def expect_list(actual: object, what: str) -> list[Any]:
    expect(isinstance(actual, list), f"answers {what} {shown(actual)}", "answers a list")
    assert isinstance(actual, list)
    return actual


def expect_refusal(
    call: Callable[[], object],
    what: str,
    error: type[openai.APIStatusError] = openai.BadRequestError,
    *,
    param: str | None = None,
    code: str | None = None,
) -> openai.APIStatusError:
    """The call raises the client's error, whose envelope has a message, a type and what else is named."""
    try:
        answer = call()
    except openai.APIStatusError as refusal:
        _expect_envelope(refusal, what, error, {"param": param, "code": code})
        return refusal
    raise Wrong(f"it accepts {what} and answers {shown(answer)}; OpenAI refuses it ({error.__name__})")


def _expect_envelope(
    refusal: openai.APIStatusError,
    what: str,
    error: type[openai.APIStatusError],
    fields: Mapping[str, str | None],
) -> None:
    expect(
        isinstance(refusal, error),
        f"refuses {what} with {refusal.status_code}",
        f"refuses it so that the client raises {error.__name__}",
    )
    body = refusal.body
    if not isinstance(body, dict):
        raise Wrong(
            f"it refuses {what} with the body {shown(body)}; "
            'OpenAI answers {"error": {"message", "type", "param", "code"}}'
        )
    expect(
        isinstance(body.get("message"), str) and isinstance(body.get("type"), str),
        f"refuses {what} with the error {shown(body)}",
        'answers {"error": {"message", "type", "param", "code"}}',
    )
    for field, expected in fields.items():
        if expected is not None:
            value = body.get(field)
            expect(
                value == expected,
                f"refuses {what} with the {field} {shown(value)}",
                f"answers {shown(expected)}",
            )


def shown(value: object) -> str:
    """A value in a message: one line of bounded length."""
    text = " ".join(repr(value).split())
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
