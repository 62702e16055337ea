"""Costs of jobs, where the operator has set prices."""

import re
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from api.services.services import AppSettings
from nightshift.fleet.costs import WorkerTime
from nightshift.jobs import Job
from nightshift.process.settings import ApiSettings
from nightshift.store import Store
from tests.helpers.fakes import planned, submit_online
from tests.integration.api.conftest import KeyMaker
from tests.integration.api.page.conftest import SignedInMaker, browser, sign_in
from tests.integration.api.page.test_views import new_tenant

TIME = WorkerTime(spot_s=7200.0, on_demand_s=600.0)


@pytest.fixture
def settings(settings: AppSettings) -> AppSettings:
    return replace(
        settings, api=ApiSettings(worker_price_per_hour_spot=0.9, worker_price_per_hour_on_demand=3.0)
    )


@pytest.fixture
def signed_in(base_url: str, make_key: KeyMaker) -> Iterator[httpx.Client]:
    """A client that is signed in to an API with prices."""
    with browser(base_url) as client:
        assert sign_in(client, make_key()).status_code == 303
        yield client


def worked_on(store: Store, tenant_id: str = "default") -> Job:
    job = planned(store, tenant_id=tenant_id)
    with store.transaction() as tx:
        tx.jobs.add_worker_time(job.id, TIME)
    return job


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_a_job_and_the_list_show_what_a_job_costs(signed_in: httpx.Client, store: Store) -> None:
    job, online = worked_on(store), submit_online(store).job

    assert "Cost 2.30 2 h spot, 10 min on demand" in words(signed_in.get(f"/ui/jobs/{job.id}").text)
    assert "Cost" not in words(signed_in.get(f"/ui/jobs/{online.id}").text)
    listed = signed_in.get("/ui/jobs").text
    assert re.findall(r'<td data-label="Cost">([^<]*)</td>', listed) == ["–", "2.30"]


def test_without_prices_no_cost_is_shown(page_store: Store, signed_in_with: SignedInMaker) -> None:
    tenant = new_tenant(page_store)
    job, client = worked_on(page_store, tenant), signed_in_with(tenant)

    assert "Cost" not in words(client.get(f"/ui/jobs/{job.id}").text + client.get("/ui/jobs").text)
