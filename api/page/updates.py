"""Tells open pages that something may have changed. They then ask for what they show.

One task looks for commits, for all pages of the process, and only while there are any. What it tells holds
nothing of what has changed, so it is the same for every tenant.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from nightshift.errors import DatabaseUnavailable, TooManyRequests
from nightshift.store import Store
from nightshift.store.databases.changes import Changes

log = logging.getLogger(__name__)

POLL_S: Final = 0.5  # an open page is at most this and one answer behind
AGES_S: Final = 10.0  # without a change, what is shown still gets older
PAGES_MAX: Final = 500  # open at a time in this process
PAGES_PER_SESSION_MAX: Final = 20
RETRY_AFTER_S: Final = 15


class Updates:
    """The open pages of one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: set[asyncio.Event] = set()
        self._of_session: Counter[str] = Counter()
        self._of_tenant: Counter[str] = Counter()
        self._poller: asyncio.Task[None] | None = None

    @property
    def open_pages(self) -> int:
        return len(self._waiting)

    def check_room(self, session: str, tenant: str) -> None:
        """Raises TooManyRequests."""
        if not self._has_room(session, tenant):
            raise TooManyRequests(
                "Too many pages are open. This one is not updated until another is closed.",
                retry_after_s=RETRY_AFTER_S,
            )

    async def follow(self, session: str, tenant: str) -> AsyncGenerator[None, None]:
        """Yields at once, and then whenever there may be something new.

        Ends at once where there is no room: others may have taken it since it was checked.
        """
        if not self._has_room(session, tenant):
            return
        changed = asyncio.Event()
        changed.set()
        self._waiting.add(changed)
        self._of_session[session] += 1
        self._of_tenant[tenant] += 1
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll(), name="page updates")
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(AGES_S):
                        await changed.wait()
                changed.clear()
                yield
        finally:
            self._waiting.discard(changed)
            self._of_session[session] -= 1
            self._of_tenant[tenant] -= 1
            self._of_session += Counter()  # drops the zeros
            self._of_tenant += Counter()
            if not self._waiting and self._poller is not None:
                self._poller.cancel()
                self._poller = None

    def _has_room(self, session: str, tenant: str) -> bool:
        """A tenant may have as many as it leaves free: its pages never take all the room of others."""
        free = PAGES_MAX - len(self._waiting)
        return self._of_tenant[tenant] < free and self._of_session[session] < PAGES_PER_SESSION_MAX

    async def _poll(self) -> None:
        # A thread of its own: SQLite's connection is for one at a time, also after a cancellation.
        thread = ThreadPoolExecutor(1, "page-updates")
        changes = self._store.changes()
        look = _quietly(changes)
        try:
            while True:
                if await asyncio.get_running_loop().run_in_executor(thread, look):
                    for changed in self._waiting:
                        changed.set()
                await asyncio.sleep(POLL_S)
        finally:
            thread.submit(changes.close)
            thread.shutdown(wait=False)


def _quietly(changes: Changes) -> Callable[[], bool]:
    """Whether something changed; False while the database is away, which the pages see for themselves."""

    def look() -> bool:
        try:
            return changes.seen()
        except DatabaseUnavailable:
            log.warning("open pages are not updated", extra={"action": "page_updates_unknown"})
            return False

    return look
