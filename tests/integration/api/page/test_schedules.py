"""The schedules of the page: next runs, last results, the late ones, and what can be done to one."""

import re
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from api.page.views import schedules
from nightshift.schedules.plans import ScheduleProblem
from nightshift.schedules.runs import RunState
from nightshift.store import Store
from nightshift.tenants.keys import Scope
from tests.helpers.fakes import a_spec, planned
from tests.integration.api.page.browser import ground
from tests.integration.api.page.conftest import SignedInMaker
from tests.integration.api.page.rows import add_run, add_schedule
from tests.integration.api.page.test_views import act, new_tenant

NEXT = datetime(2030, 6, 1, 23, 30, tzinfo=UTC)


@pytest.fixture
def tenant(page_store: Store) -> str:
    return new_tenant(page_store)


@pytest.fixture
def client(tenant: str, signed_in_with: SignedInMaker) -> httpx.Client:
    return signed_in_with(tenant, scopes=frozenset({Scope.READ, Scope.SUBMIT}))


def words(client: httpx.Client, path: str) -> str:
    """The text of the page's live part."""
    _, _, html = client.get(path).text.partition('id="live"')
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_a_schedule_is_listed_with_its_next_run_by_its_own_clock_and_its_last_result(
    client, tenant, page_store
):
    with page_store.transaction() as tx:
        plan = {"time_zone": "Europe/Berlin", "cron": "30 1 * * *", "window": "01:00-06:00"}
        made = add_schedule(tx, tenant, plan=plan, next_at=NEXT)
        add_run(tx, made, tx.now() - timedelta(hours=2), RunState.FAILED, job_id="job_x", reason="Too many")

    listed = words(client, "/ui/schedules")
    assert f"{made.name} active 30 1 * * * Europe/Berlin within 01:00-06:00" in listed
    assert "Sun 2 Jun 01:30" in listed
    assert "failed 2 h ago Too many job_x" in listed
    one = words(client, f"/ui/schedules/{made.name}")
    assert [at in one for at in ("Sun 2 Jun 01:30", "Mon 3 Jun 01:30", "Tue 4 Jun 01:30")] == [True] * 3


def test_a_schedule_that_follows_another_names_it_and_has_no_times(client, tenant, page_store):
    with page_store.transaction() as tx:
        first = add_schedule(tx, tenant)
        second = add_schedule(tx, tenant, plan={"cron": None, "after": first.name}, next_at=None)
        lost = add_schedule(tx, tenant, plan={"cron": None, "after": "nowhere"}, next_at=None)

    listed = words(client, "/ui/schedules")
    assert f"{second.name} active after {first.name} none none yet" in listed
    assert f"{lost.name} problem It follows &#39;nowhere&#39;, which there is not" in listed


def test_what_keeps_a_schedule_from_running_is_said(client, tenant, page_store):
    problem = ScheduleProblem("key_revoked", "Apply the plan again with another key.")
    with page_store.transaction() as tx:
        made = add_schedule(tx, tenant, problem=problem)

    assert f"{made.name} problem Apply the plan again with another key." in words(client, "/ui/schedules")
    one = words(client, f"/ui/schedules/{made.name}")
    assert "What is wrong key_revoked Apply the plan again with another key." in one


@pytest.mark.parametrize("minutes", [0, 2])
def test_a_schedule_whose_run_has_not_begun_is_late(client, tenant, page_store, minutes):
    with page_store.transaction() as tx:
        ago = tx.now() - timedelta(minutes=minutes)
        unseen = add_schedule(tx, tenant, next_at=ago)
        waiting = add_schedule(tx, tenant)
        add_run(tx, waiting, ago, RunState.WAITING, check_at=ago)
        queued = add_schedule(tx, tenant)  # for the end of another, however long that takes
        add_run(tx, queued, ago, RunState.WAITING, check_at=None)

    listed = words(client, "/ui/schedules")
    state = "late" if minutes else "active"
    assert [f"{made.name} {state} " in listed for made in (unseen, waiting)] == [True, True]
    assert f"{queued.name} active " in listed


def test_a_schedule_whose_job_will_not_be_ready_in_time_is_late(client, tenant, page_store):
    job = ground.running(page_store, tenant, done=10, completion_window_s=60)
    with page_store.transaction() as tx:
        made = add_schedule(tx, tenant)
        add_run(tx, made, tx.now(), RunState.SUBMITTED, job_id=job.id)
        later = tx.now() + timedelta(seconds=50)  # a tenth of the rows took almost all of the time
        shown = schedules._rows(tx, [made], later)

    assert [(row.state, row.last.is_late) for row in shown] == [("late", True)]
    assert f"/ui/jobs/{job.id}" in client.get("/ui/schedules").text


def test_a_run_whose_job_waits_for_its_window_is_paused_until_then(client, tenant, page_store):
    with page_store.snapshot() as tx:
        opens_at = (tx.now() + timedelta(hours=3)).replace(minute=0)
    window = f"{opens_at:%H}:00-{opens_at:%H}:30"
    job = planned(page_store, tenant_id=tenant, spec=a_spec(window=window, completion_window_s=7 * 86_400))
    with page_store.transaction() as tx:
        made = add_schedule(tx, tenant, plan={"time_zone": "UTC"})
        add_run(tx, made, tx.now(), RunState.SUBMITTED, job_id=job.id)

    said = f"paused until {opens_at:%a} {opens_at.day} {opens_at:%b %H:%M}"
    assert said in words(client, "/ui/schedules")
    assert said in words(client, f"/ui/schedules/{made.name}")


def test_a_schedule_is_paused_resumed_and_run_now(client, tenant, page_store):
    with page_store.transaction() as tx:
        made = add_schedule(tx, tenant)
    path = f"/ui/schedules/{made.name}"

    assert act(client, f"{path}/pause").headers["location"] == path
    assert "paused" in words(client, path)
    assert act(client, f"{path}/resume").status_code == 303
    assert "active" in words(client, path)
    assert act(client, f"{path}/run").status_code == 303
    with page_store.snapshot() as tx:
        [run] = tx.schedules.runs(made.id, limit=10)
    assert run.state is RunState.WAITING
    refused = act(client, f"{path}/run")
    assert refused.status_code == 409
    assert "is under way" in refused.text


def test_runs_go_on_a_page_further_and_not_with_those_of_another_schedule(
    client, tenant, page_store, monkeypatch
):
    monkeypatch.setattr(schedules, "PER_PAGE", 2)
    with page_store.transaction() as tx:
        made, other = add_schedule(tx, tenant), add_schedule(tx, tenant)
        nights = [tx.now() - timedelta(days=days) for days in range(3)]
        runs = [add_run(tx, made, night, RunState.MISSED) for night in nights]
        of_other = add_run(tx, other, nights[0], RunState.MISSED)
    path = f"/ui/schedules/{made.name}"

    first = client.get(path).text
    assert [run.id in first for run in runs] == [True, True, False]
    assert f"{path}?after={runs[1].id}" in first
    second = client.get(path, params={"after": runs[1].id}).text
    assert [f'id="{run.id}"' in second for run in runs] == [False, False, True]
    assert client.get(path, params={"after": of_other.id}).status_code == 404
    assert client.get("/ui/schedules", params={"after": made.id}).status_code == 200
