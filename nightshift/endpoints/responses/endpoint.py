"""The endpoint, and a streamed response as semantic events in OpenAI's order:

    response.created    response.in_progress
    a thought           output_item.added    content_part.added
                        reasoning_text.delta …  reasoning_text.done
                        content_part.done    output_item.done
    a message           output_item.added    content_part.added
                        output_text.delta …  output_text.done
                        content_part.done    output_item.done
    each call           output_item.added    function_call_arguments.delta …, .done  output_item.done
    response.completed, .incomplete or .failed

A stream that ends before the answer has `error` as its last event.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from nightshift.endpoints.endpoint import ColumnType
from nightshift.endpoints.requests import missing
from nightshift.endpoints.responses.answers import (
    FunctionCall,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseObject,
    begun,
    broken,
    call_item,
    ended,
    message_id,
    message_item,
    reasoning_id,
    reasoning_item,
)
from nightshift.endpoints.responses.request import ResponsesRequest
from nightshift.endpoints.responses.storing import PREFIX, response_id
from nightshift.endpoints.results import Values
from nightshift.endpoints.structured.calls import call_id
from nightshift.endpoints.texts.generation import REASONING, Choice, GenerationRequest, TextEndpoint
from nightshift.endpoints.texts.logprobs import Chosen, entries
from nightshift.endpoints.texts.streams import AnswerEvents, AnswerHead, CallPiece, Piece, StreamEvent
from nightshift.jobs import JsonObject, Usage
from nightshift.jobs.json_text import json_bytes

THOUGHT_INDEX: Final = 0  # in the output


class ResponseEvents(AnswerEvents):
    """Numbers its events from 0. Those of a background response, which may be read again in other pieces, are
    numbered by the characters of their deltas, so that a number is one place in all readings.
    """

    def __init__(self, request: ResponsesRequest, head: AnswerHead) -> None:
        self._request = request
        self._head = head
        self._num_events = 0
        self._has_message = False
        self._has_thought = False
        self._is_thinking = False  # the thought's item has begun, and not ended
        self._thought: list[str] = []
        self._item_id = message_id(head.id)
        self._text: list[str] = []
        self._logprobs: list[JsonObject] = []
        self._num_shown = 0  # of these, in deltas
        self._call: FunctionCall | None = None  # the last one begun
        self._call_index = 0  # in the output
        self._arguments: list[str] = []

    def opening(self) -> Sequence[StreamEvent]:
        response = begun(self._request, self._head).model_dump()
        return [self._event(f"response.{name}", response=response) for name in ("created", "in_progress")]

    def piece(self, choice: int, piece: Piece) -> Sequence[StreamEvent]:
        """Adds a piece of text. An empty one, as the tokens of a call leave, begins no message."""
        self._text.append(piece.text)
        self._logprobs += piece.logprobs["content"] if piece.logprobs is not None else []
        if not piece.text and (self._counts_characters or not self._has_message):
            return []
        logprobs = self._logprobs[self._num_shown :]
        self._num_shown = len(self._logprobs)
        delta = {"delta": piece.text, "logprobs": logprobs}
        return [*self._begin_message(), self._of_text("response.output_text.delta", **delta)]

    def reasoning(self, choice: int, text: str) -> Sequence[StreamEvent]:
        beginning = [] if self._has_thought else [*self._begin_thought()]
        self._thought.append(text)
        return [*beginning, self._of_thought("response.reasoning_text.delta", delta=text)]

    @property
    def has_live_calls(self) -> bool:
        """A message that is followed by calls has the log-probabilities of their tokens, too."""
        return self._request.logprobs_asked is None

    def call_piece(self, choice: int, piece: CallPiece) -> Sequence[StreamEvent]:
        return [*self._call_piece(choice, piece)]

    def closing(self, choice: int, answer: JsonObject) -> Sequence[StreamEvent]:
        """The end of the last item."""
        last = answer["output"][-1]
        if last["type"] == "reasoning":
            return [*self._end_thought(last)]
        return [*(self._end_message(last) if last["type"] == "message" else self._end_call(last))]

    def ending(self, answer: JsonObject) -> Sequence[StreamEvent]:
        return [self._event(f"response.{answer['status']}", response=answer)]

    @property
    def _counts_characters(self) -> bool:
        storing = self._request.storing
        return storing is not None and storing.background

    def failed(self, error: JsonObject) -> Sequence[StreamEvent]:
        response = broken(self._request, self._head, error)
        return [self._event("response.failed", response=response.model_dump())]

    def interrupted(self, error: JsonObject) -> Sequence[StreamEvent]:
        return [self._event("error", **{name: error["error"][name] for name in ("code", "message", "param")})]

    @property
    def _message_index(self) -> int:
        """The message's place in the output, or that of the first call without one."""
        return int(self._has_thought)

    def _begin_thought(self) -> Iterator[StreamEvent]:
        self._has_thought = self._is_thinking = True
        item = ReasoningItem(id=reasoning_id(self._head.id), content=[], status="in_progress").model_dump()
        yield self._event("response.output_item.added", output_index=THOUGHT_INDEX, item=item)
        yield self._of_thought("response.content_part.added", part=ReasoningText().model_dump())

    def _end_thought(self, item: JsonObject | None = None) -> Iterator[StreamEvent]:
        """The end of the thought, once; as recorded if that is known."""
        if not self._is_thinking:
            return
        self._is_thinking = False
        text = "".join(self._thought)
        item = item or reasoning_item(self._head.id, text, "completed").model_dump()
        yield self._of_thought("response.reasoning_text.done", text=text)
        yield self._of_thought("response.content_part.done", part=item["content"][0])
        yield self._event("response.output_item.done", output_index=THOUGHT_INDEX, item=item)

    def _begin_message(self) -> Iterator[StreamEvent]:
        """The beginning of the message, once."""
        if self._has_message:
            return
        yield from self._end_thought()
        self._has_message = True
        message = OutputMessage(id=self._item_id, status="in_progress", content=[]).model_dump()
        yield self._event("response.output_item.added", output_index=self._message_index, item=message)
        yield self._of_text("response.content_part.added", part=OutputText().model_dump())

    def _end_message(self, item: JsonObject) -> Iterator[StreamEvent]:
        yield from self._begin_message()
        (part,) = item["content"]
        yield self._of_text("response.output_text.done", text=part["text"], logprobs=part["logprobs"])
        yield self._of_text("response.content_part.done", part=part)
        yield self._event("response.output_item.done", output_index=self._message_index, item=item)

    def _call_piece(self, choice: int, piece: CallPiece) -> Iterator[StreamEvent]:
        if piece.is_first:
            yield from self._end_item()
            id = piece.id or call_id(self._head.id, choice, piece.index)
            self._call = call_item(id, piece.name, "", status="in_progress")
            self._call_index = piece.index + self._message_index + self._has_message
            self._arguments = []
            item = self._call.model_dump()
            yield self._event("response.output_item.added", output_index=self._call_index, item=item)
        if piece.arguments:
            self._arguments.append(piece.arguments)
            yield self._of_call("response.function_call_arguments.delta", delta=piece.arguments)

    def _end_item(self) -> Iterator[StreamEvent]:
        """The end of the item before a call, which is whole."""
        if self._call is not None:
            whole = {"arguments": "".join(self._arguments), "status": "completed"}
            yield from self._end_call(self._call.model_dump() | whole)
        elif self._has_message:
            text = "".join(self._text)
            item = message_item(self._head.id, text, self._logprobs, "completed")
            yield from self._end_message(item.model_dump())
        else:
            yield from self._end_thought()

    def _end_call(self, item: JsonObject) -> Iterator[StreamEvent]:
        said = {"name": item["name"], "arguments": item["arguments"]}
        yield self._of_call("response.function_call_arguments.done", **said)
        yield self._event("response.output_item.done", output_index=self._call_index, item=item)

    def _of_call(self, type: str, **fields: Any) -> StreamEvent:
        assert self._call is not None, "its first piece came"
        return self._event(type, item_id=self._call.id, output_index=self._call_index, **fields)

    def _of_thought(self, type: str, **fields: Any) -> StreamEvent:
        at = {"item_id": reasoning_id(self._head.id), "output_index": THOUGHT_INDEX, "content_index": 0}
        return self._event(type, **at, **fields)

    def _of_text(self, type: str, **fields: Any) -> StreamEvent:
        at = {"item_id": self._item_id, "output_index": self._message_index, "content_index": 0}
        return self._event(type, **at, **fields)

    def _event(self, type: str, **fields: Any) -> StreamEvent:
        self._num_events += len(fields.get("delta", "-")) if self._counts_characters else 1
        number = self._num_events - 1
        return StreamEvent.from_json({"type": type, "sequence_number": number, **fields}, type)


