"""Debian's Chromium, one for the tests of a file, on the API that they share."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from nightshift.store import Store
from nightshift.tenants.keys import Scope
from tests.integration.api.conftest import SharedApi, insert_key

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# The first has no window around its pages, which takes more than half of all that the other does.
PROGRAMS = ("chromium-headless-shell", "chromium")
TIMEOUT_MS = 120_000  # a slow machine takes half a minute for the reference of the API


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """While it is open an event loop runs in this thread, which other files' tests cannot have."""
    path = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if path is None:
        pytest.skip("no Chromium here: infra/test_tools.sh installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@dataclass
class Visit:
    """A window of a browser that is signed in, and what it did that no page of ours may do."""

    page: Page
    url: str
    key: str
    elsewhere: list[str] = field(default_factory=list)  # requests to other origins
    problems: list[str] = field(default_factory=list)  # refused by the policy, thrown by a script, dialogs

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def open_live(self, path: str) -> Page:
        """Opens a view, and waits until it follows what happens."""
        self.open(path)
        self.page.wait_for_selector('#following[data-state="live"]')
        return self.page


VisitMaker = Callable[..., Visit]


@pytest.fixture
def visit(chromium: Browser, shared_api: SharedApi, page_store: Store) -> Iterator[VisitMaker]:
    """Makes visits, each in a browser of its own; of a tenant, with options of the context."""
    contexts: list[BrowserContext] = []

    def make(tenant_id: str = "default", *, key: str | None = None, **options: object) -> Visit:
        key = key or insert_key(page_store, tenant_id, scopes=frozenset(Scope))
        contexts.append(chromium.new_context(**options))  # type: ignore[arg-type]
        contexts[-1].set_default_timeout(TIMEOUT_MS)
        signed_in = contexts[-1].request.post(
            f"{shared_api.url}/ui/sign_in", form={"key": key}, max_redirects=0
        )
        assert signed_in.status == 303
        return watched(contexts[-1], shared_api.url, key)

    yield make
    for context in contexts:
        context.close()


def watched(context: BrowserContext, url: str, key: str) -> Visit:
    made = Visit(context.new_page(), url, key)
    origin = urlsplit(url).netloc

    def note_request(url_of_request: str) -> None:
        parts = urlsplit(url_of_request)
        if parts.scheme not in ("data", "blob") and parts.netloc != origin:
            made.elsewhere.append(url_of_request)

    context.on("request", lambda request: note_request(request.url))
    made.page.on("pageerror", lambda error: made.problems.append(str(error)))
    made.page.on(
        "console",
        lambda message: (
            made.problems.append(message.text) if "Content Security Policy" in message.text else None
        ),
    )
    return made
