"""Errors of the engine.

    EngineError
    ├── InvalidConfig          the engine was asked to be something it cannot be
    ├── ModelLoadFailed        files are missing, broken or not safetensors
    ├── UnsupportedModel       the model loads, but we would compute it wrongly
    ├── UnsupportedAdapter     an adapter does not go with the model, or its files are broken
    ├── RankLost               a process that computes a part of the model has ended; so has the engine
    ├── EncodeQueueFull        too many inputs wait in an encoder engine
    └── InvalidRequest         one request is wrong; the engine is fine

Every message gives the reason with the numbers, fit to be shown to the client that sent the request.
"""

from collections.abc import Mapping


class EngineError(Exception):
    """Anything the engine raises on purpose."""


class InvalidConfig(EngineError):
    """The engine's configuration contradicts itself, the model or the machine."""


class InvalidBatching(InvalidConfig, ValueError):
    """A field of the configuration cannot be what it is; `field` is its path, such as `max_batch_size`."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field, self.problem = field, problem


class ModelLoadFailed(EngineError):
    """The model's files could not be read. The cause is chained."""


class UnsupportedModel(EngineError):
    """The model would load and run, but its output would be wrong; so it is refused, with the reason."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(f"model {model!r} is not supported: {reason}")
        self.model = model
        self.reason = reason


class UnsupportedAdapter(EngineError):
    """An adapter cannot be used with its base, for the reason given."""

    def __init__(self, adapter: str, reason: str) -> None:
        super().__init__(f"adapter {adapter!r} cannot be used: {reason}")
        self.adapter = adapter
        self.reason = reason


class RankLost(EngineError):
    """A process of a tensor-parallel model has ended, or no longer does what the others do.

    The engine is of no more use; what is in it can run on another.
    """


class InvalidRequest(EngineError):
    """This request can never run here, whatever the load."""


class InvalidSamplingParams(InvalidRequest):
    """A sampling parameter is outside its range; `field` names it."""

    def __init__(self, field: str, value: object, requirement: str) -> None:
        super().__init__(f"{field} {requirement}, got {value!r}")
        self.field = field


class InvalidTokenIds(InvalidRequest):
    """Something that should be token ids of this model is not; `field` names it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field


class PromptTooLong(InvalidRequest):
    """The prompt leaves no room for even one new token, in the context or in the whole KV memory."""

    def __init__(self, num_prompt_tokens: int, limit: int, limited_by: str) -> None:
        super().__init__(
            f"a prompt of {num_prompt_tokens} tokens and one new token exceed "
            f"the {limited_by} of {limit} tokens"
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.limit = limit


class SourceTooLong(PromptTooLong):
    """The source has more tokens than the encoder reads."""

    def __init__(self, num_source_tokens: int, limit: int) -> None:
        super().__init__(num_source_tokens, limit, "encoder's input")
        self.args = (f"a source of {num_source_tokens} tokens exceeds the encoder's input of {limit} tokens",)


class DuplicateRequest(InvalidRequest):
    """A request with this id is already in the engine."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request {request_id!r} is already in the engine")


class UnknownAdapter(InvalidRequest):
    """The engine has no adapter of this name."""

    def __init__(self, adapter: str, model: str) -> None:
        super().__init__(f"model {model!r} has no adapter {adapter!r}")


class InvalidState(InvalidRequest):
    """The saved state of a request is none; `field` says where it stops making sense."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"the saved state's {field} {problem}")
        self.field = field


class IncompatibleState(InvalidRequest):
    """A saved request cannot go on here. `field` names what differs from the engine that made its tokens."""

    def __init__(self, field: str, theirs: object, ours: object) -> None:
        super().__init__(f"the saved state was made with {field} {theirs!r}; this engine has {ours!r}")
        self.field = field


class ChatTemplateFailed(InvalidRequest):
    """The messages could not be rendered with the model's chat template, or it has none."""


class GrammarFailed(InvalidRequest):
    """A grammar cannot be compiled, exceeds a limit, or does not allow the tokens there are."""


class EncodeInputTooLong(InvalidRequest):
    """An input exceeds the model's context. It is never cut silently: half a document has another meaning."""

    def __init__(self, input_index: int, num_tokens: int, max_tokens: int) -> None:
        super().__init__(f"input {input_index} has {num_tokens} tokens, the model takes at most {max_tokens}")
        self.input_index = input_index
        self.num_tokens = num_tokens
        self.max_tokens = max_tokens


class NoRoomForText(InvalidRequest):
    """A query or a prompt before a text that may be cut leaves no token for it."""

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


class UnknownPrompt(InvalidRequest):
    """A checkpoint has no such prompt."""

    def __init__(self, name: str, known: Mapping[str, str]) -> None:
        there = f"it has {', '.join(sorted(known))}" if known else "it has none"
        super().__init__(f"the model has no prompt {name!r}: {there}")
