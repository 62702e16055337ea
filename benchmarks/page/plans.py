"""How PostgreSQL finds what a view shows: each of its statements is run once more, to say what it read.

SQLite plans by its indexes alone, whatever there is in the tables: tests hold its plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from nightshift.store import Store, Transaction
from tests.integration.store.databases.recording import recorded

READ_MAX: Final = 12_000
"""Rows of a table that a statement may read from its start, or look at in vain: as many as there are figures
of two days, the most that any view is meant to.
"""


def plans(store: Store, load: Callable[[Transaction], object]) -> dict[str, Any]:
    """How many `queries` a view makes, the `slowest_ms`, and the tables of which one read too much."""
    with store.snapshot() as tx:
        with recorded(store.database) as statements:
            load(tx)
        found = [_explained(tx, *each) for each in statements if each[0].lstrip("( ").startswith("SELECT")]
    slowest_ms = max((each["Execution Time"] + each["Planning Time"] for each in found), default=0.0)
    too_much = {table for each in found for table in _read_too_much(each["Plan"])}
    return {"queries": len(found), "slowest_ms": round(slowest_ms, 1), "too_much": sorted(too_much)}


def _explained(tx: Transaction, statement: str, parameters: Any) -> Mapping[str, Any]:
    asked = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement}"
    [found] = tx._connection.exec_driver_sql(asked, parameters).scalar_one()
    explained: Mapping[str, Any] = found
    return explained


def _read_too_much(step: Mapping[str, Any]) -> Iterator[str]:
    """The tables that this step of a plan, or one below it, reads."""
    in_vain, found = step.get("Rows Removed by Filter", 0), step["Actual Rows"]
    read = in_vain + (found if step["Node Type"] == "Seq Scan" else 0)
    if read * step["Actual Loops"] > READ_MAX:
        yield step.get("Relation Name", step["Node Type"])
    for below in step.get("Plans", ()):
        yield from _read_too_much(below)
