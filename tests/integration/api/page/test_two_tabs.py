"""Two tabs of one session: one action in both, one that is out of date, a session that ended in the other."""

import re
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import httpx
import pytest

from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import Counts, Job
from nightshift.jobs.dead_letters import DeadLetterState
from nightshift.jobs.ids import new_id
from nightshift.lifecycle import transitions
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store import Store
from nightshift.tenants.keys import Scope
from tests.helpers.fakes import a_shard, planned
from tests.integration.api.asking import bearer, bulk_under, end_job
from tests.integration.api.conftest import SharedApi
from tests.integration.api.page.browser import ground
from tests.integration.api.page.conftest import SignedInMaker, csrf_of
from tests.integration.api.page.rows import Rows, add_rows
from tests.integration.api.page.test_views import act, delivery_of, letter_of, new_tenant

TABS = 4
UPDATE = {"hx-request": "true"}


@pytest.fixture
def rows(page_store: Store) -> Rows:
    return add_rows(page_store, new_tenant(page_store))


@pytest.fixture
def client(rows: Rows, signed_in_with: SignedInMaker) -> httpx.Client:
    return signed_in_with(rows.tenant, scopes=frozenset(Scope))


def at_once(client: httpx.Client, path: str, **form: str) -> list[int]:
    """The statuses of the same form from several tabs."""
    sent, together = {"csrf": csrf_of(client)} | form, Barrier(TABS)

    def send(_: int) -> int:
        together.wait()
        return client.post(path, data=sent).status_code

    with ThreadPoolExecutor(TABS) as tabs:
        return sorted(tabs.map(send, range(TABS)))


def ended(store: Store, tenant_id: str) -> Job:
    """A bulk job with a failed row."""
    job = planned(store, tenant_id=tenant_id)
    end_job(store, job.id, counts=Counts(1, 0, 1))
    return ground.fetch(store, job)


def submitted(store: Store, api: SharedApi) -> Job:
    """Such a job, with an input and an output that a retry may have."""
    body = bulk_under(api.allowed / new_id("tabs"))
    job_id = httpx.post(f"{api.url}/v1/jobs", json=body, headers=bearer(api.key)).json()["id"]
    with store.transaction() as tx:
        job = tx.jobs.fetch(job_id)
        transitions.plan(tx, job, "demo", [a_shard(0)], tx.now(), rows_total=1)
    end_job(store, job_id, counts=Counts(1, 0, 1))
    return ground.fetch(store, job)


def retries_of(store: Store, job: Job) -> list[str]:
    with store.snapshot() as tx:
        return list(tx.jobs.retries(job.tenant_id, job.id, 10))


def test_a_dead_letter_is_replayed_by_one_of_several_tabs(client, rows, page_store):
    with page_store.transaction() as tx:
        tx.workers.register_model(Model(id="demo", kind=ModelKind.DECODER, revision="r1"), tx.now())

    assert at_once(client, f"/ui/dead_letters/{rows.letter}/replay") == [303, 409, 409, 409]

    assert act(client, f"/ui/dead_letters/{rows.letter}/discard").status_code == 409
    assert letter_of(page_store, rows).state is DeadLetterState.REPLAYED


def test_a_delivery_is_owed_once_whichever_tab_asked(client, rows, page_store):
    statuses = at_once(client, f"/ui/deliveries/{rows.delivery}/replay")

    assert statuses[0] == 303
    assert set(statuses) <= {303, 409}
    assert delivery_of(page_store, rows).state is DeliveryState.PENDING


def test_a_key_is_rotated_by_one_of_several_tabs(client, rows):
    assert at_once(client, f"/ui/keys/{rows.key}/rotate", overlap="an hour") == [200, 409, 409, 409]


def test_failed_rows_run_again_once_though_the_form_is_sent_more_often(signed_in, page_store, shared_api):
    client, job = signed_in, submitted(page_store, shared_api)
    shown = client.get(f"/ui/jobs/{job.id}").text
    [newest] = re.findall(r'name="newest" value="(\w*)"', shown)

    assert at_once(client, f"/ui/jobs/{job.id}/retry", newest=newest) == [303] * TABS

    [retry] = retries_of(page_store, job)
    assert f'name="newest" value="{retry}"' in client.get(f"/ui/jobs/{job.id}").text
    assert act(client, f"/ui/jobs/{job.id}/retry", newest=retry).status_code == 303
    assert len(retries_of(page_store, job)) == 2


def test_an_action_on_a_job_that_has_ended_or_was_deleted_meanwhile_says_so_and_changes_nothing(
    client, rows, page_store
):
    job = ended(page_store, rows.tenant)
    actions = ["cancel", "pause", "resume", "priority"]

    for action in actions:
        assert act(client, f"/ui/jobs/{job.id}/{action}", priority="background").status_code == 409, action
    assert ground.fetch(page_store, job) == job

    ground.delete(page_store, job)
    for action in [*actions, "retry"]:
        answer = act(client, f"/ui/jobs/{job.id}/{action}", priority="background")
        assert (answer.status_code, "No such Job object" in answer.text) == (404, True), action


def test_an_action_after_the_session_ended_in_another_tab_says_so_and_leads_back_to_the_view(
    client, rows, page_store
):
    token, session = csrf_of(client), dict(client.cookies)
    client.post("/ui/sign_out", data={"csrf": token})
    client.cookies.update(session)

    answer = client.post(f"/ui/dead_letters/discard/{rows.letter}", data={"csrf": token})
    of_script = client.post(f"/ui/webhooks/{rows.endpoint}/disable", data={"csrf": token}, headers=UPDATE)

    assert answer.status_code == 401
    assert "Your session has ended. Nothing was changed." in answer.text
    assert 'name="next" value="/ui/dead_letters"' in answer.text
    assert (of_script.status_code, of_script.headers["hx-refresh"]) == (401, "true")
    assert letter_of(page_store, rows).state is DeadLetterState.DEAD


def test_signing_out_in_both_tabs_is_no_error(client):
    token, session = csrf_of(client), dict(client.cookies)
    for _ in range(2):
        client.cookies.update(session)
        assert client.post("/ui/sign_out", data={"csrf": token}).status_code == 303
