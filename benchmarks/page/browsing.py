"""What a person waits for, in Chromium: until a view is painted, and until an open page shows what was
committed. The API is the real one, under uvicorn, in a thread of this process.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import update

from benchmarks.page.filling import Filled
from nightshift.store import Store, tables

OPENED: Final = 10  # times each
CHANGED: Final = 20  # times
ARGUMENTS: Final = ("--no-sandbox", "--disable-gpu")

# Since the navigation began, by the browser's own clock.
_PAINTED: Final = """async () => {
    const paint = () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime;
    while (paint() === undefined) await new Promise(requestAnimationFrame);
    return paint();
}"""
# Resolves with the browser's time once the counter shows the text.
_SHOWN: Final = """(text) => new Promise((shown) => {
    const look = () => document.querySelector(".count")?.textContent === text
        ? shown(performance.timeOrigin + performance.now()) : requestAnimationFrame(look);
    look();
})"""


def browse(store: Store, url: str, key: str, filled: Filled) -> Iterator[dict[str, Any]]:
    """Seconds, as an administrator; nothing is in the browser's cache at each first opening of a view."""
    from playwright.sync_api import sync_playwright

    job = f"/ui/jobs/{filled.job}"
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        for view in ("/", "/ui/jobs", job, "/ui/dead_letters", "/ui/deliveries", "/ui/workers", "/ui/usage"):
            painted = []
            for _ in range(OPENED):
                context = browser.new_context()
                page = context.new_page()
                context.add_cookies(_signed_in(browser, url, key))
                page.goto(url + view, wait_until="commit")
                painted.append(page.evaluate(_PAINTED) / 1000)
                context.close()
            yield {"first paint of": view, **_spread(painted)}
        context = browser.new_context()
        context.add_cookies(_signed_in(browser, url, key))
        page = context.new_page()
        page.goto(url + job)
        page.wait_for_selector('#following[data-state="live"]')
        lags = []
        for number in range(CHANGED):
            page.evaluate(f"void (window.seen = ({_SHOWN})('{901 + number} of 1,000'))")
            time.sleep(0.1 + 0.037 * number)  # commits come at any moment of the poll
            with store.database.write() as connection:
                connection.execute(
                    update(tables.job)
                    .where(tables.job.c.id == filled.job)
                    .values(rows_succeeded=901 + number)
                )
            committed_s = time.time()
            lags.append(page.evaluate("window.seen") / 1000 - committed_s)
        yield {"from a commit until it is shown": job, **_spread(lags)}
        browser.close()


_cookies: list[Any] = []


def _signed_in(browser: Any, url: str, key: str) -> list[Any]:
    """The cookie of one session for all of it."""
    if not _cookies:
        context = browser.new_context()
        page = context.new_page()
        page.goto(url + "/")
        page.fill("#key", key)
        page.click("button.primary")
        page.wait_for_selector("nav[aria-label=Main]")
        _cookies.extend(context.cookies())
        context.close()
    return _cookies


def _spread(seconds: list[float]) -> dict[str, float]:
    return {"median_s": round(statistics.median(seconds), 3), "longest_s": round(max(seconds), 3)}
