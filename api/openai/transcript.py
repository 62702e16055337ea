"""The part of an answer that a client has received, kept a prefix of the recorded one.

Deltas come over Redis and may be lost, and a second worker starts the answer again, so a delta says where it
starts:

    text   0 ....... sent ........
                |  delta  |          overlaps: only the part beyond `sent` is new
                      |  delta  |    continues
                          gap |  delta |   something was lost: wait for the record

Log-probabilities are tracked alike, counted in tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from api.responses.errors import StreamInterrupted
from nightshift.endpoints.texts.logprobs import num_tokens, since
from nightshift.endpoints.texts.streams import CallPiece, Piece
from nightshift.jobs import JsonObject


class MalformedDelta(ValueError):
    """A delta that no worker wrote."""


class _Sent:
    """The beginning of a text."""

    def __init__(self) -> None:
        self.text = ""

    def add(self, text: str, start: int) -> str:
        """The part that continues what was sent, if it does."""
        overlap = self.text[start : start + len(text)]
        if start > len(self.text) or not text.startswith(overlap):
            return ""
        new = text[len(overlap) :]
        self.text += new
        return new

    def rest(self, recorded: str) -> str:
        """Raises StreamInterrupted if its beginning differs."""
        if not recorded.startswith(self.text):
            raise StreamInterrupted
        rest = recorded[len(self.text) :]
        self.text = recorded
        return rest


@dataclass
class _SentCall:
    name: str
    arguments: _Sent


class Transcript:
    """The part of one choice that was sent: its thought, its text, then its calls one after the other."""

    def __init__(self) -> None:
        self._thought = _Sent()
        self._content = _Sent()
        self._calls: list[_SentCall] = []
        self.tokens_sent = 0  # with log-probabilities

    @property
    def sent(self) -> str:
        return self._content.text

    def take(self, delta: JsonObject) -> Piece:
        """The new part of a delta, empty if it does not continue what was sent.

        A delta without a start follows the previous one. Raises MalformedDelta, leaving the transcript
        unchanged.
        """
        text, start = delta.get("text", ""), delta.get("offset", len(self.sent))
        if not isinstance(text, str) or not isinstance(start, int) or start < 0:
            raise MalformedDelta
        try:
            logprobs = self._take_logprobs(delta.get("logprobs"), delta.get("token_offset"))
        except (AttributeError, LookupError, TypeError) as error:
            raise MalformedDelta from error
        # Calls begin when the text is whole, and that when the thought is.
        follows = not self._calls and self._has_thought(delta)
        return Piece(self._content.add(text, start) if follows else "", logprobs)

    def take_thought(self, delta: JsonObject) -> str:
        """The new part of a thought. Raises MalformedDelta, leaving the transcript unchanged."""
        text, start = delta.get("thought"), delta.get("offset")
        if not isinstance(text, str) or not isinstance(start, int) or start < 0:
            raise MalformedDelta
        return "" if self.sent or self._calls else self._thought.add(text, start)

    def _has_thought(self, delta: JsonObject) -> bool:
        """Whether the thought before this delta was sent whole."""
        return bool(len(self._thought.text) == delta.get("thought_chars", 0))

    def take_call(self, delta: JsonObject) -> CallPiece | None:
        """The new part of a call's arguments. None: there is none, or something before it is missing. Raises
        MalformedDelta, leaving the transcript unchanged.
        """
        numbers = [delta.get(name) for name in ("call", "after", "offset")]
        name, text = delta.get("name"), delta.get("arguments")
        if not isinstance(name, str) or not isinstance(text, str):
            raise MalformedDelta
        index, after, start = (number if isinstance(number, int) else -1 for number in numbers)
        if min(index, after, start) < 0:
            raise MalformedDelta
        return self._take_call(index, name, after, text, start) if self._has_thought(delta) else None

    def _take_call(self, index: int, name: str, after: int, text: str, start: int) -> CallPiece | None:
        is_first = index == len(self._calls)
        if is_first:
            before = self._calls[-1].arguments if self._calls else self._content
            if len(before.text) != after or start > 0 or not text:
                return None
            self._calls.append(_SentCall(name, _Sent()))
        elif index != len(self._calls) - 1 or self._calls[index].name != name:
            return None
        new = self._calls[index].arguments.add(text, start)
        return CallPiece(index, name, new, is_first) if new else None

    def rest_of_thought(self, recorded: str) -> str:
        """The unsent rest of the recorded choice's thought. Raises StreamInterrupted if it begins otherwise,
        or if what comes after it was sent.
        """
        rest = self._thought.rest(recorded)
        if rest and (self.sent or self._calls):
            raise StreamInterrupted
        return rest

    def rest(self, recorded: Piece) -> Piece:
        """The unsent rest of the recorded choice's text. Raises StreamInterrupted if it begins otherwise."""
        rest = self._content.rest(recorded.text)
        if rest and self._calls:
            raise StreamInterrupted
        return Piece(rest, self._take_logprobs(recorded.logprobs, 0))

    def rest_of_calls(self, recorded: Sequence[JsonObject]) -> Sequence[CallPiece]:
        """The unsent rest of the recorded choice's calls. Raises StreamInterrupted if what was sent is no
        beginning of them.
        """
        num_sent = len(self._calls)
        if num_sent > len(recorded):
            raise StreamInterrupted
        rest: list[CallPiece] = []
        for index, call in enumerate(recorded):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            if index >= num_sent:
                rest.append(CallPiece(index, name, arguments, is_first=True, id=call["id"]))
                continue
            new = self._calls[index].arguments.rest(arguments)
            is_over = index < num_sent - 1  # the next one has begun
            if self._calls[index].name != name or (new and is_over):
                raise StreamInterrupted
            if new:
                rest.append(CallPiece(index, name, new, is_first=False))
        return rest

    def _take_logprobs(self, logprobs: JsonObject | None, start: int | None) -> JsonObject | None:
        if logprobs is None:
            return None
        start = self.tokens_sent if start is None else start
        end = start + num_tokens(logprobs)
        if start > self.tokens_sent or end <= self.tokens_sent:
            return None
        new = since(logprobs, self.tokens_sent - start)
        self.tokens_sent = end
        return new
