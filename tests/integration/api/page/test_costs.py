"""Costs of jobs, where the operator has set prices."""

import re
from dataclasses import replace

from api.app import create_app
from nightshift.fleet.costs import WorkerTime
from nightshift.process.settings import ApiSettings
from tests.helpers.fakes import planned, submit_online
from tests.integration.api.page.conftest import browser, sign_in
from tests.integration.api.serving import serving


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_a_job_and_the_list_show_what_a_job_costs_where_there_are_prices(settings, base_url, store, make_key):
    job, online, key = planned(store), submit_online(store).job, make_key()
    with store.transaction() as tx:
        tx.jobs.add_worker_time(job.id, WorkerTime(spot_s=7200.0, on_demand_s=600.0))
    prices = ApiSettings(worker_price_per_hour_spot=0.9, worker_price_per_hour_on_demand=3.0)

    with serving(create_app(replace(settings, api=prices))) as url, browser(url) as client:
        sign_in(client, key)
        assert "Cost 2.30 2 h spot, 10 min on demand" in words(client.get(f"/ui/jobs/{job.id}").text)
        assert "Cost" not in words(client.get(f"/ui/jobs/{online.id}").text)
        listed = client.get("/ui/jobs").text
        assert re.findall(r'<td data-label="Cost">([^<]*)</td>', listed) == ["–", "2.30"]

    with browser(base_url) as client:
        sign_in(client, key)
        shown, listed = (client.get(path).text for path in (f"/ui/jobs/{job.id}", "/ui/jobs"))
        assert job.id in shown
        assert job.id in listed
        assert "Cost" not in words(shown + listed)
