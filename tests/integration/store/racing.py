"""Actions at the same moment, and waits for a database, without sleeping."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import pytest
from sqlalchemy import text

from nightshift.store.databases.database import Database

T = TypeVar("T")

WAIT_MAX_S = 20.0  # a race that hangs fails instead

both_databases = pytest.mark.databases("sqlite", "postgresql")  # whose locks differ


def at_once(*actions: Callable[[], T]) -> list[T]:
    """Runs actions in threads that start together; their results in order. Raises what one of them raised."""
    start = threading.Barrier(len(actions))

    def run(action: Callable[[], T]) -> T:
        start.wait(WAIT_MAX_S)
        return action()

    with ThreadPoolExecutor(len(actions)) as threads:
        futures = [threads.submit(run, action) for action in actions]
        return [future.result(WAIT_MAX_S) for future in futures]


@contextmanager
def in_background(action: Callable[[], T]) -> Iterator["Future[T]"]:
    """An action that goes on while the block runs; the future has its result."""
    with ThreadPoolExecutor(1) as threads:
        yield threads.submit(action)


def wait_until_blocked(database: Database, *, transactions: int = 1) -> None:
    """Waits until so many transactions wait for another's lock. PostgreSQL only."""
    blocked = text("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")
    pause = threading.Event()
    for _ in range(int(WAIT_MAX_S / 0.01)):
        with database.read() as connection:
            if connection.execute(blocked).scalar_one() >= transactions:
                return
        pause.wait(0.01)  # a lock queue cannot signal; it can only be asked
    raise TimeoutError(f"{transactions} transactions were to wait for a lock")
