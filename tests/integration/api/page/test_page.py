"""What all views share: headers, parts, errors, other tenants, and what is no browser."""

import re

import httpx
import pytest

from api.page import assets, views
from nightshift.tenants.keys import Scope
from tests.integration.api.asking import bulk_under
from tests.integration.api.conftest import SharedApi
from tests.integration.api.page.conftest import SignedInMaker

PATHS = [view.path for view in views.VIEWS if "{" not in view.path]


@pytest.fixture
def administrator(signed_in_with: SignedInMaker) -> httpx.Client:
    """Who may see every view."""
    return signed_in_with(scopes=frozenset(Scope))


@pytest.mark.parametrize("path", PATHS)
def test_no_view_may_load_or_run_what_is_not_its_own(administrator: httpx.Client, path: str) -> None:
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
def test_an_open_page_gets_the_live_part_alone(administrator: httpx.Client, path: str) -> None:
    part = administrator.get(path, headers={"hx-request": "true"}).text

    assert "<html" not in part
    assert without_times(part).strip() in without_times(administrator.get(path).text)


def without_times(html: str) -> str:
    """What was heard of 4 s ago may have been heard of 5 s ago a moment later."""
    return re.sub(r"\d+", "", html)


@pytest.mark.parametrize("path", PATHS)
def test_a_client_of_the_api_gets_the_envelope(administrator: httpx.Client, path: str) -> None:
    answer = administrator.get(path, headers={"accept": "application/json"})

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unknown_url"


def test_what_is_no_page_says_so_in_a_page(signed_in: httpx.Client, visitor: httpx.Client) -> None:
    assert signed_in.get("/ui/nothing").status_code == 404
    assert "There is no such page" in signed_in.get("/ui/nothing").text
    assert "Sign in" in visitor.get("/ui/nothing").text
    assert signed_in.get("/ui/jobs?name=%00").status_code == 400
    assert signed_in.get("/ui/jobs?state=sleeping").status_code == 400
    assert signed_in.get("/ui/jobs?after=job_unknown").status_code == 404
    assert signed_in.get("/ui/jobs?name=" + 301 * "x").status_code == 400


def test_everything_that_a_page_names_is_there_and_may_be_kept(visitor: httpx.Client) -> None:
    for name, asset in assets.assets().items():
        answer = visitor.get(f"/ui/static/{assets.version()}/{name}", headers={"accept-encoding": "gzip"})
        assert answer.status_code == 200
        assert answer.content == asset.content
        assert "immutable" in answer.headers["cache-control"]
    assert visitor.get("/favicon.ico").headers["content-type"] == "image/x-icon"
    assert visitor.get("/ui/static/older/page.css").headers["cache-control"] == "no-cache"
    for path in ("..%2fpage.py", "..%2f..%2fpage.py", "nothing.css", "vendor"):
        assert visitor.get(f"/ui/static/{assets.version()}/{path}").status_code == 404


def test_another_tenants_jobs_are_not_shown(
    shared_http: httpx.Client, shared_api: SharedApi, signed_in_with: SignedInMaker
) -> None:
    job_id = shared_http.post("/v1/jobs", json=bulk_under(shared_api.allowed / "shown")).json()["id"]
    ours, theirs = signed_in_with(), signed_in_with("other")

    assert job_id in ours.get("/ui/jobs").text
    assert job_id not in theirs.get("/ui/jobs").text
    assert theirs.get(f"/ui/jobs?after={job_id}").status_code == 404
    assert job_id not in theirs.get("/").text
