"""GET /v1/usage: a tenant sees its own; administrators see a tenant's."""

from datetime import date, timedelta

import httpx
import pytest

from nightshift.jobs import Usage
from nightshift.store import Store
from nightshift.tenants.usage import usage_day
from tests.integration.api.asking import CHAT, chat
from tests.integration.api.conftest import HttpMaker
from tests.integration.api.fake_worker import CHAT_MODEL


@pytest.fixture
def today(store: Store) -> date:
    """After a count for today, and one for forty days before."""
    with store.transaction() as tx:
        day = usage_day(tx.now())
        tx.usage.add("acme", "demo", day, 3, 1, Usage(30, 12, 6, 5))
        tx.usage.add("acme", "old/demo", day - timedelta(days=40), 1, 0, Usage(1, 1, 0))
    return day


@pytest.fixture
def acme(http_of: HttpMaker) -> httpx.Client:
    return http_of("acme")


def test_a_tenant_sees_its_own_usage_of_thirty_days(acme, http, today):
    shown = acme.get("/v1/usage").json()

    assert shown["data"] == [
        {
            "id": f"{today}/demo",
            "object": "usage",
            "tenant": "acme",
            "day": str(today),
            "model": "demo",
            "succeeded": 3,
            "failed": 1,
            "prompt_tokens": 30,
            "cached_tokens": 6,
            "completion_tokens": 12,
            "reasoning_tokens": 5,
            "total_tokens": 42,
        }
    ]
    assert http.get("/v1/usage").json()["data"] == []  # another tenant's


def test_usage_is_asked_for_by_days_and_model_in_pages(acme, today):
    since = str(today - timedelta(days=40))
    first = acme.get("/v1/usage", params={"since": since, "limit": 1}).json()
    rest = acme.get("/v1/usage", params={"since": since, "limit": 1, "after": first["last_id"]}).json()
    of_old = acme.get("/v1/usage", params={"since": since, "until": since, "model": "old/demo"}).json()

    assert [used["model"] for used in first["data"] + rest["data"]] == ["demo", "old/demo"]
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert of_old["data"] == rest["data"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("since", "yesterday"), ("since", "2999-01-01"), ("until", "1"), ("after", "x"), ("limit", "1001")],
)
def test_a_parameter_that_is_wrong_is_refused_by_name(shared_http, name, value):
    refused = shared_http.get("/v1/usage", params={name: value})

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


def test_administrators_see_a_tenants_usage(admin, acme, today):
    admin.post("/v1/tenants", json={"name": "acme"})

    assert admin.get("/v1/tenants/acme/usage").json() == acme.get("/v1/usage").json()
    assert admin.get("/v1/tenants/unknown/usage").status_code == 404


def test_an_answer_is_counted(http, worker):
    told = http.post(CHAT, json=chat()).json()["usage"]

    [used] = http.get("/v1/usage").json()["data"]

    assert (used["model"], used["succeeded"], used["failed"]) == (CHAT_MODEL, 1, 0)
    for name in ("prompt_tokens", "completion_tokens"):
        assert used[name] == told[name]
