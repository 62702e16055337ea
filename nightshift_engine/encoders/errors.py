"""What an encoder engine refuses."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import EngineError, InvalidRequest


class EncodeInputTooLong(InvalidRequest):
    """An input exceeds the model's context. It is never cut silently: half a document has another meaning."""

    def __init__(self, input_index: int, num_tokens: int, max_tokens: int) -> None:
        super().__init__(f"input {input_index} has {num_tokens} tokens, the model takes at most {max_tokens}")
        self.input_index = input_index
        self.num_tokens = num_tokens
        self.max_tokens = max_tokens


class NoRoomForText(InvalidRequest):
    """What goes before a text that may be cut, such as a query or a prompt, leaves no token for it."""

    def __init__(self, max_tokens: int) -> None:
        super().__init__(f"{max_tokens} tokens leave no room for the text that may be cut")


class EncodeInputInvalid(InvalidRequest):
    """An input is empty or holds a token id outside the vocabulary; or there is no input at all."""

    def __init__(self, reason: str, input_index: int | None = None) -> None:
        super().__init__(reason if input_index is None else f"input {input_index} {reason}")
        self.input_index = input_index


class EncodeQueueFull(EngineError):
    """Too many inputs are waiting; try again when some are done. Nothing of the request was accepted."""

    def __init__(self, num_inputs: int, num_waiting: int, max_queue_size: int) -> None:
        super().__init__(
            f"{num_inputs} inputs on top of {num_waiting} waiting exceed the queue of {max_queue_size} inputs"
        )
        self.num_inputs = num_inputs
        self.num_waiting = num_waiting
        self.max_queue_size = max_queue_size


def token_ids_objection(token_ids: Sequence[int], vocab_size: int) -> str | None:
    """Why a model with so many embeddings cannot take these ids; None: it can."""
    is_known = min(token_ids) >= 0 and max(token_ids) < vocab_size
    return None if is_known else f"has a token id outside 0 to {vocab_size - 1}"
