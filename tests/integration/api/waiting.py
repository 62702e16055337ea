"""Waits for what is true a moment after an answer."""

from nightshift.store import Store
from tests.faults.kit.processes import wait_for


def wait_until_nothing_is_owed(store: Store) -> None:
    """Until every ring that was sent is out of the outbox."""

    def is_empty() -> bool:
        with store.snapshot() as tx:
            return tx.outbox.length() == 0

    wait_for("the outbox is empty", is_empty)
