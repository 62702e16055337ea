"""Refuses requests that can never run here, before they cost anything.

Pure: knows the limits of the model and of KV memory, and nothing of what else is running. Whether a request
can run now is the batcher's business.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain

from ..errors import InvalidRequest, InvalidTokenIds, PromptTooLong, SourceTooLong
from .request import PRIORITY_RANKS, Request


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the engine knows of the model whose runner it drives."""

    id: str
    vocab_size: int
    context_length: int
    eos_token_ids: frozenset[int]
    source_length: int = 0
    """Of an encoder-decoder: tokens that a source may have. Its `context_length` is the decoder's alone."""
    digest: str = ""
    """Tells these weights from others: `weights.model_digest`."""
    dtype: str = "float32"
    kv_cache_dtype: str = "float32"
    device: str = "cpu"
    attention_backend: str = "torch"


def token_limit(request: Request, model: ModelFacts, kv_capacity: int) -> int:
    """How many tokens prompt and output may have together; `kv_capacity` is that of all blocks, in tokens.

    Raises `PromptTooLong` or another `InvalidRequest`.
    """
    if request.priority not in PRIORITY_RANKS:
        known = ", ".join(PRIORITY_RANKS)
        raise InvalidRequest(f"priority must be one of {known}, got {request.priority!r}")
    _check_token_ids("prompt", request.prompt_token_ids, model)
    _check_token_ids("output", request.output_token_ids, model)
    likeliest = [*chain.from_iterable(each.top_ids for each in request.output_logprobs)]
    _check_token_ids("output_logprobs", likeliest, model)
    _check_token_ids("logit_bias", request.sampling.logit_bias, model)
    _check_token_ids("stop_token_ids", request.sampling.stop_token_ids, model)
    if request.sampling.logprobs is not None and len(request.output_logprobs) != len(
        request.output_token_ids
    ):
        raise InvalidRequest(
            f"output_logprobs has {len(request.output_logprobs)} entries "
            f"for {len(request.output_token_ids)} output tokens"
        )
    if request.num_source_tokens > model.source_length:
        raise SourceTooLong(request.num_source_tokens, model.source_length)
    context = request.source_slots + model.context_length
    limit, limited_by = min((context, "context"), (kv_capacity, "KV memory"))
    num_prompt_tokens, max_tokens = len(request.prompt_token_ids), request.sampling.max_tokens
    if model.source_length and not 0 < request.source_slots < num_prompt_tokens:
        raise InvalidRequest(f"request {request.id!r} has no source for the encoder")
    if num_prompt_tokens == 0:
        raise InvalidRequest(f"request {request.id!r} has an empty prompt")
    if num_prompt_tokens + 1 > limit:
        raise PromptTooLong(num_prompt_tokens, limit, limited_by)
    return limit if max_tokens is None else min(limit, num_prompt_tokens + max_tokens)


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
