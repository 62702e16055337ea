"""What the engine refuses, as exceptions.

    EngineError
    ├── InvalidConfig          the engine was asked to be something it cannot be
    ├── ModelLoadFailed        files are missing, broken or not safetensors
    ├── UnsupportedModel       the model loads, but we would compute it wrongly
    └── InvalidRequest         one request is wrong; the engine is fine
        ├── InvalidSamplingParams
        ├── InvalidTokenIds
        ├── PromptTooLong
        ├── DuplicateRequest
        ├── InvalidState
        ├── IncompatibleState
        ├── ChatTemplateFailed
        └── GrammarFailed

Every message gives the reason with the numbers, fit to be shown to the client that sent the request.
"""

from __future__ import annotations


class EngineError(Exception):
    """Anything the engine raises on purpose."""


class InvalidConfig(EngineError):
    """The engine's configuration contradicts itself, the model or the machine."""


class ModelLoadFailed(EngineError):
    """The model's files could not be read. The cause is chained."""


class UnsupportedModel(EngineError):
    """The model would load and run, but its output would be wrong; so it is refused, with the reason."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(f"model {model!r} is not supported: {reason}")
        self.model = model
        self.reason = reason


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


class InvalidState(InvalidRequest):
    """What should be the saved state of a request is not; `field` says where it stops making sense."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"the saved state's {field} {problem}")
        self.field = field


class IncompatibleState(InvalidRequest):
    """A saved request cannot go on here: `field` names what was different where its tokens were made."""

    def __init__(self, field: str, theirs: object, ours: object) -> None:
        super().__init__(f"the saved state was made with {field} {theirs!r}; this engine has {ours!r}")
        self.field = field


class ChatTemplateFailed(InvalidRequest):
    """The messages could not be rendered with the model's chat template, or it has none."""


class GrammarFailed(InvalidRequest):
    """A grammar cannot be compiled, exceeds a limit, or does not allow the tokens there are."""
