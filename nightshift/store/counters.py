"""Statements about counters: sums over the whole service that survive its processes."""

from collections.abc import Mapping

from sqlalchemy import insert, select, update

from nightshift.store import tables
from nightshift.store.databases.database import Statements

counter = tables.counter


class Counters(Statements):
    def add(self, name: str, amount: int) -> None:
        """Adds to a counter, created on first use."""
        if amount == 0 or self._increment(name, amount):
            return
        if not self._inserts(insert(counter).values(name=name, value=amount)):
            self._increment(name, amount)  # another process was first

    def values(self) -> Mapping[str, int]:
        """All counters by name."""
        rows = self._execute(select(counter).order_by(counter.c.name))
        return {row.name: row.value for row in rows}

    def _increment(self, name: str, amount: int) -> bool:
        counted = update(counter).where(counter.c.name == name).values(value=counter.c.value + amount)
        return self._changes_one(counted)
