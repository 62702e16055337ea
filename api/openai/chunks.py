"""The events of a streamed answer, in OpenAI's shapes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from api.openai.transcript import Piece
from nightshift.endpoints.answers import answer_id
from nightshift.endpoints.generation import TextEndpoint
from nightshift.jobs import Job, JsonObject

DONE: Final = "[DONE]"


@dataclass(frozen=True)
class Chunks:
    """Builds one answer's events as the text of `data` lines."""

    endpoint: TextEndpoint
    id: str
    created_s: int
    model: str

    @classmethod
    def of(cls, endpoint: TextEndpoint, job: Job) -> "Chunks":
        assert job.model is not None, "an online job names its model"
        return cls(
            endpoint, answer_id(endpoint.id_prefix, job.id), int(job.created_at.timestamp()), job.model
        )

    def openings(self, num_choices: int) -> list[str]:
        """The events before any text, one for each choice or none."""
        says = self.endpoint.chunk_opening()
        return [] if says is None else [self._choice(index, says) for index in range(num_choices)]

    def piece(self, index: int, piece: Piece) -> str:
        """New text of a choice."""
        return self._choice(index, self.endpoint.chunk_delta(piece.text), logprobs=piece.logprobs)

    def calls(self, index: int, choice: JsonObject) -> Sequence[str]:
        """Calls of tools in a choice of a recorded answer, two events each."""
        return [self._choice(index, says) for says in self.endpoint.chunk_calls(choice)]

    def closing(self, index: int, finish_reason: str) -> str:
        return self._choice(index, self.endpoint.chunk_closing(), finish_reason=finish_reason)

    def usage(self, usage: JsonObject) -> str:
        """The event for `include_usage`: token counts without choices."""
        return _line(self._event([]) | {"usage": usage})

    def recorded(self, choice: JsonObject) -> Piece:
        """A whole choice of a recorded answer."""
        return Piece(self.endpoint.choice_text(choice), choice["logprobs"])

    def _choice(
        self,
        index: int,
        says: JsonObject,
        *,
        logprobs: JsonObject | None = None,
        finish_reason: str | None = None,
    ) -> str:
        choice = {"index": index, **says, "logprobs": logprobs, "finish_reason": finish_reason}
        return _line(self._event([choice]))

    def _event(self, choices: list[JsonObject]) -> JsonObject:
        return {
            "id": self.id,
            "object": self.endpoint.chunk_object_name,
            "created": self.created_s,
            "model": self.model,
            "choices": choices,
            **self.endpoint.chunk_extras(),
        }


def error_line(error: JsonObject) -> str:
    """An error within a stream. `error` is the envelope."""
    return _line({"error": error["error"]})


def _line(event: JsonObject) -> str:
    return json.dumps(event, separators=(",", ":"))  # ASCII: some clients take U+2028 for a line's end
