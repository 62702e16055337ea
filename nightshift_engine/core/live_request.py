"""A request in the engine: refused before it costs anything if it can never run, else live until its end."""

from __future__ import annotations

import time
from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from ..errors import InvalidRequest, InvalidTokenIds, PromptTooLong, SourceTooLong, UnknownAdapter
from ..text.decoders import TextStream
from .kv_groups import BlockDemand
from .request import PRIORITY_RANKS, FinishReason, Output, PromptLogprobs, Request, TokenLogprobs
from .sampling_params import LOGPROBS_MAX
from .sequence import Sequence
from .stats import ClassHistograms

if TYPE_CHECKING:
    from ..guidance.compiler import Compiling


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts about the model whose runner the engine drives."""

    id: str
    vocab_size: int
    context_length: int
    eos_token_ids: frozenset[int]
    source_length: int = 0
    """Tokens that a source may have; `context_length` is then the decoder's alone."""
    digest: str = ""
    """Digest that tells these weights from others: `weights.model_digest`."""
    dtype: str = "float32"
    weight_dtype: str = "auto"
    """The dtype that weights of linear layers were rounded to, or are held in; auto: neither."""
    kv_cache_dtype: str = "float32"
    device: str = "cpu"
    attention_backend: str = "torch"


def token_limit(request: Request, model: ModelFacts, kv_capacity: int, source_slots: int) -> int:
    """Returns how many tokens source, prompt and output may have together.

    `kv_capacity` is that of all blocks, in tokens. Raises `PromptTooLong` or another `InvalidRequest`.
    """
    if request.priority not in PRIORITY_RANKS:
        known = ", ".join(PRIORITY_RANKS)
        raise InvalidRequest(f"priority must be one of {known}, got {request.priority!r}")
    for token_ids in (request.prompt_token_ids, request.source_token_ids):
        _check_token_ids("prompt", token_ids, model)
    _check_token_ids("output", request.output_token_ids, model)
    likeliest = [*chain.from_iterable(token.top_ids for token in request.output_logprobs)]
    _check_token_ids("output_logprobs", likeliest, model)
    _check_token_ids("logit_bias", request.sampling.logit_bias, model)
    _check_token_ids("stop_token_ids", request.sampling.stop_token_ids, model)
    _check_token_ids("logprob_token_ids", request.sampling.logprob_token_ids, model)
    _check_allowed(request, model)
    if request.sampling.logprobs is not None and len(request.output_logprobs) != len(
        request.output_token_ids
    ):
        raise InvalidRequest(
            f"output_logprobs has {len(request.output_logprobs)} entries "
            f"for {len(request.output_token_ids)} output tokens"
        )
    _check_prompt_logprobs(request)
    if len(request.source_token_ids) > model.source_length:
        raise SourceTooLong(len(request.source_token_ids), model.source_length)
    context = source_slots + model.context_length
    limit, limited_by = min((context, "context"), (kv_capacity, "KV memory"))
    num_prompt_tokens = source_slots + len(request.prompt_token_ids)
    max_tokens = request.sampling.max_tokens
    if model.source_length and not 0 < source_slots < num_prompt_tokens:
        raise InvalidRequest(f"request {request.id!r} has no source for the encoder")
    if num_prompt_tokens == 0:
        raise InvalidRequest(f"request {request.id!r} has an empty prompt")
    if num_prompt_tokens + 1 > limit:
        raise PromptTooLong(num_prompt_tokens, limit, limited_by)
    return limit if max_tokens is None else min(limit, num_prompt_tokens + max_tokens)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Everything that decides whether an engine can ever run a request; may be sent to another process."""

    model: ModelFacts
    demand: BlockDemand
    num_blocks: int
    block_size: int
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Digests of the adapters that requests may name."""

    def token_limit(self, request: Request) -> int:
        """Tokens that source, prompt and output may have together. Raises as the function does, and
        `UnknownAdapter`.
        """
        if request.adapter is not None and request.adapter not in self.adapters:
            raise UnknownAdapter(request.adapter, self.model.id)
        source_slots = request.source_slots(self.block_size)
        longest = source_slots + self.model.context_length + 1  # one more than the context
        capacity = self.demand.tokens_in(self.num_blocks, longest)
        return token_limit(request, self.model, capacity, source_slots)


def _check_prompt_logprobs(request: Request) -> None:
    count = request.prompt_logprobs
    if count is None:
        return
    if not 0 <= count <= LOGPROBS_MAX:
        raise InvalidRequest(f"prompt_logprobs must be None or 0 to {LOGPROBS_MAX}, got {count}")
    if request.source_token_ids:
        raise InvalidRequest("prompt_logprobs is for decoders: an encoder-decoder's source is not scored")


def _check_allowed(request: Request, model: ModelFacts) -> None:
    """Raises InvalidTokenIds where the allowed tokens only end an output that may not end at once."""
    sampling, is_guided = request.sampling, request.grammar is not None
    allowed = sampling.allowed_token_ids
    _check_token_ids("allowed_token_ids", allowed, model)
    ends = model.eos_token_ids.union(() if is_guided else sampling.stop_token_ids)
    if allowed and ends.issuperset(allowed) and (is_guided or sampling.min_tokens):
        why = "a grammar" if is_guided else f"min_tokens of {sampling.min_tokens}"
        raise InvalidTokenIds(
            "allowed_token_ids", f"has only tokens that end the output; {why} asks for more"
        )


