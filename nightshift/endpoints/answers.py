"""Ids, token counts, service tiers and the error envelope."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Final

from nightshift.errors import MESSAGE_BYTES_MAX, PARAM_BYTES_MAX, InvalidRequest, shortened
from nightshift.jobs import JsonObject, Usage

ANSWER_ID_CHARS: Final = 24  # without the prefix


def answer_id(prefix: str, name: str) -> str:
    """An answer's id, such as `chatcmpl-…`: the same at every attempt, streamed and recorded. `name` is
    unique for the row or request.
    """
    return prefix + hashlib.sha256(f"{prefix}{name}".encode()).hexdigest()[:ANSWER_ID_CHARS]


def usage_json(usage: Usage) -> JsonObject:
    """A job's token counts."""
    return answer_usage(usage) | {"prompt_tokens_details": {"cached_tokens": usage.cached_tokens}}


def error_body(message: str, type: str, *, param: str | None = None, code: str | None = None) -> JsonObject:
    """The error envelope, with shortened texts."""
    about = None if param is None else shortened(param, PARAM_BYTES_MAX)
    message = shortened(message, MESSAGE_BYTES_MAX)
    return {"error": {"message": message, "type": type, "param": about, "code": code}}


def answer_usage(usage: Usage) -> JsonObject:
    """An answer's token counts, without cached tokens: those depend on the other load, and a repeated row
    must give the same bytes. Those of thoughts are named where there are any.
    """
    counts: JsonObject = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    if usage.reasoning_tokens:
        counts["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return counts


ANSWER_TOO_LARGE: Final = "answer_too_large"
ANSWER_HEAD_BYTES: Final = 1024  # an answer's ids, names, times and counts
NUMBER_BYTES: Final = 25  # a float of 64 bits as JSON, and a comma


@dataclass(frozen=True)
class AnswerSize:
    """An upper bound of an answer's bytes as JSON: `head_bytes` and, for each of what the counts ask for
    together, `unit_bytes`.
    """

    unit_bytes: int
    counts: Mapping[str, int]  # by the field that says how many
    head_bytes: int = ANSWER_HEAD_BYTES
    also: Mapping[str, int | str] = field(default_factory=dict)  # fields that make the unit large

    @property
    def total_bytes(self) -> int:
        return self.head_bytes + self.unit_bytes * prod(self.counts.values())

    def check(self, bytes_max: int) -> None:
        """Raises InvalidRequest naming the fields, and the value of each that fits beside the others."""
        if self.total_bytes <= bytes_max:
            return
        large = [*((name, count) for name, count in self.counts.items() if count > 1), *self.also.items()]
        said = ", ".join(f"'{name}' {value}" for name, value in large)
        fits = [f"'{name}' {fit}" for name in self.counts if (fit := self._fitting(name, bytes_max)) >= 1]
        advice = f" Beside the others, at most {' or '.join(fits)} fits." if fits else ""
        raise InvalidRequest(
            f"The answer may have {self.total_bytes} bytes, and at most {bytes_max} are accepted: it is "
            f"asked for with {said}.{advice}",
            param=large[0][0] if large else None,
            code=ANSWER_TOO_LARGE,
        )

    def _fitting(self, name: str, bytes_max: int) -> int:
        """The largest value of a count beside the others; 0 for one that would have to be larger."""
        others = prod(count for other, count in self.counts.items() if other != name)
        fit = (bytes_max - self.head_bytes) // max(1, self.unit_bytes * others)
        return fit if fit < self.counts[name] else 0
