"""Every view in a real browser: accessible, on a phone, by keyboard, without scripts, and from one origin."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page

from api.page import views
from nightshift.fleet.figures import ServiceFigures
from nightshift.jobs import InputError, JobState
from nightshift.jobs.ids import new_id
from nightshift.store import Store
from tests.integration.api.page.browser import ground
from tests.integration.api.page.browser.conftest import Visit

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
TENANT = "seen"
LISTS = [view.path for view in views.VIEWS if "{" not in view.path and view.path not in ("/", "/ui/jobs")]
WRONG = ("/ui/nothing", f"/ui/jobs/{300 * 'x'}", "/ui/jobs?state=sleeping")
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
MORE = pytest.mark.exhaustive
LOOKS = [
    pytest.param("light", NARROW, id="light-narrow"),
    pytest.param("light", WIDE, id="light-wide", marks=MORE),
    pytest.param("dark", NARROW, id="dark-narrow", marks=MORE),
    pytest.param("dark", WIDE, id="dark-wide", marks=MORE),
]


@pytest.fixture(scope="module")
def paths(page_store: Store) -> list[str]:
    """Addresses of the views of jobs, with something in them, and of pages that say what is wrong."""
    job = ground.running(page_store, TENANT, done=10, metadata={"team": "search"})
    ground.progress(page_store, job, rows=10, failed=4, seq=1)
    ground.interrupt(page_store, job, new_id("wrk"))
    failed = ground.running(page_store, TENANT)
    with page_store.transaction() as tx:  # the widest that there is of a job's life
        tx.events.append(failed.id, "job.finalizing", {}, tx.now() + timedelta(minutes=167))
    ground.end(page_store, failed, JobState.FAILED, (InputError("invalid_json", "Line 3 is not JSON.", 3),))
    ground.worker(page_store, "worker_seen", "gpu-1")
    jobs = ("/", "/ui/jobs", "/ui/jobs?state=expired", f"/ui/jobs/{job.id}", f"/ui/jobs/{failed.id}")
    return [*jobs, *WRONG]


@pytest.mark.parametrize(("scheme", "size"), LOOKS)
def test_no_view_violates_a_rule_of_axe_or_leaves_the_screen_or_the_origin(visit, paths, scheme, size):
    assert_well_made(visit(TENANT, color_scheme=scheme, viewport=size), paths, scheme)


@MORE
def test_no_empty_list_violates_a_rule_of_axe_or_leaves_the_screen_or_the_origin(visit):
    assert_well_made(visit("nothing-yet", viewport=NARROW), LISTS, "light")


def assert_well_made(seen: Visit, paths: Sequence[str], scheme: str) -> None:
    """Checks the pages at the visit's size, and that none leaves the screen at the other."""
    size = seen.page.viewport_size
    assert size is not None
    problems = {}
    for path in paths:
        seen.open(path)
        seen.page.set_viewport_size(WIDE if size == NARROW else NARROW)  # type: ignore[arg-type]
        problems[path] = overflow(seen.page)
        seen.page.set_viewport_size(size)
        problems[path] += [*overflow(seen.page), *violations(seen.page, scheme)]

    assert {path: problems for path, problems in problems.items() if problems} == {}
    assert seen.elsewhere == []
    assert seen.problems == []


@pytest.mark.parametrize("size", [pytest.param(WIDE, marks=MORE), NARROW], ids=["wide", "narrow"])
def test_charts_stay_in_their_cards_and_scopes_beside_their_boxes(visit, page_store, size):
    with page_store.transaction() as tx:
        for ago in (30, 15, 0):
            at = tx.now() - timedelta(seconds=ago)
            tx.figures.record(ServiceFigures(at=at, generation_tokens_per_s=10.0, busy_fraction=0.5))
    page = visit(TENANT, viewport=size).open("/")
    page.wait_for_selector(".uplot canvas")
    right = "getBoundingClientRect().right"
    beyond = f"(all) => all.map(e => e.{right} - e.parentElement.{right})"
    assert max(page.eval_on_selector_all(".uplot", beyond)) <= 0.5

    page.goto(page.url + "ui/keys")
    boxes = "(all) => all.map(e => e.getBoundingClientRect().width)"
    assert max(page.eval_on_selector_all(".checks input", boxes)) <= 24


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=MORE)])
def test_the_form_to_sign_in_is_accessible_and_leads_in(visit, scheme):
    seen = visit(color_scheme=scheme, viewport=NARROW)
    seen.page.context.clear_cookies()
    seen.open("/")

    assert violations(seen.page, scheme) == []
    assert overflow(seen.page) == []
    seen.page.fill("#key", seen.key)
    seen.page.click("button.primary")
    seen.page.wait_for_selector("nav[aria-label=Main]")


