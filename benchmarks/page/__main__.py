"""How long the page's queries take with very much to show, how soon a view is painted and an open page up to
date, and what reconnects leave behind.

    python -m benchmarks.page                       # all of it: 100,000 jobs, and as many rows of each list
    python -m benchmarks.page reads --database postgresql
    python -m benchmarks.page browser --rows 1000   # needs Chromium: infra/test_tools.sh
    python -m benchmarks.page reconnects --reconnects 1000
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from api.app import create_app
from api.services import AppSettings
from benchmarks.page.browsing import browse
from benchmarks.page.filling import TENANT, database, fill
from benchmarks.page.reading import view_times
from benchmarks.page.reconnecting import reconnect
from nightshift.settings import ApiSettings, DataSettings, LocationSettings, QueueSettings
from nightshift.store import Store
from nightshift.store.databases.database import Database
from nightshift.store.databases.migrate import upgrade
from nightshift.tenants.keys import Scope
from tests.integration.api.conftest import insert_key
from tests.integration.api.serving import serving
from tests.integration.servers import free_port

PARTS: Final = ("reads", "browser", "reconnects")
NO_REDIS: Final = "redis://127.0.0.1:1/0"  # the page reads the database alone


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    asked.add_argument("part", nargs="?", choices=PARTS)
    asked.add_argument("--jobs", type=int, default=100_000)
    asked.add_argument("--rows", type=int, default=100_000, help="of each other list")
    asked.add_argument("--reconnects", type=int, default=10_000)
    asked.add_argument("--database", choices=("sqlite", "postgresql"))
    options = asked.parse_args()
    chosen = (options.part,) if options.part else PARTS
    if "reads" in chosen:
        for dialect in (options.database,) if options.database else ("sqlite", "postgresql"):
            _show(_reads(dialect, options.jobs, options.rows))
    if "browser" in chosen:
        _show(_browsed(options.jobs, options.rows))
    if "reconnects" in chosen:
        _show(_reconnected(options.reconnects))


def _show(found: Iterator[dict[str, Any]]) -> None:
    for row in found:
        print(json.dumps(row), flush=True)


def _reads(dialect: str, jobs: int, rows: int) -> Iterator[dict[str, Any]]:
    with database(dialect) as found:
        store = Store(found)
        filled = fill(store, jobs, rows)
        for row in view_times(store, filled):
            yield {"database": dialect, "jobs": jobs, "rows": rows, **row}


def _browsed(jobs: int, rows: int) -> Iterator[dict[str, Any]]:
    with _data() as (data, store):
        filled = fill(store, jobs, rows)
        key = insert_key(store, TENANT, scopes=frozenset(Scope))
        queue = QueueSettings(redis_url=NO_REDIS)
        app = create_app(AppSettings(data, queue, LocationSettings(), ApiSettings()))
        with serving(app) as url:
            yield from browse(store, url, key, filled)


def _reconnected(count: int) -> Iterator[dict[str, Any]]:
    with _data() as (data, store):
        key = insert_key(store, TENANT, scopes=frozenset(Scope))
        yield reconnect(data.data_dir, NO_REDIS, key, count, free_port())


@contextmanager
def _data() -> Iterator[tuple[DataSettings, Store]]:
    with tempfile.TemporaryDirectory(prefix="ns-page-") as folder:
        data = DataSettings(data_dir=Path(folder))
        store = Store(Database(data.resolved_database_url))
        upgrade(store.database)
        yield data, store
        store.close()


if __name__ == "__main__":
    main()
