"""How many open pages are told of changes."""

import asyncio
from typing import cast

import pytest

from api.page.updates import PAGES_MAX, PAGES_PER_SESSION_MAX, Updates
from nightshift.errors import TooManyRequests
from nightshift.store import Store


class StillStore:
    """Nothing changes."""

    def changes(self) -> "StillStore":
        return self

    def seen(self) -> bool:
        return False

    def close(self) -> None:
        pass


def test_pages_that_are_opened_at_once_get_no_more_room_than_there_is() -> None:
    async def opened_at_once() -> tuple[int, int, int]:
        updates = Updates(cast(Store, StillStore()))
        for _ in range(PAGES_PER_SESSION_MAX + 5):
            updates.check_room("session", "tenant")  # before any of them follows
        pages = [updates.follow("session", "tenant") for _ in range(PAGES_PER_SESSION_MAX + 5)]
        told = [await anext(page, "ended") for page in pages]
        with pytest.raises(TooManyRequests):
            updates.check_room("session", "tenant")
        updates.check_room("another session", "tenant")
        open_pages = updates.open_pages
        for page in pages:
            await page.aclose()
        updates.check_room("session", "tenant")
        return told.count(None), open_pages, updates.open_pages

    assert asyncio.run(opened_at_once()) == (PAGES_PER_SESSION_MAX, PAGES_PER_SESSION_MAX, 0)


def test_the_pages_of_one_tenant_leave_room_for_those_of_others() -> None:
    async def opened() -> tuple[int, int]:
        updates = Updates(cast(Store, StillStore()))
        pages = [updates.follow(f"session {number}", "greedy") for number in range(PAGES_MAX)]
        told = [await anext(page, "ended") for page in pages]
        with pytest.raises(TooManyRequests):
            updates.check_room("session of its own", "greedy")
        others = [updates.follow("session", "another") for _ in range(PAGES_PER_SESSION_MAX)]
        told_others = [await anext(page, "ended") for page in others]
        for page in (*pages, *others):
            await page.aclose()
        updates.check_room("session of its own", "greedy")
        return told.count(None), told_others.count(None)

    assert asyncio.run(opened()) == (PAGES_MAX // 2, PAGES_PER_SESSION_MAX)
