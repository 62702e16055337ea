"""What a worker leaves of a row it could not finish, for the next one to go on with: one line of JSON a row.

    {"row": 7, "choices": [{"output_token_ids": […], "logprobs": […]}, …], "made_by": {…}}

A line of an earlier version has `output_token_ids` at the top: one choice, made by nobody knows what.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nightshift.jobs import JsonObject
from workers.engine import TokenLogprobs
from workers.engine.resume import logprobs_from_json, logprobs_to_json


@dataclass
class ChoiceSoFar:
    """What has been generated of one of a request's choices."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # of each token, if they are asked for

    def add(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        self.token_ids.extend(token_ids)
        self.logprobs.extend(logprobs)

    def copy(self) -> "ChoiceSoFar":
        return ChoiceSoFar(list(self.token_ids), list(self.logprobs))


@dataclass(frozen=True)
class CarryOver:
    """An unfinished row: its choices so far, and what made their tokens."""

    choices: Sequence[ChoiceSoFar]
    made_by: JsonObject | None = None  # a model server's; None: not known

    @property
    def is_empty(self) -> bool:
        """Nothing would be lost without it."""
        return self.num_tokens == 0

    @property
    def num_tokens(self) -> int:
        return sum(len(choice.token_ids) for choice in self.choices)

    def to_json(self, row: int) -> JsonObject:
        choices = [
            {"output_token_ids": choice.token_ids, "logprobs": [*map(logprobs_to_json, choice.logprobs)]}
            for choice in self.choices
        ]
        return {"row": row, "choices": choices, "made_by": self.made_by}

    @classmethod
    def from_json(cls, line: JsonObject) -> "CarryOver":
        if "choices" not in line:
            return cls([ChoiceSoFar(line["output_token_ids"])])
        choices = [
            ChoiceSoFar(choice["output_token_ids"], [*map(logprobs_from_json, choice["logprobs"])])
            for choice in line["choices"]
        ]
        return cls(choices, line["made_by"])
