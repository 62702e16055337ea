"""An empty database whose commits wait for the disk, without a service around it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.reliability.services import Database
from nightshift.store import Store
from nightshift.store.databases import database as store_database
from nightshift.store.databases.migrate import upgrade
from tests.integration import servers


@contextmanager
def store_on(database: Database) -> Iterator[Store]:
    with tempfile.TemporaryDirectory(prefix="ns-bench-") as name:
        folder = Path(name)
        if database == "sqlite":
            yield from _opened(f"sqlite:///{folder / 'nightshift.db'}")
            return
        with servers.postgresql(folder, durable=True) as server:
            yield from _opened(server.url())


def _opened(url: str) -> Iterator[Store]:
    store = Store(store_database.Database(url))
    try:
        upgrade(store.database)
        yield store
    finally:
        store.close()
