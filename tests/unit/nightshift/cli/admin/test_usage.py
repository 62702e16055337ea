from datetime import date, timedelta

import pytest

from nightshift.jobs import Usage
from nightshift.tenants.usage import first_day, usage_day


@pytest.fixture
def today(store) -> date:
    """Today's date, in an installation with usage today and forty days before."""
    with store.transaction() as tx:
        day = usage_day(tx.now())
        tx.usage.add("acme", "demo", day, 3, 1, Usage(30, 12, 6, 5))
        tx.usage.add("other", "demo", day, 1, 0, Usage(1, 1, 0))
        tx.usage.add("acme", "old", day - timedelta(days=40), 1, 0, Usage(1, 1, 0))
    return day


def test_usage_of_thirty_days_is_a_table(nightshift, today):
    heading, *rows = nightshift("usage").out.splitlines()

    assert heading.split()[:5] == ["DAY", "TENANT", "MODEL", "SUCCEEDED", "FAILED"]
    assert rows[0].split() == [str(today), "acme", "demo", "3", "1", "30", "6", "12", "5", "42"]
    assert [row.split()[1] for row in rows] == ["acme", "other"]


def test_usage_is_asked_for_by_tenant_model_and_days(nightshift, today):
    day = str(today - timedelta(days=40))

    shown = nightshift(
        "usage", "--tenant", "acme", "--model", "old", "--since", day, "--until", day, "--json"
    )

    assert [(used["day"], used["total_tokens"]) for used in shown.json] == [(day, 2)]
    assert nightshift("usage", "--tenant", "unknown", "--json").json == []


@pytest.mark.parametrize(("last", "first"), [("2026-03-01", "2026-01-31"), ("0001-01-05", "0001-01-01")])
def test_thirty_days_end_with_the_last_one(last: str, first: str):
    assert first_day(date.fromisoformat(last), 30) == date.fromisoformat(first)