DEFAULTS_BYTES: Final = 2048
TOOL_DEFAULTS_BYTES: Final = 64


class Responses(TextEndpoint):
    route = "/v1/responses"
    name = "responses"
    operation = "create_response"
    summary = "Answer a conversation, in the form of OpenAI's Responses"
    request_type = ResponsesRequest
    answer_type = ResponseObject
    prompt_field = "input"
    id_prefix = PREFIX
    columns = dict.fromkeys((*TextEndpoint.columns, REASONING), ColumnType.TEXT)
    effort_path = ("reasoning", "effort")

    def echoed_bytes(self, request: GenerationRequest) -> int:
        """The bytes of its answer that repeat the request: what it says, and the defaults for what it does
        not.
        """
        own = _own(request)
        said = own.model_dump(exclude={"input"})
        return json_bytes(said) + DEFAULTS_BYTES + len(own.tools or ()) * TOOL_DEFAULTS_BYTES

    def answer_id(self, name: str) -> str:
        return response_id(name)

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
        logprobs = [logprob for part in parts for logprob in part["logprobs"]]
        text = "".join(part["text"] for part in parts)
        return [Piece(text, {"content": logprobs} if logprobs else None)]

    def reasoning(self, answer: JsonObject) -> list[str]:
        return ["".join(part["text"] for part in _parts(answer, "reasoning"))]

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
        [piece], [thought] = self.pieces(body), self.reasoning(body)
        return self.values_of(Choice(piece.text, reason, None, calls, thought))


def _own(request: GenerationRequest) -> ResponsesRequest:
    assert isinstance(request, ResponsesRequest), "parsed by this endpoint"
    return request


def _as_in_chats(item: JsonObject) -> JsonObject:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def _parts(answer: JsonObject, type: str = "message") -> list[JsonObject]:
    """The parts of the items of this type: there is one, or none."""
    return [part for item in answer["output"] if item["type"] == type for part in item["content"]]
