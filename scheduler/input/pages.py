"""Pages of shards that planning makes of an input, each recorded in one transaction, or its refusal."""

from collections.abc import Sequence
from dataclasses import dataclass

from nightshift.jobs import InputError, NewShard
from nightshift.jobs.planning import PlanCursor


@dataclass(frozen=True, kw_only=True)
class ShardPage:
    """Shards that are recorded together, the next after those of the job's cursor."""

    model: str | None  # None as long as there are no shards
    shards: Sequence[NewShard]
    rows_total: int | None = None  # exact, of a validated file: with its last page
    rows_estimated: int | None = (
        None  # in this page, from a sample; exact in a validated file's, if it has several
    )
    tokens_estimated: int = 0  # in prompts, by the input's bytes
    next: PlanCursor | None = None  # where the next page begins; None: this is the last


class Refused(Exception):
    """The input cannot be run as it is, and trying again would not help."""

    def __init__(self, *errors: InputError) -> None:
        super().__init__("; ".join(error.message for error in errors))
        self.errors = errors
