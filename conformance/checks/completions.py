"""POST /v1/completions, whole and streamed."""

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import openai

from conformance.expectations import (
    expect,
    expect_count,
    expect_equal,
    expect_id,
    expect_list,
    expect_refusal,
    shown,
)
from conformance.registry import Area
from conformance.session import PROMPT, Session

AREA = Area("completions", "POST", "/completions")
FINISHES: Final = ("stop", "length", "content_filter")
CHUNKS_MAX: Final = 1000  # answers have 8 tokens: more is a stream that does not end
REPEATED: Final = "One, two, three, seven"
PROMPTS: Final = (PROMPT, "8", "9")


@AREA.add("an answer has every field that the client's type requires")
def answered(session: Session) -> None:
    answer = _complete(session)
    expect_id(answer.id, "a completion with the id")
    expect_equal(answer.object, "text_completion", "a completion with the object")
    expect_count(answer.created, "a completion with created")
    [choice] = _choices(answer, 1)
    expect(
        choice.finish_reason in FINISHES,
        f"answers the finish reason {shown(choice.finish_reason)}",
        f"has {', '.join(FINISHES)}",
    )
    prompt = expect_count(getattr(answer.usage, "prompt_tokens", None), "usage.prompt_tokens")
    completion = expect_count(getattr(answer.usage, "completion_tokens", None), "usage.completion_tokens")
    expect_equal(answer.usage.total_tokens, prompt + completion, "usage.total_tokens")


@AREA.add("several prompts are completed, in their order")
def several(session: Session) -> None:
    _choices(_complete(session, prompt=list(PROMPTS)), len(PROMPTS))


@AREA.add("with n, the choices of the first prompt come first")
def several_choices(session: Session) -> None:
    _choices(_complete(session, prompt=list(PROMPTS), n=2), 2 * len(PROMPTS))


@AREA.add("a stream of several prompts has chunks and one finish reason of each")
def streamed(session: Session) -> None:
    stream = _complete(session, prompt=list(PROMPTS), stream=True)
    chunks = list(islice(stream, CHUNKS_MAX + 1))
    stream.close()
    expect(len(chunks) <= CHUNKS_MAX, f"streams {CHUNKS_MAX} chunks and more", "ends a stream")
    finished = sorted(
        choice.index for chunk in chunks for choice in chunk.choices if choice.finish_reason is not None
    )
    expect(
        finished == list(range(len(PROMPTS))),
        f"ends the choices {shown(finished)} of a stream of three prompts",
        "ends each of 0, 1, 2 once",
    )


@AREA.add("a wrong prompt among several is refused")
def prompt_wrong(session: Session) -> None:
    expect_refusal(
        lambda: _complete(session, prompt=[PROMPT, {"text": PROMPT}]), "a prompt that is an object"
    )


@AREA.add("echo repeats the prompt, or is refused by name")
def echo(session: Session) -> None:
    answer = _unless_refused(lambda: _complete(session, prompt=REPEATED, echo=True), "echo")
    if answer is not None:
        [choice] = _choices(answer, 1)
        expect(
            choice.text.startswith(REPEATED),
            f"accepts echo and answers {shown(choice.text)} to {shown(REPEATED)}",
            "begins the text with the prompt",
        )


@AREA.add("best_of answers with the best ones only, or is refused by name")
def best_of(session: Session) -> None:
    answer = _unless_refused(lambda: _complete(session, best_of=2), "best_of")
    if answer is not None:
        _choices(answer, 1)


def _complete(session: Session, **fields: Any) -> Any:
    body = {"model": session.chat_model, "prompt": PROMPT, "max_tokens": 8}
    return session.client.completions.create(**(body | fields))


def _choices(answer: Any, count: int) -> list[Any]:
    choices = expect_list(answer.choices, "completions with the choices")
    indexes = [choice.index for choice in choices]
    expect(
        indexes == list(range(count)), f"answers the choices {shown(indexes)}", f"answers 0 to {count - 1}"
    )
    for choice in choices:
        expect(isinstance(choice.text, str), f"answers the text {shown(choice.text)}", "answers a text")
    return choices


def _unless_refused(ask: Callable[[], Any], field: str) -> Any:
    """The answer; None if the field is refused by its name."""
    try:
        return ask()
    except openai.BadRequestError as refusal:
        expect_equal(refusal.param, field, f"{field}=… with an error that has the param")
        return None
