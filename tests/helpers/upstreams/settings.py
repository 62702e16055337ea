"""Which server a simulated upstream is, and how fast."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ROUTES = ("chat/completions", "completions", "embeddings", "rerank", "score")
EXTENSIONS = ("return_token_ids", "priority", "continue_final_message")


@dataclass(frozen=True)
class Settings:
    """A vLLM that takes no time, unless told otherwise.

    llama.cpp's server differs: it answers whatever model is named, repeats what it continues where it does
    not stream, counts the tokens of one choice only, and puts the counts of a streamed completion into the
    event with the finish reason.

    A step takes `step_s`, and `slot_s` for each running request and `prefill_s` for each new one.
    """

    models: Sequence[str] = ("simulated",)
    root: str = "example/simulated"
    owned_by: str = "vllm"  # "llamacpp" is another server
    version: str | None = "0.32.0"  # None: there is no such route
    server_info: Mapping[str, Any] | None = None  # SGLang's
    max_model_len: int | None = 4096  # None: it does not say
    routes: Sequence[str] = ROUTES
    understands: Sequence[str] = EXTENSIONS
    is_strict: bool = False  # whether it refuses the extensions that it does not understand
    key: str | None = None
    slots: int = 256
    waiting_max: int | None = None  # requests without a slot; one more is answered 429
    step_s: float = 0.0
    slot_s: float = 0.0
    prefill_s: float = 0.0
    own_tokens: int | None = None  # of each answer that nothing limits; None: its prompt says
    dimensions: int = 8
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    @property
    def is_llama_cpp(self) -> bool:
        return self.owned_by == "llamacpp"
