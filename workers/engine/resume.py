"""A request that stopped in the middle, as a record that another process can continue.

A few bytes per token and no tensors: KV memory is computed again. Text needs no state, because it is a
function of the tokens; neither do draws, which are functions of seed and index. What is written down besides
the tokens is what has a part in the numbers, so that an engine can tell whether it may go on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args

from .errors import IncompatibleState, InvalidRequest, InvalidState
from .request import PriorityClass, Request, TokenLogprobs
from .sampling_params import SamplingParams

VERSION = 1


@dataclass(frozen=True, slots=True)
class MadeBy:
    """What computed a sequence's tokens."""

    model_id: str
    """For people; two names of one model are no difference."""
    model_digest: str
    """Of its files: see `weights.model_digest`."""
    dtype: str
    weight_dtype: str
    """int8, or auto where weights are kept as they are."""
    device: str
    """cpu or cuda."""
    isa: str
    """Instruction set of the CPU, or name of the GPU."""
    torch_version: str
    attention_backend: str
    kv_cache_dtype: str
    deterministic: bool

    def accepts(self, other: MadeBy) -> bool:
        """Whether what `other` began continues here exactly: bit for bit, if both are deterministic.

        Raises `IncompatibleState` for another model; and, if one of the two is deterministic, for anything
        else that differs: the whole would no longer be what deterministic mode promises.
        """
        if self.model_digest != other.model_digest:
            theirs, ours = (f"{each.model_id} ({each.model_digest})" for each in (other, self))
            raise IncompatibleState("model", theirs, ours)
        names = [field.name for field in fields(self) if not field.name.startswith("model_")]
        differing = [name for name in names if getattr(self, name) != getattr(other, name)]
        if differing and (self.deterministic or other.deterministic):
            name = differing[0]
            raise IncompatibleState(name, getattr(other, name), getattr(self, name))
        return not differing

    @classmethod
    def from_json(cls, data: Any) -> MadeBy:
        """Raises `InvalidState`."""
        data = _mapping(data, "made_by")
        for field in fields(cls):
            wanted = bool if field.name == "deterministic" else str
            if not isinstance(data.get(field.name), wanted):
                raise InvalidState(f"made_by.{field.name}", f"is no {wanted.__name__}")
        return cls(**{field.name: data[field.name] for field in fields(cls)})


@dataclass(frozen=True, slots=True)
class ResumeState:
    """An unfinished request: what it asked for, what it has, and what made it."""

    request: Request
    """With the tokens so far, their log-probabilities if it asks for them, and its seed, given or derived."""
    num_characters: int
    """Of text that has been given out for these tokens. The first output after `resume` repeats them."""
    made_by: MadeBy

    @property
    def id(self) -> str:
        return self.request.id

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it; `from_json` reads it back."""
        request = self.request
        return {
            "version": VERSION,
            "id": request.id,
            "priority": request.priority,
            "group": request.group,
            "prompt_token_ids": list(request.prompt_token_ids),
            "output_token_ids": list(request.output_token_ids),
            "output_logprobs": [logprobs_to_json(each) for each in request.output_logprobs],
            "sampling": asdict(request.sampling) | {"logit_bias": [*request.sampling.logit_bias.items()]},
            "num_characters": self.num_characters,
            "made_by": asdict(self.made_by),
        }

    @classmethod
    def from_json(cls, data: Any) -> ResumeState:
        """Raises `InvalidState` naming the first part that makes no sense."""
        data = _mapping(data, "form")
        if data.get("version") != VERSION:
            raise InvalidState("version", f"is {data.get('version')!r}; this engine reads {VERSION}")
        if not isinstance(data.get("id"), str):
            raise InvalidState("id", "is no string")
        if data.get("priority") not in get_args(PriorityClass):
            raise InvalidState("priority", f"is {data.get('priority')!r}")
        if not isinstance(data.get("group"), str | None):
            raise InvalidState("group", "is no string")
        logprobs = data.get("output_logprobs")
        if not isinstance(logprobs, list):
            raise InvalidState("output_logprobs", "is no list")
        request = Request(
            id=data["id"],
            prompt_token_ids=tuple(_integers(data, "prompt_token_ids")),
            sampling=_sampling(data.get("sampling")),
            priority=data["priority"],
            output_token_ids=tuple(_integers(data, "output_token_ids")),
            group=data.get("group"),
            output_logprobs=tuple(logprobs_from_json(each) for each in logprobs),
        )
        (num_characters,) = _integers({"num_characters": [data.get("num_characters")]}, "num_characters")
        if num_characters < 0:
            raise InvalidState("num_characters", f"is {num_characters}")
        return cls(request, num_characters, MadeBy.from_json(data.get("made_by")))


def logprobs_to_json(logprobs: TokenLogprobs) -> list[Any]:
    """Minus infinity, which JSON does not know, as null."""
    value = None if logprobs.logprob == float("-inf") else logprobs.logprob
    top = [None if each == float("-inf") else each for each in logprobs.top_logprobs]
    return [value, list(logprobs.top_ids), top]


def logprobs_from_json(data: Any) -> TokenLogprobs:
    """Raises `InvalidState`."""
    try:
        value, ids, top = data
        if not all(type(id) is int and id >= 0 for id in ids) or len(ids) != len(top):
            raise ValueError(f"{ids!r} are no {len(top)} token ids")
        return TokenLogprobs(_logprob(value), tuple(ids), tuple(map(_logprob, top)))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidState("output_logprobs", f"has an entry that is none: {error}") from error


def _logprob(value: Any) -> float:
    if value is None:
        return float("-inf")
    if not math.isfinite(value):
        raise ValueError(f"{value!r} is the logarithm of no probability")
    return float(value)


def _mapping(data: Any, field: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise InvalidState(field, "is no object")
    return data


def _integers(data: Mapping[str, Any], field: str) -> list[int]:
    values = data.get(field)
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise InvalidState(field, "is not made of integers")
    return values


def _sampling(data: Any) -> SamplingParams:
    data = _mapping(data, "sampling")
    try:
        return SamplingParams(**{**data, "logit_bias": dict(data["logit_bias"])})
    except (TypeError, ValueError, KeyError, InvalidRequest) as error:
        raise InvalidState("sampling", f"is not to be read: {error}") from error
