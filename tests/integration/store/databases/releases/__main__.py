"""`python -m tests.integration.store.databases.releases` writes the dumps of the release in pyproject.toml.

A bulk job has one shard that is done and one that waits, an online request waits, and there are a key, a
file, a worker, a webhook endpoint and a delivery.
"""

import sqlite3
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Final

from nightshift.store import Store
from nightshift.store.databases.database import Database
from nightshift.store.databases.migrate import upgrade
from tests.helpers.fakes import (
    WORKER,
    FakeClock,
    a_delivery,
    a_file,
    a_webhook_endpoint,
    a_worker,
    an_api_key,
    claimed,
    commit_rows,
    completed,
    planned,
    submit_online,
)
from tests.integration import servers
from tests.integration.store.databases.releases import dump_of, this_release

ROWS: Final = 4


def fill(store: Store) -> None:
    job = planned(store, shards=2)
    lease = claimed(store).lease
    commit_rows(store, lease, rows=ROWS)
    completed(store, lease, rows_total=ROWS)
    submit_online(store)
    with store.transaction() as tx:
        tx.workers.register(a_worker(id=WORKER))
        tx.keys.insert(an_api_key())
        tx.files.insert(a_file())
        tx.webhook_endpoints.insert(a_webhook_endpoint())
        tx.deliveries.insert(a_delivery(job))


def make(url: str) -> None:
    with closing(Database(url, timeout_s=600)) as database:
        upgrade(database)
        fill(Store(database, clock=FakeClock()))


def sqlite_dump(folder: Path) -> str:
    path = folder / "nightshift.db"
    make(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        return "\n".join(connection.iterdump())


def postgresql_dump(folder: Path) -> str:
    with servers.postgresql(folder) as server:
        make(server.url())
        command = [str(server.programs / "pg_dump"), "--inserts", "--no-owner", "--no-privileges"]
        address = ["--host", str(server.folder), "--username", "postgres", "postgres"]
        text = subprocess.run([*command, *address], check=True, capture_output=True, text=True).stdout
    lines = text.splitlines()
    return "\n".join(line for line in lines if line and not line.startswith(("--", "\\")))  # `\` is psql's


def main() -> None:
    release = this_release()
    for database, dump in (("sqlite", sqlite_dump), ("postgresql", postgresql_dump)):
        with tempfile.TemporaryDirectory(prefix="ns-") as folder:
            dump_of(release, database).write_text(dump(Path(folder)) + "\n")


if __name__ == "__main__":
    main()
