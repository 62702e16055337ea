"""Waits for what is true a moment after an answer."""

import os
from collections.abc import Sequence
from pathlib import Path

from nightshift.store import Store
from tests.helpers.waiting import wait_for


def wait_until_nothing_is_owed(store: Store) -> None:
    """Waits until every ring that was sent is out of the outbox."""

    def is_empty() -> bool:
        with store.snapshot() as tx:
            return tx.outbox.length() == 0

    wait_for("the outbox is empty", is_empty)


def wait_until_stored(data_dir: Path, names: Sequence[str]) -> None:
    """Waits until a data directory has these objects: others are deleted after the answer."""

    def stored() -> list[str]:
        # Not rglob: on Python 3.11 it fails where a directory goes away meanwhile.
        return sorted(name for _, _, files in os.walk(data_dir / "objects") for name in files)

    wait_for(f"{len(names)} stored objects", lambda: stored() == sorted(names))
