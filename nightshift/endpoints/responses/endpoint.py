"""The endpoint."""

from collections.abc import Sequence
from typing import Final

from nightshift.endpoints.requests import missing
from nightshift.endpoints.responses.answers import ResponseObject, ended
from nightshift.endpoints.responses.events import ResponseEvents
from nightshift.endpoints.responses.request import ResponsesRequest
from nightshift.endpoints.results import Values
from nightshift.endpoints.texts.generation import Choice, GenerationRequest, TextEndpoint
from nightshift.endpoints.texts.logprobs import Chosen, entries
from nightshift.endpoints.texts.streams import AnswerHead, Piece
from nightshift.jobs import JsonObject, Usage
from nightshift.jobs.json_text import json_bytes

DEFAULTS_BYTES: Final = 2048
TOOL_DEFAULTS_BYTES: Final = 64


class Responses(TextEndpoint):
    route = "/v1/responses"
    name = "responses"
    operation = "create_response"
    summary = "Answer a conversation, statelessly, in the form of OpenAI's Responses"
    request_type = ResponsesRequest
    answer_type = ResponseObject
    prompt_field = "input"
    id_prefix = "resp_"

    def echoed_bytes(self, request: GenerationRequest) -> int:
        """Its answer repeats most of what a request says, with the default of what it does not say."""
        own = _own(request)
        said = own.model_dump(exclude={"input"})
        return json_bytes(said) + DEFAULTS_BYTES + len(own.tools or ()) * TOOL_DEFAULTS_BYTES

    def row_template(self, model: str, placeholder: str) -> JsonObject:
        return {"model": model, "input": placeholder}

    def check_line(self, body: JsonObject) -> int:
        if not isinstance(body.get("input"), str | list):
            raise missing("input")
        return 0

    def logprobs(self, chosen: Sequence[Chosen]) -> JsonObject:
        return {"content": entries(chosen)}

    def answer(
        self, request: GenerationRequest, head: AnswerHead, *, choices: Sequence[Choice], usage: Usage
    ) -> JsonObject:
        (choice,) = choices
        return ended(_own(request), head, choice, usage).model_dump()

    def pieces(self, answer: JsonObject) -> list[Piece]:
        parts = _parts(answer)
        logprobs = [each for part in parts for each in part["logprobs"]]
        text = "".join(part["text"] for part in parts)
        return [Piece(text, {"content": logprobs} if logprobs else None)]

    def calls(self, answer: JsonObject) -> list[list[JsonObject]]:
        return [[_as_in_chats(item) for item in answer["output"] if item["type"] == "function_call"]]

    def events(self, request: GenerationRequest, head: AnswerHead) -> ResponseEvents:
        return ResponseEvents(_own(request), head)

    def values(self, body: JsonObject) -> Values:
        """The text of its message, and its calls."""
        if "output" not in body:
            return dict.fromkeys(self.columns)
        (calls,) = self.calls(body)
        ended = "tool_calls" if calls else "stop"
        reason = "length" if body["status"] == "incomplete" else ended
        return self.values_of(Choice(self.pieces(body)[0].text, reason, None, calls))


def _own(request: GenerationRequest) -> ResponsesRequest:
    assert isinstance(request, ResponsesRequest), "parsed by this endpoint"
    return request


def _as_in_chats(item: JsonObject) -> JsonObject:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def _parts(answer: JsonObject) -> list[JsonObject]:
    """Of the message."""
    return [part for item in answer["output"] if item["type"] == "message" for part in item["content"]]
