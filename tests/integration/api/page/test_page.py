"""Properties that all views share: headers, parts, errors, other tenants, clients other than browsers."""

import re

import httpx
import pytest

from api.page import assets, views
from nightshift.jobs import Face
from nightshift.jobs.ids import batch_id
from nightshift.tenants.keys import Scope
from tests.helpers.fakes import planned
from tests.integration.api.page.conftest import SignedInMaker

PATHS = [view.path for view in views.VIEWS if "{" not in view.path]


@pytest.fixture
def administrator(signed_in_with: SignedInMaker) -> httpx.Client:
    """Who may see every view."""
    return signed_in_with(scopes=frozenset(Scope))


@pytest.mark.parametrize("path", PATHS)
def test_no_view_may_load_or_run_what_is_not_its_own(administrator, path):
    answer = administrator.get(path)

    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "form-action 'self'" in policy
    assert answer.headers["cache-control"] == "no-store"
    assert "<style" not in answer.text
    for name, value in re.findall(r'\s([\w:-]+)="([^"]*)"', "".join(re.findall(r"<\w[^>]*>", answer.text))):
        assert not name.startswith(("style", "on", "hx-on")), name
        if name in ("href", "src", "action", "formaction", "hx-get", "hx-post", "data-updates", "data-from"):
            assert re.match(r"/(?!/)|#|\?|$", value), value


@pytest.mark.parametrize("path", PATHS)
def test_an_open_page_gets_the_live_part_alone_and_a_client_of_the_api_the_envelope(administrator, path):
    part = administrator.get(path, headers={"hx-request": "true"}).text
    of_client = administrator.get(path, headers={"accept": "application/json"})

    assert "<html" not in part
    assert without_times(part).strip() in without_times(administrator.get(path).text)
    assert (of_client.status_code, of_client.json()["error"]["code"]) == (404, "unknown_url")


def without_times(html: str) -> str:
    """The page without ages: what was heard of now may have been heard of 5 s ago a moment later."""
    return re.sub(r"\d+", "", re.sub(r"(<time[^>]*>)[^<]*", r"\1", html))


def test_what_is_no_page_says_so_in_a_page(signed_in, visitor):
    assert signed_in.get("/ui/nothing").status_code == 404
    assert "There is no such page" in signed_in.get("/ui/nothing").text
    assert "Sign in" in visitor.get("/ui/nothing").text
    assert signed_in.get("/ui/jobs?name=%00").status_code == 400
    assert signed_in.get("/ui/jobs?state=sleeping").status_code == 400
    assert signed_in.get("/ui/jobs?after=job_unknown").status_code == 404
    assert signed_in.get("/ui/jobs?name=" + 301 * "x").status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "may_be_gone"),
    [
        ("GET", "/nothing/here", False),
        ("GET", "/ui/nothing", False),
        ("GET", "/ui/jobs/job_unknown", True),
        ("GET", "/ui/jobs?state=sleeping", False),
        ("POST", "/ui/jobs", False),
        ("POST", "/ui/webhooks/any/disable", False),
    ],
)
def test_a_page_says_what_is_wrong_and_asks_for_nothing_again(signed_in, method, path, may_be_gone):
    shown = signed_in.request(method, path).text

    assert 'role="alert"' in shown
    assert ("It may have been deleted" in shown) is may_be_gone
    assert "hx-get" not in shown
    assert "/ui/updates" not in shown


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("POST", "/", 405, "This address does not take POST requests."),
        ("POST", "/ui/jobs", 405, "This address does not take POST requests."),
        ("DELETE", "/ui/jobs/job_1", 405, "This address does not take DELETE requests."),
        ("GET", "/ui/sign_out", 404, "There is no such page."),
        ("GET", "/jobs", 404, "There is no such page."),
    ],
)
def test_what_the_framework_refuses_is_a_page_to_a_browser_and_the_envelope_to_a_client(
    signed_in, method, path, status, message
):
    shown = signed_in.request(method, path)
    told = signed_in.request(method, path, headers={"accept": "application/json"})

    assert (shown.status_code, told.status_code) == (status, status)
    assert message in shown.text
    assert 'aria-label="Main"' in shown.text
    assert shown.headers["content-security-policy"].startswith("default-src 'self';")
    assert told.json()["error"]["code"] == {404: "unknown_url", 405: "method_not_allowed"}[status]
    assert signed_in.request(method, "/v1/nothing").json()["error"]["code"] == "unknown_url"
    if status == 405:
        assert shown.headers["allow"] == told.headers["allow"] == "GET"


def test_a_form_of_too_many_fields_is_refused_in_a_page(signed_in):
    answer = signed_in.post("/ui/webhooks/any/disable", data={f"field{n}": "" for n in range(60)})

    assert answer.status_code == 400
    assert "Too many fields" in answer.text
    assert 'aria-label="Main"' in answer.text


def test_everything_that_a_page_names_is_there_and_may_be_kept(visitor):
    for name, asset in assets.assets().items():
        answer = visitor.get(f"/ui/static/{assets.version()}/{name}", headers={"accept-encoding": "gzip"})
        assert answer.status_code == 200
        assert answer.content == asset.content
        assert "immutable" in answer.headers["cache-control"]
    assert visitor.get("/favicon.ico").headers["content-type"] == "image/x-icon"
    assert visitor.get("/ui/static/older/page.css").headers["cache-control"] == "no-cache"
    for path in ("..%2fpage.py", "..%2f..%2fpage.py", "nothing.css", "vendor"):
        assert visitor.get(f"/ui/static/{assets.version()}/{path}").status_code == 404


def test_a_batch_is_found_by_its_own_id(signed_in, page_store):
    job = planned(page_store, face=Face.OPENAI)
    shown = signed_in.get(f"/ui/jobs/{batch_id(job.id)}")

    assert shown.status_code == 200
    assert f"<dd>{batch_id(job.id)}</dd>" in shown.text
    assert f'action="/ui/jobs/{job.id}/cancel"' in shown.text
    assert signed_in.get(f"/ui/jobs/{batch_id('job_unknown')}").status_code == 404
