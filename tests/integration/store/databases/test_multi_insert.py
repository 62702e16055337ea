"""Rows inserted together are the rows they would be if each had a statement of its own."""

from typing import Any

import pytest
from sqlalchemy import Table, insert, select
from sqlalchemy.exc import IntegrityError

from nightshift.store import tables
from nightshift.store.databases.database import Database
from nightshift.store.databases.multi_insert import insert_rows
from nightshift.testing import STARTS_AT

Row = tuple[Table, dict[str, Any]]


def rows_of_a_request(job_id: str) -> list[Row]:
    shard_id = f"shard_of_{job_id}"
    job = {
        "id": job_id,
        "tenant_id": "default",
        "kind": "online",
        "face": "native",
        "state": "queued",
        "priority": "interactive",
        "priority_rank": 0,
        "spec": {"endpoint": "/v1/completions"},
        "fingerprint": "f",
        "created_at": STARTS_AT,
        "deadline_at": STARTS_AT,
    }
    shard = {
        "id": shard_id,
        "job_id": job_id,
        "tenant_id": "default",
        "kind": "online",
        "model": "demo",
        "shard_no": 0,
        "state": "queued",
        "enqueued_at": STARTS_AT,
        "uri": "",
        "format": "request",
        "start": 0,
    }
    ring = {"kind": "online", "shard_id": shard_id, "priority_rank": 0, "created_at": STARTS_AT}
    return [(tables.job, job), (tables.shard, shard), (tables.outbox, ring)]


def read(database: Database, table: Table) -> list[dict[str, Any]]:
    with database.read() as connection:
        return [dict(row) for row in connection.execute(select(table)).mappings()]


def test_rows_inserted_together_are_those_inserted_one_by_one(database: Database) -> None:
    with database.write() as connection:
        number = insert_rows(connection, *rows_of_a_request("job_a"))
        for table, values in rows_of_a_request("job_b"):
            connection.execute(insert(table), values)

    for table in (tables.job, tables.shard, tables.outbox):
        together, alone = sorted(read(database, table), key=lambda row: row["id"])
        own = {"id", "job_id", "shard_id"}
        assert {name: together[name] for name in together if name not in own} == {
            name: alone[name] for name in alone if name not in own
        }
    assert number == min(row["id"] for row in read(database, tables.outbox))


def test_of_rows_inserted_together_none_is_there_if_one_is_refused(database: Database) -> None:
    *before, (table, ring) = rows_of_a_request("job_a")

    with pytest.raises(IntegrityError), database.write() as connection:
        insert_rows(connection, *before, (table, ring | {"kind": None}))

    assert read(database, tables.job) == []


def test_rows_may_refer_to_those_before_them_only(database: Database) -> None:
    _, (table, shard), ring = rows_of_a_request("job_a")

    with pytest.raises(IntegrityError), database.write() as connection:
        insert_rows(connection, (table, shard), ring)
