"""The events of a streamed answer, in the shapes the official client knows. Pure."""

import json
from dataclasses import dataclass
from typing import Final

from api.openai.transcript import Piece
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
        return self._choice(index, {"role": "assistant", "content": ""}, "")

    def piece(self, index: int, piece: Piece) -> str:
        """What is new of a choice."""
        return self._choice(index, {"content": piece.text}, piece.text, logprobs=piece.logprobs)

    def closing(self, index: int, finish_reason: str) -> str:
        return self._choice(index, {}, "", finish_reason=finish_reason)

    def usage(self, usage: JsonObject) -> str:
        """The extra event that `include_usage` asks for: no choices, only token counts."""
        return _line(self._event([]) | {"usage": usage})

    def _choice(
        self,
        index: int,
        delta: JsonObject,
        text: str,
        *,
        logprobs: JsonObject | None = None,
        finish_reason: str | None = None,
    ) -> str:
        """The event with one choice, which says `delta` in a chat and `text` elsewhere."""
        said = {"delta": delta} if self._is_chat else {"text": text}
        choice = {"index": index, **said, "logprobs": logprobs, "finish_reason": finish_reason}
        return _line(self._event([choice]))

    def _event(self, choices: list[JsonObject]) -> JsonObject:
        event = {
            "id": self.id,
            "object": "chat.completion.chunk" if self._is_chat else "text_completion",
            "created": self.created_s,
            "model": self.model,
            "choices": choices,
        }
        return event | {"system_fingerprint": None} if self._is_chat else event

    @property
    def _is_chat(self) -> bool:
        return self.endpoint is Endpoint.CHAT


def recorded(endpoint: Endpoint, choice: JsonObject) -> Piece:
    """All of one choice of a recorded answer."""
    text = choice["message"]["content"] or "" if endpoint is Endpoint.CHAT else choice["text"]
    return Piece(str(text), choice["logprobs"])


def error_line(error: JsonObject) -> str:
    """An error in the middle of a stream. `error` is the envelope."""
    return _line({"error": error["error"]})


def _line(event: JsonObject) -> str:
    return json.dumps(event, separators=(",", ":"))  # ASCII: some clients take U+2028 for a line's end
