"""A tenant's usage: requests and tokens, by model and day."""

from dataclasses import dataclass
from datetime import UTC, date, datetime


@dataclass(frozen=True, kw_only=True)
class DailyUsage:
    """One tenant's results of one model on one day.

    A row or request counts on the day its result is recorded, once, however often it was begun. Rows that
    ended without a result of a model (cancelled, expired) are not counted.
    """

    tenant_id: str
    model: str
    day: date  # UTC, by the database's clock
    succeeded: int  # rows and requests
    failed: int
    prompt_tokens: int
    cached_tokens: int  # prompt tokens read from the prefix cache
    completion_tokens: int
    reasoning_tokens: int  # of the completion tokens, those of thoughts and their markers

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


def usage_day(at: datetime) -> date:
    """The day on which a result of this time counts."""
    return at.astimezone(UTC).date()


def first_day(last: date, days: int) -> date:
    """The first of so many days that end with this one."""
    return date.fromordinal(max(1, last.toordinal() - days + 1))
