"""The events of a streamed answer, in the shapes the official client knows. Pure."""

import json
from dataclasses import dataclass
from typing import Final

from api.openai.transcript import Piece
from nightshift.answers import chat_chunk, text_chunk
from nightshift.jobs import Endpoint, Job, JsonObject

DONE: Final = "[DONE]"


@dataclass(frozen=True)
class Chunks:
    """Builds the events of one answer, each as the text of its `data` line."""

    endpoint: Endpoint
    id: str
    created_s: int
    model: str

    @classmethod
    def of(cls, job: Job) -> "Chunks":
        assert job.model is not None, "an online job names its model"
        prefix = "chatcmpl-" if job.spec.endpoint is Endpoint.CHAT else "cmpl-"
        suffix = job.id.removeprefix("job_")
        return cls(job.spec.endpoint, prefix + suffix, int(job.created_at.timestamp()), job.model)

    def opening(self, index: int) -> str:
        """What comes before any text of a choice: a chat answer says who is speaking."""
        if self._is_chat:
            return _line(self._chat(index, {"role": "assistant", "content": ""}))
        return _line(self._text(index, ""))

    def piece(self, index: int, piece: Piece) -> str:
        """What is new of a choice."""
        if self._is_chat:
            return _line(self._chat(index, {"content": piece.text}, logprobs=piece.logprobs))
        return _line(self._text(index, piece.text, logprobs=piece.logprobs))

    def closing(self, index: int, finish_reason: str) -> str:
        if self._is_chat:
            return _line(self._chat(index, {}, finish_reason))
        return _line(self._text(index, "", finish_reason))

    def usage(self, usage: JsonObject) -> str:
        """The extra event that `include_usage` asks for: no choices, only token counts."""
        chunk = self._chat(0, {}) if self._is_chat else self._text(0, "")
        return _line(chunk | {"choices": [], "usage": usage})

    @property
    def _is_chat(self) -> bool:
        return self.endpoint is Endpoint.CHAT

    def _chat(
        self,
        index: int,
        delta: JsonObject,
        finish_reason: str | None = None,
        logprobs: JsonObject | None = None,
    ) -> JsonObject:
        return chat_chunk(
            id=self.id,
            created_s=self.created_s,
            model=self.model,
            index=index,
            delta=delta,
            finish_reason=finish_reason,
            logprobs=logprobs,
        )

    def _text(
        self, index: int, text: str, finish_reason: str | None = None, logprobs: JsonObject | None = None
    ) -> JsonObject:
        return text_chunk(
            id=self.id,
            created_s=self.created_s,
            model=self.model,
            index=index,
            text=text,
            finish_reason=finish_reason,
            logprobs=logprobs,
        )


def recorded(endpoint: Endpoint, choice: JsonObject) -> Piece:
    """All of one choice of a recorded answer."""
    text = choice["message"]["content"] or "" if endpoint is Endpoint.CHAT else choice["text"]
    return Piece(str(text), choice["logprobs"])


def error_line(error: JsonObject) -> str:
    """An error in the middle of a stream. `error` is the envelope."""
    return _line({"error": error["error"]})


def _line(event: JsonObject) -> str:
    return json.dumps(event, separators=(",", ":"))  # ASCII: some clients take U+2028 for a line's end