def _check_token_ids(what: str, token_ids: Collection[int], model: ModelFacts) -> None:
    """One id outside the vocabulary would not fail its own request but the step it is computed in."""
    try:
        array("q", token_ids)
    except TypeError as error:
        raise InvalidTokenIds(what, f"has a token id that is none: {error}") from error
    except OverflowError:  # an integer, but far outside, which is said below
        pass
    smallest, largest = min(token_ids, default=0), max(token_ids, default=0)
    if smallest < 0 or largest >= model.vocab_size:
        wrong = smallest if smallest < 0 else largest
        raise InvalidTokenIds(what, f"has token id {wrong}, outside the vocabulary of {model.vocab_size}")


@dataclass(slots=True)
class LiveRequest:
    """A request between its admission by `add` and its last output."""

    sequence: Sequence
    text: TextStream
    logprobs: list[TokenLogprobs]
    """Log-probabilities of all output tokens, if the request asks for them."""
    counts: ClassHistograms
    """The histograms of its class."""
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    """Log-probabilities of the prompt's tokens after its first, as far as they are computed."""
    end_token_id: int | None = None
    compiling: Compiling | None = None
    """The request's grammar, if it has one."""
    pieces: list[str] = field(default_factory=list)
    """The text so far, if the only output comes at the end."""
    thought_text: TextStream | None = None
    """The text of the thought that is open."""
    thought_pieces: list[str] = field(default_factory=list)
    """Text of thoughts that is in no output yet."""
    has_thought: bool = False
    added_s: float = field(default_factory=time.perf_counter)
    launched_s: float | None = None
    """The start of the first step that computes some of it."""
    first_token_s: float | None = None
    last_token_s: float = 0.0
    is_final_only: bool = field(init=False)
    stays_unread: bool = field(init=False)
    """Whether its text is made at its end: nothing in the text may end it before."""

    def __post_init__(self) -> None:  # once, as every token asks
        self.is_final_only = self.sequence.request.output_kind == "final_only"
        needs_text = bool(self.sequence.sampling.stop) or self.sequence.thought is not None
        self.stays_unread = self.is_final_only and not needs_text

    def count_launch(self, launched_s: float) -> None:
        """Counts the first step that computes some of it."""
        self.launched_s = launched_s
        self.counts.queue_s.observe(launched_s - self.added_s)
        self.counts.prompt_tokens += self.num_prompt_tokens

    def count_token(self, now_s: float) -> None:
        """Counts a new token."""
        counts = self.counts
        counts.generation_tokens += 1
        if self.first_token_s is None:
            self.first_token_s = now_s
            counts.prefill_s.observe(now_s - (self.launched_s or now_s))
        else:
            counts.inter_token_s.observe(now_s - self.last_token_s)
        self.last_token_s = now_s

    def count_end(self) -> None:
        if self.first_token_s is not None:
            self.counts.decode_s.observe(self.last_token_s - self.first_token_s)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.sequence.request.source_token_ids) or self.sequence.num_prompt_tokens

    def read_rest(self) -> str:
        """The text of unread tokens, and what was held back, once no more will come."""
        sequence = self.sequence
        if not self.stays_unread:
            self.end_thought()
            pending = sequence.thought.finish() if sequence.thought is not None else ()
            return "".join(map(self.text.push, pending)) + self.text.finish()
        end = len(sequence.token_ids) - (self.end_token_id is not None)
        return (
            "".join(map(self.text.push, sequence.token_ids[sequence.num_prompt_tokens : end]))
            + self.text.finish()
        )

    def begin_thought(self, text: TextStream) -> None:
        """Reads what comes as a thought, of which there may be several."""
        if self.has_thought:
            self.thought_pieces.append("\n")
        self.thought_text, self.has_thought = text, True

    def end_thought(self) -> None:
        if self.thought_text is not None:
            self.thought_pieces.append(self.thought_text.finish())
            self.thought_text = None

    def new_output(self, text: str, token_ids: list[int]) -> Output | None:
        """The output of a step that did not end it; None where its only output comes at its end."""
        if not self.is_final_only:
            return self._output(text, token_ids)
        if text:
            self.pieces.append(text)
        return None

    def last_output(self, reason: FinishReason, text: str, token_ids: list[int]) -> Output:
        """The output that ends it. `text` and `token_ids` are what its last step added."""
        if self.is_final_only:
            text, token_ids = "".join(self.pieces) + text, self.sequence.output_token_ids
        output = self._output(text, token_ids)
        output.finish_reason, output.end_token_id = reason, self.end_token_id
        output.times = self
        if self.sequence.request.prompt_logprobs is not None:
            output.prompt_logprobs = self.prompt_logprobs
        return output

    def _output(self, text: str, token_ids: list[int]) -> Output:
        sequence = self.sequence
        num_output_tokens = sequence.num_output_tokens
        has_logprobs = sequence.sampling.logprobs is not None
        reasoning, self.thought_pieces = "".join(self.thought_pieces), []
        return Output(
            id=sequence.id,
            text=text,
            token_ids=token_ids,
            finish_reason=None,
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=num_output_tokens,
            num_cached_tokens=sequence.num_cached_tokens or 0,
            logprobs=self.logprobs[num_output_tokens - len(token_ids) : num_output_tokens]
            if has_logprobs
            else None,
            reasoning=reasoning,
            num_reasoning_tokens=sequence.thought.num_tokens if sequence.thought is not None else 0,
        )
