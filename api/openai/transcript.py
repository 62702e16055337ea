"""What a client has received of an answer, kept a prefix of the recorded one.

Deltas come over Redis and may be lost, and a second worker starts the answer again, so a delta says where it
starts:

    text   0 ....... sent ........
                |  delta  |          overlaps: only the part beyond `sent` is new
                      |  delta  |    continues
                          gap |  delta |   something was lost: wait for the record

Log-probabilities are tracked alike, counted in tokens.
"""

from dataclasses import dataclass

from api.responses.errors import StreamInterrupted
from nightshift.endpoints.logprobs import num_tokens, since
from nightshift.jobs import JsonObject


@dataclass(frozen=True, slots=True)
class Piece:
    """A choice's new text, and log-probabilities, whose tokens may be ahead of it."""

    text: str
    logprobs: JsonObject | None = None

    def __bool__(self) -> bool:
        return bool(self.text) or self.logprobs is not None


class MalformedDelta(ValueError):
    """No worker wrote this delta."""


class Transcript:
    """The part of one choice that was sent."""

    def __init__(self) -> None:
        self.sent = ""
        self.tokens_sent = 0  # with log-probabilities

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
        overlap = self.sent[start : start + len(text)]
        new = ""
        if start <= len(self.sent) and text.startswith(overlap):
            new = text[len(overlap) :]
            self.sent += new
        return Piece(new, logprobs)

    def rest(self, recorded: Piece) -> Piece:
        """The unsent rest of the recorded choice. Raises StreamInterrupted if its beginning differs."""
        if not recorded.text.startswith(self.sent):
            raise StreamInterrupted
        rest = recorded.text[len(self.sent) :]
        self.sent = recorded.text
        return Piece(rest, self._take_logprobs(recorded.logprobs, 0))

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
