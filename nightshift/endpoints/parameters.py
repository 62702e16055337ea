"""The parameters of requests that are known, of OpenAI's API and of its extensions.

An endpoint has some of them. It refuses the others by name, rather than answer something else than was asked
for; a value that asks for nothing is accepted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

Flag = Annotated[bool | None, Field(strict=True)]
Verbosity = Literal["low", "medium", "high"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Summary = Literal["auto", "concise", "detailed"]


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """Marks a field whose value changes no answer."""

    because: str


def hints_of(request_type: type[BaseModel], path: str = "") -> Iterator[tuple[str, FieldInfo, WithoutEffect]]:
    """The marked fields of a request, and of the objects in it, by their paths."""
    for name, field in request_type.model_fields.items():
        mark = next((note for note in field.metadata if isinstance(note, WithoutEffect)), None)
        if mark is not None:
            yield path + name, field, mark
        for part in _parts(field.annotation):
            if mark is None and isinstance(part, type) and issubclass(part, BaseModel):
                yield from hints_of(part, f"{path}{name}.")


def values_of(annotation: Any) -> str:
    """The values that a field takes, for the documentation."""
    literals = [f"`{value}`" for part in _parts(annotation) for value in _literals(part)]
    kinds = [_KINDS[part] for part in _parts(annotation) if part in _KINDS]
    return ", ".join(literals or kinds or ["an object"])


def _parts(annotation: Any) -> Iterator[Any]:
    """The members of a union, without None."""
    if get_origin(annotation) in (Union, UnionType, Annotated):
        members = get_args(annotation)
        for part in members[:1] if get_origin(annotation) is Annotated else members:
            yield from _parts(part)
    elif annotation is not NoneType:
        yield annotation


def _literals(part: Any) -> tuple[Any, ...]:
    return get_args(part) if get_origin(part) is Literal else ()


_KINDS: Mapping[Any, str] = {bool: "`true`, `false`", str: "a string", int: "an integer"}


OPENAI: Final[Mapping[str, tuple[Any, ...]]] = {
    "access_programs": ({}, {"cyber": "standard"}),
    "audio": (),
    "background": (False,),
    "background_options": ({},),
    "best_of": (1,),
    "context_management": ([],),
    "conversation": (),
    "dimensions": (),
    "echo": (False,),
    "encoding_format": ("float",),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "image": (),
    "include": ([],),
    "input": (),
    "instructions": ("",),
    "logit_bias": ({},),
    "logprobs": (False,),
    "max_completion_tokens": (),
    "max_output_tokens": (),
    "max_tokens": (),
    "max_tool_calls": (),
    "messages": (),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "parallel_tool_calls": (),
    "prediction": (),
    "presence_penalty": (0,),
    "previous_response_id": (),
    "prompt": (),
    "reasoning": ({},),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "seed": (),
    "stop": ([],),
    "store": (False,),
    "stream": (False,),
    "stream_options": ({},),
    "suffix": ("",),
    "temperature": (),
    "text": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "top_p": (1,),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Each with the values that ask for nothing."""

EXTENSIONS: Final[Mapping[str, tuple[Any, ...]]] = {
    # how tokens are chosen, and which are shown: vLLM
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "early_stopping": (False,),
    "enable_response_messages": (False,),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "logprob_token_ids": ([],),
    "min_p": (0,),
    "min_tokens": (0,),
    "num_beams": (1,),
    "previous_input_messages": ([],),
    "prompt_logprobs": (),
    "repetition_detection": (),
    "repetition_penalty": (1,),
    "return_prompt_text": (False,),
    "return_token_ids": (False,),
    "return_token_offsets": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "thinking_token_budget": (),
    "top_k": (),
    "use_beam_search": (False,),
    # the form of an answer: vLLM
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "include_reasoning": (True,),
    "structural_tag": (),
    "structured_outputs": ({},),
    # the same: SGLang
    "custom_logit_processor": (),
    "ebnf": (),
    "json_schema": (),
    "regex": (),
    "separate_reasoning": (True,),
    "stop_regex": ([],),
    # how a request becomes tokens: vLLM, transformers
    "add_generation_prompt": (True,),
    "add_special_tokens": (True,),
    "cache_salt": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "kv_transfer_params": (),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "prompt_embeds": ([],),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "vllm_xargs": ({},),
    # vectors and scores: vLLM, sentence-transformers, Cohere, Jina
    "activation": (),
    "data_1": (),
    "data_2": (),
    "documents": (),
    "embed_dtype": ("float32",),
    "embedding_type": ("float",),
    "embedding_types": (["float"],),
    "endianness": ("native", "little"),
    "input_type": (),
    "instruction": (),
    "items": (),
    "late_chunking": (False,),
    "max_chunks_per_doc": (),
    "max_tokens_per_doc": (0,),
    "max_tokens_per_query": (0,),
    "normalize": (),
    "normalized": (),
    "output_dimension": (),
    "prompt_name": (),
    "queries": (),
    "query": (),
    "rank_fields": ([],),
    "return_documents": (False,),
    "return_token_strs": (False,),
    "return_multivector": (False,),
    "softmax": (),
    "task": (),
    "text_1": (),
    "text_2": (),
    "tokens": (),
    "top_n": (),
    "truncate": ("NONE",),
    "use_activation": (True,),
    # translation: ours
    "source_language": (),
    "target_language": (),
}

KNOWN: Final[Mapping[str, tuple[Any, ...]]] = {**OPENAI, **EXTENSIONS}
