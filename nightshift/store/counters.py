"""Statements about counters: sums over the whole service that survive its processes."""

from collections.abc import Mapping

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from nightshift.store import tables

counter = tables.counter


class Counters:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, name: str, amount: int) -> None:
        """Add to a counter, created on first use."""
        if amount == 0 or self._increment(name, amount):
            return
        try:
            with self._connection.begin_nested():
                self._connection.execute(insert(counter).values(name=name, value=amount))
        except IntegrityError:  # another process was first
            self._increment(name, amount)

    def values(self) -> Mapping[str, int]:
        """All counters by name."""
        rows = self._connection.execute(select(counter).order_by(counter.c.name))
        return {row.name: row.value for row in rows}

    def _increment(self, name: str, amount: int) -> bool:
        counted = update(counter).where(counter.c.name == name).values(value=counter.c.value + amount)
        return self._connection.execute(counted).rowcount == 1
