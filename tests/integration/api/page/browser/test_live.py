"""An open page: it follows what happens, loses nothing of what one does there, and knows when to stop."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from playwright.sync_api import Page, Route, expect

from nightshift.jobs import JobState
from nightshift.store import tables
from nightshift.tenants.keys import key_id
from tests.integration.api.page.browser import ground
from tests.integration.api.page.browser.conftest import TIMEOUT_MS
from tests.integration.api.page.test_views import new_tenant

expect.set_options(timeout=TIMEOUT_MS)

# As a browser does when another tab is chosen.
HIDDEN = """(isHidden) => {
    Object.defineProperty(document, "hidden", {value: isHidden, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_updates_keep_the_focus_the_place_and_what_is_typed(visit, page_store):
    jobs = [ground.running(page_store, "typing") for _ in range(25)]
    page = visit("typing", viewport={"width": 1280, "height": 500}).open_live("/ui/jobs")
    page.fill("input[name=name]", "half a na")
    link = page.locator(f"tr[id='{jobs[3].id}'] a")
    link.focus()
    before = link.bounding_box()
    page.evaluate("window.isTheSame = true")

    ground.progress(page_store, jobs[3], rows=40, failed=5)

    expect(page.locator(f"tr[id='{jobs[3].id}'] .count")).to_have_text("40 of 100")
    assert page.evaluate("window.scrollY") > 0
    after = link.bounding_box()
    assert before is not None
    assert after is not None
    assert after["y"] == pytest.approx(before["y"], abs=2)  # what is looked at stays where it is
    assert page.evaluate("window.isTheSame") is True, "it was not loaded again"
    assert page.evaluate("document.activeElement.textContent") == jobs[3].id
    assert page.input_value("input[name=name]") == "half a na"


def test_a_button_that_an_update_takes_away_leaves_the_keyboard_where_its_view_begins(visit, page_store):
    job = ground.running(page_store, "taken")
    page = visit("taken").open_live(f"/ui/jobs/{job.id}")
    page.on("dialog", lambda dialog: dialog.accept())
    page.locator(".actions >> text=Cancel").focus()

    page.keyboard.press("Enter")

    expect(page.locator("#said")).to_contain_text("The job is told to stop")
    expect(page.locator(".actions >> text=Cancel")).to_have_count(0)
    expect(page.locator("#main")).to_be_focused()


def test_updates_keep_what_is_chosen_until_it_is_sent(visit, page_store):
    job = ground.running(page_store, "choosing", done=10)
    page = visit("choosing").open_live(f"/ui/jobs/{job.id}")
    page.select_option("#priority", "background")

    ground.progress(page_store, job, rows=20, seq=1)
    expect(page.locator(".count")).to_have_text("30 of 100")
    expect(page.locator("#priority")).to_have_value("background")
    page.click("text=Change")

    expect(page.locator("#said")).to_contain_text("class is changed")
    assert ground.fetch(page_store, job).priority == "background"
    ground.progress(page_store, job, rows=10, seq=2)
    expect(page.locator(".count")).to_have_text("40 of 100")
    expect(page.locator("#priority")).to_have_value("background")


def click_with_a_late_answer(page: Page, button: str, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Click, and be answered after an update has taken the button away; `meanwhile` runs before the server
    is asked.
    """

    def answer_after_the_update(route: Route) -> None:
        meanwhile()
        answer = route.fetch()
        expect(page.locator(f".actions >> text={button}")).to_have_count(0)
        route.fulfill(response=answer)

    page.route(f"**/{button.lower()}", answer_after_the_update)
    page.click(f"text={button}")


def test_what_came_of_an_action_is_said_though_an_update_took_its_button_away(visit, page_store):
    done, refused = (ground.running(page_store, "overtaken") for _ in range(2))
    seen = visit("overtaken")
    seen.page.on("dialog", lambda dialog: dialog.accept())

    click_with_a_late_answer(seen.open_live(f"/ui/jobs/{done.id}"), "Cancel")
    expect(seen.page.locator("#said")).to_contain_text("The job is told to stop")

    page = seen.open_live(f"/ui/jobs/{refused.id}")
    click_with_a_late_answer(page, "Pause", lambda: ground.end(page_store, refused, JobState.FAILED))
    expect(page.locator("#problem")).to_contain_text("Cannot pause a job")


def test_a_new_job_appears_in_both_of_two_tabs_and_an_action_in_one_in_the_other(visit, page_store):
    first = visit("tabs")
    other = first.page.context.new_page()
    first.open_live("/ui/jobs")
    other.goto(f"{first.url}/ui/jobs")
    other.wait_for_selector('#following[data-state="live"]')
    expect(first.page.locator(".empty")).to_contain_text("There are no jobs yet")

    job = ground.running(page_store, "tabs")
    for page in (first.page, other):
        expect(page.locator(f"tr[id='{job.id}'] .badge")).to_have_text("running")
    other.goto(f"{first.url}/ui/jobs/{job.id}")
    other.click("text=Pause")

    expect(first.page.locator(f"tr[id='{job.id}'] .badge")).to_have_text("paused")


def test_a_job_that_is_deleted_while_it_is_open_is_said_to_be_gone(visit, page_store):
    job = ground.running(page_store, "gone")
    page = visit("gone").open_live(f"/ui/jobs/{job.id}")
    ground.end(page_store, job, JobState.FAILED)
    expect(page.locator(".badge").first).to_have_text("failed")

    ground.delete(page_store, ground.fetch(page_store, job))

    expect(page.locator("#live .big")).to_contain_text("No such Job object")


def test_a_session_that_ends_under_an_open_page_leads_to_the_form_once(visit, page_store):
    seen = visit("ending")
    page = seen.open_live("/ui/jobs")
    loads: list[str] = []
    page.on("framenavigated", lambda frame: loads.append(frame.url))
    with page_store.transaction() as tx:
        tx.keys.revoke(key_id(seen.key) or "", tx.now())

    expect(page.locator("#key")).to_be_visible()
    expect(page.locator("input[name=next]")).to_have_value("/ui/jobs")
    ground.running(page_store, "ending")  # something changes once more
    assert page.locator("#following, [hx-get]").count() == 0  # nothing here asks for anything again
    assert loads == [f"{seen.url}/ui/jobs"]


def test_a_hidden_tab_asks_for_nothing_and_is_up_to_date_when_it_is_seen(visit, page_store):
    job = ground.running(page_store, "hidden", done=10)
    page = visit("hidden").open_live(f"/ui/jobs/{job.id}")
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/ui/updates")):
        page.evaluate(HIDDEN, True)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    seen = visit("hidden").open_live(f"/ui/jobs/{job.id}")

    ground.progress(page_store, job, rows=20, seq=1)
    expect(seen.locator(".count")).to_have_text("30 of 100")
    assert requests == []
    page.evaluate(HIDDEN, False)

    expect(page.locator(".count")).to_have_text("30 of 100")


@pytest.mark.parametrize("offset_days", [-400, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_a_browser_whose_clock_is_off_shows_the_same_durations(visit, page_store, offset_days):
    job = ground.running(page_store, f"clock{abs(offset_days)}")
    with page_store.database.write() as connection:
        then = page_store.now() - timedelta(hours=5, minutes=1)
        connection.execute(tables.job.update().where(tables.job.c.id == job.id).values(created_at=then))
    seen = visit(f"clock{abs(offset_days)}")
    seen.page.context.add_init_script(
        f"const now = Date.now; Date.now = () => now() + {offset_days * 86_400_000};"
    )
    page = seen.open_live("/ui/jobs")

    assert abs(page.evaluate("Date.now()") / 1000 - page_store.now().timestamp()) > 86_400
    expect(page.locator(f"tr[id='{job.id}'] time")).to_have_text("5 h ago")
    assert re.fullmatch(r"\d+ h ago", page.locator("time").first.inner_text())


def test_a_form_that_makes_something_is_sent_once_however_often_its_button_is_pressed(visit, page_store):
    tenant = new_tenant(page_store)
    page = visit(tenant).open("/ui/keys")
    page.fill("#main input[name=name]", "pressed twice")

    page.get_by_role("button", name="Create").dblclick()

    expect(page.locator(".new-key code, main code").first).to_contain_text("ns_live_")
    with page_store.snapshot() as tx:
        made = [key for key in tx.keys.page(tenant, limit=10) if key.name == "pressed twice"]
    assert len(made) == 1
    page.go_back()
    expect(page.get_by_role("button", name="Create")).to_be_enabled()
