"""Statements about rows that kill their workers: which are suspected, and which are run no more."""

from sqlalchemy import Connection, select

from nightshift.jobs import Suspicion
from nightshift.store import tables

row_crash = tables.row_crash
dead_row = tables.dead_row


class DeadRows:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def suspicion(self, shard_id: str, crashes: int) -> Suspicion:
        """What is known of a shard that lost so many workers. No look is needed where it lost none."""
        if crashes == 0:
            return Suspicion()
        dead = frozenset(
            self._connection.execute(select(dead_row.c.row).where(dead_row.c.shard_id == shard_id)).scalars()
        )
        crashed = self._connection.execute(
            select(row_crash.c.row).where(row_crash.c.shard_id == shard_id).order_by(row_crash.c.row)
        ).scalars()
        return Suspicion(crashes, tuple(row for row in crashed if row not in dead), dead)
