"""Sessions of the page: how they begin, what they may do, and everything that ends them."""

import hashlib
from datetime import datetime, timedelta
from http.cookies import SimpleCookie

import httpx
import pytest
from sqlalchemy import ColumnElement

from api.app import create_app
from api.page import sessions
from api.page.requests import COOKIE
from api.page.sessions import PER_KEY_MAX
from api.services.services import AppSettings
from nightshift.lifecycle.tenants import Administration
from nightshift.process.settings import ApiSettings, LocationSettings
from nightshift.store import Store, tables
from nightshift.tenants.audit import Actor
from nightshift.tenants.keys import ApiKey, Scope, key_id, new_key
from tests.integration.api.conftest import KeyMaker
from tests.integration.api.page.conftest import browser, csrf_of, sign_in
from tests.integration.api.page.test_views import new_tenant
from tests.integration.api.serving import serving

FORM = 'action="/ui/sign_in"'


def row_of(client: httpx.Client) -> ColumnElement[bool]:
    """The condition for the client's row in the table of sessions."""
    return tables.page_session.c.token_sha256 == hashlib.sha256(client.cookies[COOKIE].encode()).hexdigest()


def age(store: Store, client: httpx.Client, seconds: float, column: str = "used_at") -> datetime:
    """Puts this time of the client's session that far back; returns it."""
    then = store.now() - timedelta(seconds=seconds)
    with store.database.write() as connection:
        connection.execute(tables.page_session.update().where(row_of(client)).values({column: then}))
    return then


def is_signed_in(client: httpx.Client) -> bool:
    answer = client.get("/ui/jobs")
    assert answer.status_code == 200
    return FORM not in answer.text


@pytest.mark.parametrize("path", ["/", "/ui/jobs", "/ui/jobs?state=failed", "/ui/sign_in"])
def test_without_a_session_every_page_is_the_form_to_sign_in(visitor, path):
    answer = visitor.get(path)

    assert answer.status_code == 200
    assert FORM in answer.text
    assert visitor.head(path).status_code == 200


def test_a_key_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(visitor, page_key):
    answer = sign_in(visitor, page_key(), next="/ui/jobs?state=failed")

    (cookie,) = SimpleCookie(answer.headers["set-cookie"]).values()
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs?state=failed")
    assert cookie.key == COOKIE
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "strict", "/")
    assert not cookie["secure"]
    assert is_signed_in(visitor)


def test_under_https_and_a_path_the_cookie_is_for_them_alone(data, valkey, make_key):
    api = ApiSettings(base_url="https://example.com/nightshift/")
    with serving(create_app(AppSettings(data, valkey.settings, LocationSettings(), api))) as url:
        with browser(url) as client:
            form = client.get("/").text
            answer = sign_in(client, make_key(), next="/ui/jobs")

    (cookie,) = SimpleCookie(answer.headers["set-cookie"]).values()
    assert 'action="/nightshift/ui/sign_in"' in form
    assert answer.headers["location"] == "/nightshift/ui/jobs"
    assert (bool(cookie["secure"]), cookie["path"]) == (True, "/nightshift/")


def test_the_database_has_neither_the_key_nor_the_cookie(visitor, page_key, page_store):
    key = page_key()
    sign_in(visitor, key)

    with page_store.database.read() as connection:
        rows = connection.execute(tables.page_session.select()).all()
    assert any(row.key_id == key_id(key) for row in rows)
    assert not [row for row in rows if visitor.cookies[COOKIE] in row or key in row]


WRONG = ["", "ns_live_wrong", new_key(), "é" * 60, "x" * 100_000]


def test_a_key_that_is_not_valid_signs_nobody_in_and_after_some_none_is_looked_at(base_url, make_key):
    more = [new_key() for _ in range(sessions.OF_ADDRESS.amount - len(WRONG))]
    with browser(base_url) as client:
        answers = [sign_in(client, key, next="/ui/jobs") for key in WRONG + more]
        refused = sign_in(client, make_key())

    for answer in answers:
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert 'value="/ui/jobs"' in answer.text
        assert 'role="alert"' in answer.text
    assert refused.status_code == 429
    assert "set-cookie" not in refused.headers


def test_behind_a_proxy_the_clients_address_counts_and_not_the_proxys(base_url, make_key):
    """uvicorn believes a proxy at 127.0.0.1, and those that FORWARDED_ALLOW_IPS names."""
    with browser(base_url) as client:
        client.headers["x-forwarded-for"] = "198.51.100.7, 203.0.113.1"  # the first is what the client says
        for _ in range(sessions.OF_ADDRESS.amount):
            assert sign_in(client, new_key()).status_code == 401
        refused = sign_in(client, make_key())
        client.headers["x-forwarded-for"] = "198.51.100.7, 203.0.113.2"
        let_in = sign_in(client, make_key())

    assert (refused.status_code, let_in.status_code) == (429, 303)


@pytest.mark.parametrize(
    "elsewhere",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example/",
        "/v1/jobs",
        "/ui/../x\r\ny: z",
        "javascript:x",
        "http://[",  # no URL at all
        "//[::1",
    ],
)
def test_a_sign_in_leads_to_no_other_site(visitor, page_key, elsewhere):
    assert sign_in(visitor, page_key(), next=elsewhere).headers["location"] in ("/", "/ui/../x")


def test_a_form_of_another_site_signs_nobody_in(visitor, page_key):
    for headers in (
        *({"origin": origin} for origin in ("https://evil.example", "null", "http://[", "//[::1")),
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"referer": "https://evil.example/form"},  # of a browser that sends neither
    ):
        answer = visitor.post("/ui/sign_in", data={"key": page_key()}, headers=headers)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


