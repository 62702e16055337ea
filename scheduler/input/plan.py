"""The outcome of planning: a plan, or the reasons why there is none. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from nightshift.jobs import InputError, NewShard


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One of the row counts is known."""

    model: str
    shards: Sequence[NewShard]
    rows_total: int | None = None  # exact; of a validated file
    rows_estimated: int | None = None  # from a sample
    tokens_estimated: int = 0  # of the prompts, by the input's bytes


class Refused(Exception):
    """The input cannot be run as it is, and trying again would not help."""

    def __init__(self, *errors: InputError) -> None:
        super().__init__("; ".join(error.message for error in errors))
        self.errors = errors
