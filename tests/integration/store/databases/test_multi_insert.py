"""Rows inserted together are the rows they would be if each had a statement of its own."""

from typing import Any

import pytest
from sqlalchemy import Table, insert, select
from sqlalchemy.exc import IntegrityError

from nightshift.store import Store, tables
from nightshift.store.databases.database import Database
from nightshift.store.databases.multi_insert import PreparedRows, insert_groups
from tests.helpers.fakes import STARTS_AT, submit_online
from tests.integration.store.databases.recording import recorded

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
        [number] = insert_groups(connection, [rows_of_a_request("job_a")])
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
        insert_groups(connection, [[*before, (table, ring | {"kind": None})]])

    assert read(database, tables.job) == []


def test_each_of_many_rows_has_its_values_and_the_number_of_its_last(database: Database) -> None:
    names = [f"job_{number:02d}" for number in range(40)]
    secrets = [None, b"", b"\x00\xff'\\"]
    specs = [{"a": 'é"\\\u2028', "b": [1e-7, 2**60, None, True]}, {}, {"deep": {"er": [[]]}}]
    groups = [
        [
            (
                table,
                values | {"webhook_secret": secrets[n % 3], "spec": specs[n % 3]}
                if table is tables.job
                else values,
            )
            for table, values in rows_of_a_request(name)
        ]
        for n, name in enumerate(names)
    ]

    with database.write() as connection:
        numbers = insert_groups(connection, groups)

    jobs = {row["id"]: row for row in read(database, tables.job)}
    assert [jobs[name]["spec"] for name in names] == [specs[n % 3] for n in range(40)]
    assert [jobs[name]["webhook_secret"] for name in names] == [secrets[n % 3] for n in range(40)]
    rings = {row["id"]: row["shard_id"] for row in read(database, tables.outbox)}
    assert [rings[number] for number in numbers] == [f"shard_of_{name}" for name in names]


def test_no_groups_are_no_statement(database: Database) -> None:
    with database.write() as connection:
        assert insert_groups(connection, []) == []


def test_accepting_a_request_takes_a_statement_that_psycopg_keeps_parsed(store: Store) -> None:
    with recorded(store.database) as statements:
        submit_online(store)

    assert {len(parameters) for _, parameters in statements} <= set(range(51))  # psycopg's limit is 50


def test_many_rows_of_a_table_are_those_inserted_one_by_one(database: Database) -> None:
    job, shard, _ = (values for _, values in rows_of_a_request("job_a"))
    other_types = {"end": None, "suspects": [1, 2], "is_isolating": True, "lease_until": STARTS_AT}
    shards = [{**shard, **other_types, "id": f"shard_{number}", "shard_no": number} for number in range(3)]
    with database.write() as connection:
        connection.execute(insert(tables.job), job)
        PreparedRows(database.dialect, tables.shard, shards[:2]).insert(connection)
        connection.execute(insert(tables.shard), shards[2])

    first, *others = read(database, tables.shard)
    assert len(others) == 2
    for number, other in enumerate(others, start=1):
        assert other == {**first, "id": f"shard_{number}", "shard_no": number}
