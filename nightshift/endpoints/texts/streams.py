"""A streamed answer as an endpoint's server-sent events, in this order:

    opening    reasoning …  piece  piece …  call_piece  call_piece …    closing (of each choice)    ending

A stream that fails ends with `failed` or `interrupted` instead.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from nightshift.jobs import JsonObject, json_text
from nightshift.jobs.priorities import PriorityClass


@dataclass(frozen=True, slots=True)
class StreamEvent:
    data: str
    type: str | None = None  # the name on its `event` line

    @classmethod
    def from_json(cls, data: JsonObject, type: str | None = None) -> "StreamEvent":
        """The event with this data, in ASCII: some clients take U+2028 for a line's end."""
        return cls(json_text.dumps(data), type)


@dataclass(frozen=True, slots=True)
class Piece:
    """A choice's new text, and log-probabilities, whose tokens may be ahead of it."""

    text: str
    logprobs: JsonObject | None = None

    def __bool__(self) -> bool:
        return bool(self.text) or self.logprobs is not None


@dataclass(frozen=True, slots=True)
class CallPiece:
    """New text of the arguments of one of a choice's calls."""

    index: int  # of the call
    name: str
    arguments: str
    is_first: bool
    id: str | None = None  # as recorded; None: it is not recorded yet, and will be `calls.call_id`


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The parts of an answer that are known before it."""

    id: str  # of the recorded answer, too
    created_s: int  # Unix time
    priority: PriorityClass  # the class that the request runs in


class AnswerEvents(ABC):
    """The events of one answer; `answer` is the recorded body, `error` an envelope."""

    @abstractmethod
    def opening(self) -> Sequence[StreamEvent]:
        """The events before any text; there may be none."""

    @abstractmethod
    def piece(self, choice: int, piece: Piece) -> Sequence[StreamEvent]:
        """New text of a choice."""

    @abstractmethod
    def reasoning(self, choice: int, text: str) -> Sequence[StreamEvent]:
        """New text of a choice's thought. The choice has no other text yet."""

    @abstractmethod
    def call_piece(self, choice: int, piece: CallPiece) -> Sequence[StreamEvent]:
        """New arguments of a call. The text and the earlier calls of the choice have all come."""

    @property
    def has_live_calls(self) -> bool:
        """Whether calls can be shown before the whole answer is there."""
        return True

    @abstractmethod
    def closing(self, choice: int, answer: JsonObject) -> Sequence[StreamEvent]:
        """The end of a choice, whose text and calls have all come in pieces."""

    @abstractmethod
    def ending(self, answer: JsonObject) -> Sequence[StreamEvent]:
        """The events after all choices."""

    @abstractmethod
    def failed(self, error: JsonObject) -> Sequence[StreamEvent]:
        """The request failed, as is recorded."""

    @abstractmethod
    def interrupted(self, error: JsonObject) -> Sequence[StreamEvent]:
        """The stream ends before the answer."""
