"""The lists of the page with rows in them: accessible, on a phone, hostile and long texts, acted upon."""

import re

import pytest
from playwright.sync_api import expect

from nightshift.lifecycle.tenants import Administration
from nightshift.store import Store
from nightshift.tenants.audit import Actor
from tests.integration.api.page.browser.conftest import Visit
from tests.integration.api.page.browser.test_hostile import HOSTILE
from tests.integration.api.page.browser.test_views import (
    LISTS,
    LOOKS,
    NARROW,
    WIDE,
    assert_well_made,
    overflow,
)
from tests.integration.api.page.rows import Rows, add_rows

TENANT, HOSTILE_TENANT, LONG_TENANT = "lists", "hostile-lists", "long-lists"
MARKUP = "img, iframe, details, base, [onerror], [onload], [hx-on\\:load], a[href^=javascript]"
KEY = re.compile(r"^ns_live_[a-z0-9]{8}_\w{38}$")


def with_rows(store: Store, tenant: str, *texts: str) -> list[Rows]:
    with store.transaction() as tx:
        Administration(tx, Actor("tests")).ensure_tenant(tenant)
    return [add_rows(store, tenant, text) for text in texts]


def paths_of(rows: Rows) -> list[str]:
    return [
        "/ui/dead_letters",
        f"/ui/dead_letters/{rows.letter}",
        "/ui/deliveries",
        f"/ui/deliveries/{rows.delivery}",
        "/ui/webhooks",
        "/ui/schedules",
        f"/ui/schedules/{rows.schedule_name}",
        "/ui/workers",
        "/ui/workers?show=ended",
        f"/ui/workers/{rows.worker}",
        f"/ui/workers/{rows.ended_worker}",
        "/ui/models",
        "/ui/usage",
        "/ui/keys",
        f"/ui/keys/{rows.key}",
    ]


@pytest.fixture(scope="module")
def rows(page_store: Store) -> Rows:
    return with_rows(page_store, TENANT, "night-batch")[0]


@pytest.mark.parametrize(("scheme", "size"), LOOKS)
def test_no_list_violates_a_rule_of_axe_or_leaves_the_screen_or_the_origin(visit, rows, scheme, size):
    assert_well_made(visit(TENANT, color_scheme=scheme, viewport=size), paths_of(rows), scheme)
    assert set(LISTS) <= set(paths_of(rows))


@pytest.mark.parametrize("num_opened", [1, pytest.param(len(HOSTILE), marks=pytest.mark.exhaustive)])
def test_no_text_of_a_row_becomes_markup_or_runs(visit, page_store, num_opened):
    """Every list shows all texts; the rows of so many are opened as well."""
    tenant = f"{HOSTILE_TENANT}-{num_opened}"
    every = with_rows(page_store, tenant, *(text.replace("\0", "") for text in HOSTILE))
    seen = visit(tenant)
    seen.page.on("dialog", lambda dialog: seen.problems.append(dialog.message))

    singles = {path for rows in every[:num_opened] for path in paths_of(rows)}
    lists = ("/ui/dead_letters", "/ui/schedules", "/ui/webhooks", "/ui/workers", "/ui/models")
    lists += ("/ui/usage", "/ui/keys")
    for path in sorted(singles):
        page = seen.open(path)
        assert page.url == seen.url + path
        assert page.evaluate("window.ran") is None, path
        assert page.locator(MARKUP).count() == 0, path
        assert page.locator("h1").count() == 1, path
        if path in lists:
            expect(page.locator("#live")).to_contain_text("<script>window.ran=1</script>")
    assert singles.issuperset(lists)
    assert seen.elsewhere == []
    assert seen.problems == []


def test_a_text_of_ten_thousand_characters_breaks_no_layout(visit, page_store):
    [rows] = with_rows(page_store, LONG_TENANT, "W" * 10_000)
    seen = visit(LONG_TENANT, viewport=NARROW)
    for path in paths_of(rows):
        seen.open(path)
        for size in (NARROW, WIDE):
            seen.page.set_viewport_size(size)  # type: ignore[arg-type]
            assert overflow(seen.page) == [], path


def test_on_a_phone_the_navigation_shows_where_one_is(visit, rows):
    page = visit(TENANT, viewport=NARROW).open("/ui/keys")

    expect(page.locator("nav [aria-current]")).to_be_in_viewport(ratio=1)


def new_key(seen: Visit) -> str:
    return seen.page.locator(".once code").inner_text()


def test_a_new_key_stays_through_updates_and_a_reload_makes_no_other(visit, page_store):
    with_rows(page_store, "makers")
    seen = visit("makers")
    seen.open("/ui/keys")
    seen.page.fill("input[name=name]", "from the page")
    seen.page.click("text=Create")
    key = new_key(seen)
    assert KEY.match(key)
    expect(seen.page.locator("#live")).to_contain_text("from the page")

    add_rows(page_store, "makers", "another")
    expect(seen.page.locator("#live")).to_contain_text("another")
    assert new_key(seen) == key

    seen.page.reload()
    assert seen.page.url == f"{seen.url}/ui/keys"
    assert seen.page.locator(".once").count() == 0
    assert seen.page.locator("#live >> text=from the page").count() == 1
    assert key not in seen.page.content()


def test_a_worker_is_drained_after_a_question(visit, page_store):
    [rows] = with_rows(page_store, "drainers", "to-drain")
    seen = visit("drainers")
    page = seen.open_live("/ui/workers")
    button = page.get_by_role("button", name=f"Drain {rows.worker}")

    page.once("dialog", lambda dialog: dialog.dismiss())
    button.click()
    with page_store.snapshot() as tx:
        assert not tx.workers.is_drain_requested(rows.worker)

    page.once("dialog", lambda dialog: dialog.accept())
    button.click()
    expect(page.locator(f"#{rows.worker} .badge")).to_have_text("asked to drain")
    expect(page.locator("#said")).to_contain_text("hand back what it has")
