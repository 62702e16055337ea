"""What a client has been sent of one answer, kept in step with what will be recorded of it.

Deltas come over Redis and may be lost, and a worker that takes a request over from another begins again. A
delta therefore says where in the answer it starts:

    text   0 ....... sent ........
                |  delta  |          overlaps: only the part beyond `sent` is new
                      |  delta  |    continues
                          gap |  delta |   something was lost: wait for the record

So what a client gets is always a beginning of the answer, and in the end exactly the recorded one. The
log-probabilities of tokens, where they are asked for, come along in the same way, counted in tokens. Pure.
"""

from dataclasses import dataclass

from api.responses.errors import StreamInterrupted
from nightshift.endpoints.logprobs import num_tokens, since
from nightshift.jobs import JsonObject


@dataclass(frozen=True, slots=True)
class Piece:
    """Something new of one choice: text, and the log-probabilities of tokens that need not be in that text
    yet.
    """

    text: str
    logprobs: JsonObject | None = None

    def __bool__(self) -> bool:
        return bool(self.text) or self.logprobs is not None


class MalformedDelta(ValueError):
    """No worker wrote it."""


class Transcript:
    """What was sent of one choice."""

    def __init__(self) -> None:
        self.sent = ""
        self.tokens_sent = 0  # log-probabilities of so many

    def take(self, delta: JsonObject) -> Piece:
        """The part of a delta that continues what was sent; nothing, if none of it does.

        A delta that does not say where it starts follows the one before it. Raises MalformedDelta, having
        taken nothing.
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
        """What is still to be sent of the recorded choice. Raises StreamInterrupted if it is another one."""
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
