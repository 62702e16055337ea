"""Statements about usage: sums per tenant, model and day, written with the results that they count."""

from collections.abc import Sequence
from datetime import date
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, and_, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from nightshift.jobs import Usage
from nightshift.store import tables
from nightshift.store.databases.database import Statements, from_row
from nightshift.tenants.usage import DailyUsage

usage = tables.usage

_SUMS: Final = (
    "succeeded", "failed", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"
)  # fmt: skip
_Key = tuple[str, str, str]  # tenant, model, day


def _adding(new: postgresql.Insert | sqlite.Insert) -> postgresql.Insert | sqlite.Insert:
    sums = {name: usage.c[name] + new.excluded[name] for name in _SUMS}
    return new.on_conflict_do_update(index_elements=["tenant_id", "day", "model"], set_=sums)


_ADD: Final = {  # built once: a worker waits while SQLAlchemy builds a statement
    "postgresql": _adding(postgresql.insert(usage)),
    "sqlite": _adding(sqlite.insert(usage)),
}


class UsageSums(Statements):
    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._added: dict[_Key, list[int]] = {}

    def add(self, of_tenant: str, model: str, day: date, succeeded: int, failed: int, tokens: Usage) -> None:
        """Counts results that this transaction records. Written at its end (`write`)."""
        amounts = (
            succeeded, failed,
            tokens.prompt_tokens, tokens.cached_tokens, tokens.completion_tokens, tokens.reasoning_tokens,
        )  # fmt: skip
        before = self._added.setdefault((of_tenant, model, day.isoformat()), [0] * len(_SUMS))
        for place, amount in enumerate(amounts):
            before[place] += amount

    def write(self) -> None:
        """Writes what was added: after all else, and in one order, so that transactions which count for the
        same tenants wait for each other shortly and never in a circle.
        """
        for tenant, model, day in sorted(self._added):
            self._upsert(tenant, model, day, self._added[tenant, model, day])
        self._added.clear()

    def list(
        self,
        tenant_id: str | None,
        *,
        limit: int,
        since: date,
        until: date,
        model: str | None = None,
        after: tuple[date, str] | None = None,
    ) -> Sequence[DailyUsage]:
        """One tenant's or all tenants', of these days (both included), newest day first, then by model.

        `after`: day and model of the last one on the previous page of one tenant.
        """
        last = until if after is None else min(until, after[0])
        wanted = select(usage).where(usage.c.day >= since.isoformat(), usage.c.day <= last.isoformat())
        if tenant_id is not None:
            wanted = wanted.where(usage.c.tenant_id == tenant_id)
        if model is not None:
            wanted = wanted.where(usage.c.model == model)
        if after is not None:
            wanted = wanted.where(_is_after(*after))
        ordered = wanted.order_by(usage.c.day.desc(), usage.c.model, usage.c.tenant_id).limit(limit)
        return self._all(ordered, _to_usage)

    def _upsert(self, tenant: str, model: str, day: str, amounts: Sequence[int]) -> None:
        new = {"tenant_id": tenant, "model": model, "day": day, **dict(zip(_SUMS, amounts, strict=True))}
        self._execute(_ADD[self._connection.dialect.name], new)


def _is_after(day: date, model: str) -> ColumnElement[bool]:
    """Whether a row follows in the list, where days descend and models ascend."""
    on_day = usage.c.day == day.isoformat()
    return or_(usage.c.day < day.isoformat(), and_(on_day, usage.c.model > model))


def _to_usage(row: Row[Any]) -> DailyUsage:
    return from_row(DailyUsage, row, day=date.fromisoformat(row.day))
