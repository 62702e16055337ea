"""Requests in, outputs out, as tokens and text. Knows neither jobs nor rows nor HTTP, and no tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol

from ..errors import IncompatibleState, InvalidState
from ..guidance.grammar import Grammar
from .sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class MadeBy:
    """Everything that has a part in the numbers that a token is sampled from."""

    model_id: str
    """A name for people; the same model under two names is no difference."""
    model_digest: str
    """Digest of the model's files: see `weights.model_digest`."""
    dtype: str
    weight_dtype: str
    """The dtype that weights of linear layers were rounded to, or are held in; auto: neither."""
    device: str
    """cpu or cuda."""
    isa: str
    """Instruction set of the CPU, or name of the GPU."""
    torch_version: str
    attention_backend: str
    kv_cache_dtype: str
    deterministic: bool

    def with_adapter(self, name: str, digest: str) -> MadeBy:
        """The same of a request with this adapter."""
        return replace(self, model_id=name, model_digest=f"{self.model_digest}+{digest}")

    def accepts(self, other: MadeBy) -> bool:
        """Whether what `other` began continues here exactly. Raises `IncompatibleState`."""
        if self.model_digest != other.model_digest:
            theirs, ours = (f"{origin.model_id} ({origin.model_digest})" for origin in (other, self))
            raise IncompatibleState("model", theirs, ours)
        names = [field.name for field in fields(self) if not field.name.startswith("model_")]
        differing = [name for name in names if getattr(self, name) != getattr(other, name)]
        if differing and (self.deterministic or other.deterministic):
            name = differing[0]
            raise IncompatibleState(name, getattr(other, name), getattr(self, name))
        return not differing

    @classmethod
    def from_json(cls, data: Any) -> MadeBy:
        """Raises `InvalidState` naming the first field that is missing or of another type."""
        if not isinstance(data, Mapping):
            raise InvalidState("made_by", "is no object")
        for known in fields(cls):
            wanted = bool if known.name == "deterministic" else str
            if not isinstance(data.get(known.name), wanted):
                raise InvalidState(f"made_by.{known.name}", f"is no {wanted.__name__}")
        return cls(**{known.name: data[known.name] for known in fields(cls)})


PriorityClass = Literal["interactive", "standard", "background"]
FinishReason = Literal["stop", "length", "abort"]
OutputKind = Literal["delta", "final_only"]

PRIORITY_RANKS: dict[str, int] = {"interactive": 0, "standard": 1, "background": 2}
"""Smaller is more urgent."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The model's own probabilities for a sampled token, before temperature, filters, penalties and bias."""

    logprob: float
    """Natural logarithm of the token's probability; -inf for one that only a bias made possible."""
    top_ids: tuple[int, ...] = ()
    """The likeliest tokens, as many as were asked for, likeliest first; the sampled one need not be there."""
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs(TokenLogprobs):
    """The same for a token of a prompt, given those before it."""

    rank: int = 1
    """The token's place among all by their probability, from 1; equally likely ones share the last."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to complete.

    `output_token_ids` are tokens an earlier run of the same request already produced. The engine continues
    after them, and its first output repeats them with their text: the outputs of a resumed request, put
    together, are the whole completion, as if it had never been interrupted.
    """

    id: str
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    priority: PriorityClass = "standard"
    output_token_ids: Sequence[int] = ()
    group: str | None = None
    """The job this request is a row of; None for an online request. Rows of jobs may be reordered."""
    flow: str = ""
    """Whose it is. Of one class, each has as many tokens computed as another."""
    cache_salt: str = ""
    """Requests share KV and compiled grammars only with those of the same salt; named as in vLLM."""
    output_logprobs: Sequence[TokenLogprobs] = ()
    """Log-probabilities of `output_token_ids`, one each, if `sampling.logprobs` asks for them."""
    grammar: Grammar | None = None
    """A language that the whole output has to be in; `ignore_eos` and `min_tokens` do not put off its end.
    Output that reaches `max_tokens` before is cut off."""
    parts_thought: bool = False
    """Whether a thought that the output begins with, as the model's files say, is parted from the answer.
    `grammar`, `stop` and `stop_token_ids` are then about the answer alone."""
    output_kind: OutputKind = "delta"
    """An output for each step that adds to it, or a single one, of everything, at its end; named as in vLLM.
    `Engine.generated` reads what it has before."""
    prompt_logprobs: int | None = None
    """Report log-probabilities of the prompt's tokens, and those of so many likeliest, with the last output.
    Such a prompt is computed whole: no prefix of it is found in memory."""
    adapter: str | None = None
    """The name of the LoRA adapter that it runs with. None: the model as it is."""
    source_token_ids: Sequence[int] = ()
    """The text that the encoder of an encoder-decoder reads. Its decoder reads the prompt first."""

    def source_slots(self, block_size: int) -> int:
        """Places that the source takes in KV memory: whole blocks, so the prompt begins one of its own."""
        return -(-len(self.source_token_ids) // block_size) * block_size


class RequestTimes(Protocol):
    """Times of a request, in seconds of `time.monotonic`: of `time.perf_counter` where workers run."""

    @property
    def added_s(self) -> float: ...

    @property
    def launched_s(self) -> float | None:
        """The start of the first step that computes some of it; of an encoder, of the one that ended it."""

    @property
    def first_token_s(self) -> float | None:
        """The time of the first token. None: it has no tokens."""

    @property
    def last_token_s(self) -> float: ...


@dataclass(slots=True)
class Output:
    """New text and tokens of one request, from one step; of `final_only` requests all, at their end.

    Text lags behind the tokens where it may be half a character or the beginning of a stop string.
    """

    id: str
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    """Prompt tokens whose KV was found in memory when the request was first admitted."""
    error: str | None = None
    """The reason why the engine gave up on this sequence (finish_reason "abort"); None if the caller
    aborted it.
    """
    is_refused: bool = False
    """Whether the engine gave up because of the request's grammar."""
    logprobs: list[TokenLogprobs] | None = None
    """One per token id, if the request asks for them."""
    prompt_logprobs: list[PromptLogprobs] | None = None
    """One per token of the prompt after its first, with the last output, if the request asks for them. A
    resumed request that had ended lacks them: nothing of it is computed."""
    end_token_id: int | None = None
    """The end-of-sequence or stop id that ended it; None if nothing did or something else."""
    reasoning: str = ""
    """New text of the thought, if thoughts are parted; it all comes before `text`."""
    num_reasoning_tokens: int = 0
    """Output tokens so far that are no part of the answer: the thought and its markers."""
    times: RequestTimes | None = None
    """The times of one that has ended."""


@dataclass(slots=True)
class Completion:
    """The outputs of one request, put together."""

    id: str
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """One per token id, if the request asked for them; else empty."""
    end_token_id: int | None = None
    error: str | None = None
    reasoning: str = ""
    num_reasoning_tokens: int = 0

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def append(self, output: Output) -> None:
        assert output.id == self.id, f"output of {output.id!r} given to the completion of {self.id!r}"
        assert not self.is_finished, f"completion {self.id!r} has already finished"
        self.text += output.text
        self.token_ids.extend(output.token_ids)
        self.finish_reason = output.finish_reason
        self.num_prompt_tokens = output.num_prompt_tokens
        self.num_cached_tokens = output.num_cached_tokens
        self.logprobs.extend(output.logprobs or ())
        self.end_token_id = output.end_token_id
        self.error = output.error
        self.reasoning += output.reasoning
        self.num_reasoning_tokens = output.num_reasoning_tokens
