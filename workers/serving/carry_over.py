"""Tokens of rows that a worker could not finish, for the next one to go on with: one line of JSON a row.

    {"row": 7, "choices": [{"output_token_ids": […], "logprobs": […]}, …], "made_by": {…}}

A choice whose server tells no token ids has its `text` and the number of its `tokens`.

Values are validated: an invalid token id would become part of an answer, or end a worker.
"""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nightshift.jobs import JsonObject
from nightshift_engine import SamplingParams, TokenLogprobs
from nightshift_engine.errors import InvalidState

log = logging.getLogger(__name__)


@dataclass
class ChoiceSoFar:
    """The tokens generated so far of one choice."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # of each token, if they are asked for
    text: str = ""  # of tokens whose ids the server does not tell …
    tokens_without_ids: int = 0  # … and their number

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + self.tokens_without_ids

    def add(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        self.token_ids.extend(token_ids)
        self.logprobs.extend(logprobs)

    def copy(self) -> "ChoiceSoFar":
        return replace(self, token_ids=list(self.token_ids), logprobs=list(self.logprobs))

    def misfit(self, sampling: SamplingParams) -> str | None:
        """The reason why this cannot be a prefix of the requested choice; None if it can."""
        if self.tokens_without_ids:
            return "its tokens have no ids"
        if sampling.max_tokens is not None and len(self.token_ids) > sampling.max_tokens:
            return f"it has {len(self.token_ids)} tokens, of which {sampling.max_tokens} are asked for"
        if sampling.logprobs is None:
            return "it has log-probabilities that were not requested" if self.logprobs else None
        if len(self.logprobs) != len(self.token_ids):
            return "its tokens lack the log-probabilities that are asked for"
        if any(len(token.top_ids) != sampling.logprobs for token in self.logprobs):
            return f"its tokens have not the {sampling.logprobs} likeliest that are asked for"
        return None

    @classmethod
    def from_json(cls, data: Any) -> "ChoiceSoFar":
        """Raises InvalidState."""
        if not isinstance(data, dict):
            raise InvalidState("choices", "has an entry that is no object")
        logprobs = data.get("logprobs")
        if not isinstance(logprobs, list):
            raise InvalidState("logprobs", "is no list")
        text, count = data.get("text", ""), data.get("tokens", 0)
        if not isinstance(text, str):
            raise InvalidState("text", "is no text")
        if type(count) is not int or count < 0:
            raise InvalidState("tokens", "is no number of tokens")
        token_ids = _token_ids(data.get("output_token_ids"))
        choice = cls(token_ids, [*map(_logprobs_from_json, logprobs)], text, count)
        if choice.logprobs and len(choice.logprobs) != len(choice.token_ids):
            raise InvalidState("logprobs", f"has {len(logprobs)} entries for {len(choice.token_ids)} tokens")
        return choice

    def to_json(self) -> JsonObject:
        logprobs = [*map(_logprobs_to_json, self.logprobs)]
        line: JsonObject = {"output_token_ids": self.token_ids, "logprobs": logprobs}
        return line | ({"text": self.text, "tokens": self.tokens_without_ids} if self.text else {})


@dataclass(frozen=True)
class CarryOver:
    """An unfinished row: its choices so far, and what made their tokens."""

    choices: Sequence[ChoiceSoFar]
    made_by: JsonObject | None = None  # a model server's; None: not known

    @property
    def num_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self.choices)

    def misfit(self, wanted: Sequence[SamplingParams]) -> str | None:
        """The reason why a request for these choices cannot continue from it; None if it can."""
        if len(self.choices) != len(wanted):
            return f"it has {len(self.choices)} choices, the request {len(wanted)}"
        pairs = zip(self.choices, wanted, strict=True)
        return next((why for choice, wish in pairs if (why := choice.misfit(wish)) is not None), None)

    def to_json(self, row: int) -> JsonObject:
        return {"row": row, "choices": [one.to_json() for one in self.choices], "made_by": self.made_by}

    @classmethod
    def from_json(cls, line: JsonObject) -> "CarryOver":
        """Raises InvalidState naming the first invalid part."""
        choices, made_by = line.get("choices"), line.get("made_by", "")
        if not isinstance(choices, list):
            raise InvalidState("choices", "is no list")
        if not isinstance(made_by, dict | None):
            raise InvalidState("made_by", "is no object")
        return cls([*map(ChoiceSoFar.from_json, choices)], made_by)


def encode_carry_overs(unfinished: Mapping[int, CarryOver], size_bytes_max: int) -> bytes:
    """One line per row, leaving out rows that exceed the size. The same rows make the same bytes."""
    lines: list[bytes] = []
    left_bytes = size_bytes_max
    for row, carry_over in unfinished.items():
        line = json.dumps(carry_over.to_json(row)).encode() + b"\n"
        if len(line) <= left_bytes:
            lines.append(line)
            left_bytes -= len(line)
    if len(lines) < len(unfinished):
        log.warning(
            "rows have too many tokens to save",
            extra={"action": "carry_over_too_large", "rows": len(unfinished) - len(lines)},
        )
    return b"".join(lines)


def decode_carry_overs(data: bytes) -> dict[int, CarryOver]:
    """Unfinished rows by their number. Raises InvalidState."""
    carry_overs: dict[int, CarryOver] = {}
    for text in data.splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidState("line", f"is no JSON: {error}") from error
        if not isinstance(line, dict):
            raise InvalidState("line", "is no object")
        row = line.get("row")
        if type(row) is not int or row < 0 or row in carry_overs:
            raise InvalidState("row", f"is {row!r}")
        carry_overs[row] = CarryOver.from_json(line)
    return carry_overs


def _token_ids(data: Any) -> list[int]:
    """The engine checks whether the model has these tokens."""
    if not isinstance(data, list) or not all(type(id) is int and id >= 0 for id in data):
        raise InvalidState("output_token_ids", "is not made of token ids")
    return data


def _logprobs_to_json(logprobs: TokenLogprobs) -> list[Any]:
    """Minus infinity, which JSON lacks, becomes null."""
    value, *top = (
        None if number == -math.inf else number for number in (logprobs.logprob, *logprobs.top_logprobs)
    )
    return [value, list(logprobs.top_ids), top]


def _logprobs_from_json(data: Any) -> TokenLogprobs:
    """Raises InvalidState."""
    try:
        value, ids, top = data
        if not all(type(id) is int and id >= 0 for id in ids) or len(ids) != len(top):
            raise ValueError(f"{ids!r} are no {len(top)} token ids")
        return TokenLogprobs(_logprob(value), tuple(ids), tuple(map(_logprob, top)))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidState("logprobs", f"has an entry that is none: {error}") from error


def _logprob(value: Any) -> float:
    if value is None:
        return -math.inf
    if not math.isfinite(value):
        raise ValueError(f"{value!r} is the logarithm of no probability")
    return float(value)