def test_after_signing_out_the_cookie_is_worth_nothing(signed_in):
    token = signed_in.cookies[COOKIE]
    answer = signed_in.post("/ui/sign_out", data={"csrf": csrf_of(signed_in)})
    signed_in.cookies.set(COOKIE, token)

    assert answer.status_code == 303
    assert not is_signed_in(signed_in)


def test_an_action_takes_the_token_of_its_own_session_and_from_its_form_alone(signed_in_with):
    client, other = signed_in_with(), signed_in_with()
    path, token = "/ui/webhooks/any/disable", csrf_of(client)
    plain, field = {"content-type": "text/plain"}, f"csrf={token}"

    refused = (
        client.post(path, data={"csrf": csrf_of(other)}),
        client.post(f"{path}?{field}"),
        client.post(path, headers={"x-csrf-token": token}),
        client.post(path, content=field, headers=plain),
        client.post(path, json={"csrf": token}),
        client.post(path, data={"csrf": [token, "0"]}),
        client.post(path, data={"csrf": token}, headers={"referer": "https://evil.example/"}),
        client.post(path, data={"csrf": token}, headers={"sec-fetch-site": "same-site"}),
    )

    assert [answer.status_code for answer in refused] == [403] * len(refused)
    assert client.post(path, data={"csrf": token}).status_code == 404
    assert client.post(path, files={"csrf": (None, token)}).status_code == 404


def test_signing_out_needs_the_token_of_the_session(signed_in):
    assert signed_in.post("/ui/sign_out", data={"csrf": "0" * 64}).status_code == 403
    assert is_signed_in(signed_in)


@pytest.fixture
def session(visitor: httpx.Client, page_key: KeyMaker, page_store: Store) -> tuple[httpx.Client, ApiKey]:
    """One of a tenant with a row, and its key."""
    key = page_key(new_tenant(page_store))
    sign_in(visitor, key)
    assert is_signed_in(visitor)
    with page_store.snapshot() as tx:
        stored = tx.keys.find(key_id(key) or "")
    assert stored is not None
    return visitor, stored


@pytest.mark.parametrize("is_rotated", [False, True])
def test_a_session_ends_when_its_key_is_revoked_or_rotated(session, page_store, is_rotated):
    client, key = session
    with page_store.transaction() as tx:
        if is_rotated:
            Administration(tx, Actor("tests")).rotate_key(key, timedelta())
        else:
            tx.keys.revoke(key.id, tx.now())

    assert not is_signed_in(client)


def test_a_session_rests_while_its_tenant_is_disabled_and_ends_when_it_is_deleted(session, page_store):
    client, key = session
    for disabled in (True, False):
        with page_store.transaction() as tx:
            Administration(tx, Actor("tests")).update_tenant(key.tenant_id, disabled=disabled)
        assert is_signed_in(client) is not disabled

    with page_store.transaction() as tx:
        Administration(tx, Actor("tests")).delete_tenant(key.tenant_id)
    assert not is_signed_in(client)


@pytest.mark.parametrize("column", ["used_at", "created_at"])
def test_a_session_ends_some_time_after_the_last_click_and_after_its_beginning(signed_in, page_store, column):
    api = ApiSettings()
    lasts_s = {"used_at": api.page_idle_s, "created_at": api.page_session_s}[column]

    age(page_store, signed_in, lasts_s - 60, column)
    assert is_signed_in(signed_in)
    age(page_store, signed_in, lasts_s, column)
    assert not is_signed_in(signed_in)


def test_a_click_keeps_a_session_and_an_open_page_does_not(signed_in, page_store):
    before = age(page_store, signed_in, 3600)

    def used_at() -> object:
        with page_store.database.read() as connection:
            return connection.execute(tables.page_session.select().where(row_of(signed_in))).one().used_at

    signed_in.get("/ui/jobs", headers={"page-live": "1"})
    assert used_at() == before
    signed_in.get("/ui/jobs")
    assert used_at() != before


def test_a_key_has_some_sessions_and_with_one_more_the_oldest_ends(shared_api, page_key):
    key = page_key()
    clients = [browser(shared_api.url) for _ in range(PER_KEY_MAX + 1)]
    for client in clients:
        sign_in(client, key)

    assert [is_signed_in(client) for client in clients] == [False] + [True] * PER_KEY_MAX
    for client in clients:
        client.close()


def test_ended_sessions_are_deleted_with_the_next_sign_in(signed_in_with, page_store):
    signed_in = signed_in_with()
    age(page_store, signed_in, 365 * 86_400)
    signed_in_with()

    with page_store.database.read() as connection:
        assert connection.execute(tables.page_session.select().where(row_of(signed_in))).all() == []


def test_a_key_without_the_scope_to_read_sees_no_view(signed_in_with):
    client = signed_in_with(scopes=frozenset({Scope.SUBMIT}))

    answer = client.get("/ui/jobs")

    assert answer.status_code == 403
    assert "scope &#39;read&#39;" in answer.text
    assert 'href="/ui/jobs" ' not in answer.text


def test_a_link_on_another_site_leads_to_the_page_and_not_to_the_form(visitor):
    answer = visitor.get("/ui/jobs", headers={"sec-fetch-site": "cross-site"})

    assert answer.status_code == 200
    assert 'http-equiv="refresh"' in answer.text
    assert FORM not in answer.text


def test_an_open_page_whose_session_has_ended_is_told_to_load_itself_again(signed_in, page_store):
    with page_store.database.write() as connection:
        connection.execute(tables.page_session.delete().where(row_of(signed_in)))
    answer = signed_in.get("/ui/jobs", headers={"hx-request": "true", "page-live": "1"})

    assert (answer.status_code, answer.headers["hx-refresh"]) == (401, "true")
    assert signed_in.get("/ui/updates").status_code == 401
