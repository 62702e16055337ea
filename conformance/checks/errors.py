"""The error envelope, the client's exceptions and `x-request-id`, on routes that any server has."""

import openai

from conformance.expectations import NotOffered, expect, expect_refusal, shown
from conformance.registry import Area
from conformance.session import PROMPT, Session

AREA = Area("errors", "GET", "/models")


@AREA.add("an unknown route is a 404 in the envelope")
def unknown_route(session: Session) -> None:
    expect_refusal(
        lambda: session.client.get("/no-such-route", cast_to=object), "an unknown route", openai.NotFoundError
    )


@AREA.add("a wrong method is refused in the envelope")
def wrong_method(session: Session) -> None:
    refusal = expect_refusal(
        lambda: session.client.delete("/chat/completions", cast_to=object),
        "DELETE /v1/chat/completions",
        openai.APIStatusError,
    )
    expect(
        refusal.status_code in (404, 405),
        f"answers {refusal.status_code} to DELETE /v1/chat/completions",
        "answers 404 or 405",
    )


@AREA.add("a wrong key is a 401 with the code invalid_api_key")
def wrong_key(session: Session) -> None:
    stranger = session.client.with_options(api_key="sk-no-such-key")
    try:
        stranger.models.list()
    except openai.APIStatusError:
        expect_refusal(
            stranger.models.list, "a wrong key", openai.AuthenticationError, code="invalid_api_key"
        )
    else:
        raise NotOffered("it accepts any key")


@AREA.add("an unknown model is a 404 with the code model_not_found")
def unknown_model(session: Session) -> None:
    session.require("POST", "/chat/completions")
    expect_refusal(
        lambda: session.chat(model="no-such-model"),
        "an unknown model",
        openai.NotFoundError,
        code="model_not_found",
    )


@AREA.add("a body that is no object is a 400")
def no_object(session: Session) -> None:
    session.require("POST", "/chat/completions")
    expect_refusal(
        lambda: session.client.post("/chat/completions", cast_to=object, body=[PROMPT]),
        "a body that is no object",
    )


@AREA.add("every answer has an x-request-id, an error too")
def request_id(session: Session) -> None:
    answer = session.client.models.with_raw_response.list()
    _expect_request_id(answer.headers.get("x-request-id"), "GET /v1/models")
    try:
        session.client.models.retrieve("no-such-model")
    except openai.APIStatusError as error:
        _expect_request_id(error.request_id, "an error")


def _expect_request_id(sent: object, where: str) -> None:
    is_there = isinstance(sent, str) and sent != ""
    expect(is_there, f"answers {where} with the x-request-id {shown(sent)}", "sends one with every answer")