def violations(page: Page, scheme: str) -> list[str]:
    """Violations of all rules; in the dark of those about colours, since nothing else is different there."""
    rules = {"light": None, "dark": ["color-contrast", "link-in-text-block"]}[scheme]
    page.evaluate(AXE)
    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    report = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{rule['id']}: {node['target']} {node['failureSummary']}"
        for rule in report["violations"]
        for node in rule["nodes"]
    ]


def overflow(page: Page) -> list[str]:
    """The problem, if the page is wider than the screen."""
    width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return [f"{width} px wider than the screen"] if width > 0 else []


def test_the_keyboard_reaches_everything_and_shows_where_it_is(visit, paths):
    page = visit(TENANT).open("/ui/jobs")

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    names = []
    for _ in range(8):
        page.keyboard.press("Tab")
        names.append(
            page.evaluate("document.activeElement.name || document.activeElement.textContent.trim()")
        )
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert names[:6] == ["state", "kind", "priority", "model", "name", "Filter"]
    assert names[6].startswith("job_")


def test_the_policy_runs_nothing_that_is_written_in_a_page(visit):
    seen = visit()
    seen.open("/").evaluate(
        """() => new Promise((done) => {
            document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.ran = 1'>");
            document.querySelector("img[src=x]").addEventListener("error", done);
            const script = document.createElement("script");
            script.textContent = "window.ran = 2";
            document.body.append(script);
            document.body.insertAdjacentHTML("beforeend", "<p id=styled style='color: red'>x</p>");
        })"""
    )

    assert seen.page.evaluate("window.ran") is None
    assert seen.page.evaluate("getComputedStyle(document.getElementById('styled')).color") != "rgb(255, 0, 0)"
    assert seen.problems
    assert seen.page.evaluate("htmx.config.allowEval") is False


@pytest.mark.exhaustive
def test_the_reference_of_the_api_comes_from_here_and_keeps_no_key(visit):
    seen = visit()
    page = seen.open("/docs")
    page.click(".authorize")
    page.fill(".modal-ux input", seen.key)
    page.click(".modal-ux button.authorize")
    page.click(".modal-ux .btn-done")
    page.locator(".opblock-summary-path", has_text="/healthz").click()
    page.wait_for_selector("text=Whether the process answers at all")

    assert seen.elsewhere == []
    assert seen.problems == []
    kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert seen.key not in kept


def test_without_scripts_one_signs_in_filters_and_acts(visit, page_store):
    job = ground.running(page_store, "plain")
    seen = visit("plain", java_script_enabled=False)
    seen.page.context.clear_cookies()
    page = seen.open("/ui/jobs")
    page.fill("#key", seen.key)
    page.click("button.primary")

    page.select_option("select[name=state]", "running")
    page.click("text=Filter")
    page.click(f"a[href$='{job.id}']")
    page.click("text=Pause")

    assert page.url.endswith(f"/ui/jobs/{job.id}")
    assert page.locator(".summary .badge").inner_text() == "paused"
    assert ground.fetch(page_store, job).paused_at is not None


def test_light_or_dark_is_kept(visit):
    page = visit(color_scheme="light").open("/")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.reload()

    assert dark != light
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


def acted(seen: Visit, job_id: str, button: str) -> str:
    """The message after a click."""
    seen.open(f"/ui/jobs/{job_id}")
    seen.page.click(f".actions >> text={button}")
    return seen.page.locator(".said p").first.inner_text()


def test_a_job_is_paused_resumed_prioritised_and_cancelled(visit, page_store):
    job = ground.running(page_store, "acting")
    seen = visit("acting")
    seen.page.on("dialog", lambda dialog: dialog.accept())

    assert acted(seen, job.id, "Pause").startswith("The job is paused")
    assert acted(seen, job.id, "Resume") == "The job goes on."
    seen.page.select_option("#priority", "background")
    seen.page.click("text=Change")
    seen.page.wait_for_selector("text=The job's class is changed.")
    assert ground.fetch(page_store, job).priority == "background"
    assert acted(seen, job.id, "Cancel").startswith("The job is told to stop")
    assert ground.fetch(page_store, job).stop_reason == "cancelled"
