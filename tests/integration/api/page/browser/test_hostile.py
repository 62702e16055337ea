"""Texts that want to be scripts, in every field that a user, a model or a machine fills."""

from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

from nightshift.jobs import InputError, JobState, Webhook
from nightshift.objectstore import open_store
from nightshift.process.settings import DataSettings
from nightshift.store import Store, tables
from tests.integration.api.conftest import SharedApi
from tests.integration.api.page.browser import ground

HOSTILE = (
    "<script>window.ran=1</script>",
    '"><img src=x onerror=window.ran=1>',
    "'><svg/onload=window.ran=1>",
    "javascript:window.ran=1",
    "</title></textarea></style><script>window.ran=1</script>",
    "{{ 7 * 7 }}{% for x in y %}${window.ran=1}",
    "<details open ontoggle=window.ran=1>",
    "<a href=javascript:window.ran=1>x</a><form action=//evil.example><button>",
    "<div hx-get=//evil.example hx-trigger=load hx-on:load=window.ran=1></div>",
    "<iframe srcdoc='<script>parent.ran=1</script>'></iframe>",
    "<meta http-equiv=refresh content=0;url=//evil.example><base href=//evil.example>",
    "\u202eevil\u202c\u0000\u001b[31m\r\nSet-Cookie: x=1",
    "line one\nline two\r\n\r\n<b>three</b>",
    "&lt;script&gt;window.ran=1&lt;/script&gt;",
)


@pytest.fixture(scope="module")
def job_id(page_store: Store, shared_api: SharedApi) -> str:
    """The id of a job that is hostile in every field."""
    text = " ".join(HOSTILE).replace("\0", "")  # PostgreSQL and SQLite would refuse it before
    job = ground.running(
        page_store,
        "hostile",
        model=text[:200],
        input=text,
        id_column=text,
        metadata={text[:64]: text},
        webhook=Webhook(text, ()),
        name=text,
        run_date=text,
    )
    data = DataSettings(data_dir=shared_api.allowed.parent / "data")
    objects = open_store(data.resolved_storage_url)
    ground.failed_rows(page_store, objects, job, list(HOSTILE), text)
    objects.close()
    ground.interrupt(page_store, job, '<img src=x onerror="window.ran=1">')
    ground.worker(page_store, '"><svg/onload=window.ran=1>', text, (text,))
    errors = tuple(InputError(text, text, 1, text) for text in HOSTILE)
    ground.end(page_store, job, JobState.FAILED, errors)
    return job.id


def test_no_text_becomes_markup_or_runs(visit, job_id):
    seen = visit("hostile")
    seen.page.on("dialog", lambda dialog: seen.problems.append(dialog.message))
    here = f"/ui/jobs/{job_id}"
    for path in ("/", "/ui/jobs", here, f"{here}?show=errors", f"{here}?show=results"):
        page = seen.open_live(path)
        assert page.url == seen.url + path
        assert page.evaluate("window.ran") is None
        assert page.locator("img, iframe, details, base, [onerror], [onload], [hx-on\\:load]").count() == 0
        assert page.evaluate("document.title").endswith("Nightshift")
    assert page.locator("text=<script>window.ran=1</script>").count() > 0
    assert seen.elsewhere == []
    assert seen.problems == []


def test_filters_are_shown_as_they_were_typed(visit):
    seen = visit("hostile")
    for text in (" ".join(HOSTILE[:6]), " ".join(HOSTILE[6:10]), HOSTILE[10]):
        seen.open(f"/ui/jobs?{urlencode({'name': text})}")
        assert seen.page.input_value("input[name=name]") == text
    assert seen.page.evaluate("window.ran") is None
    assert seen.elsewhere == []
    assert seen.problems == []


def test_an_error_of_ten_megabytes_is_cut_when_it_is_shown(visit, page_store):
    job = ground.running(page_store, "long")
    ground.end(page_store, job, JobState.FAILED)
    error = {"code": "e" * 100_000, "message": "<b>" * 3_500_000, "line": None, "param": None}
    with page_store.database.write() as connection:
        connection.execute(tables.job.update().where(tables.job.c.id == job.id).values(errors=[error]))
    seen = visit("long")

    page = seen.open(f"/ui/jobs/{job.id}")

    expect(page.locator(".problem-card .text")).to_contain_text("more characters)")
    assert len(page.content()) < 100_000
    page = seen.open("/")
    expect(page.locator("#failed-" + job.id)).to_contain_text("more characters)")
    assert len(page.content()) < 100_000
