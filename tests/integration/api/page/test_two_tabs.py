"""Two tabs of one session: one action in both, one that is out of date, a session that ended in the other."""

import re
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import httpx
import pytest

from nightshift.fleet.models import Model, ModelKind
from nightshift.jobs import Counts, Job, JobState
from nightshift.jobs.dead_letters import DeadLetterState
from nightshift.jobs.ids import new_id
from nightshift.lifecycle import transitions
from nightshift.lifecycle.controls import delete_job
from nightshift.outbound.webhooks import DeliveryState
from nightshift.store import Store
from nightshift.tenants.keys import Scope
from tests.helpers.fakes import a_shard, planned
from tests.integration.api.asking import bulk_under
from tests.integration.api.conftest import SharedApi
from tests.integration.api.page.conftest import SignedInMaker, csrf_of
from tests.integration.api.page.rows import Rows, add_rows
from tests.integration.api.page.test_views import act, new_tenant

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


def ended(store: Store, tenant_id: str, state: JobState = JobState.FAILED) -> Job:
    """A bulk job with a failed row."""
    job = planned(store, tenant_id=tenant_id)
    with store.transaction() as tx:
        assert transitions.finish(tx, job, state, tx.now(), counts=Counts(1, 0, 1))
        return tx.jobs.fetch(job.id)


def submitted(store: Store, api: SharedApi) -> Job:
    """Such a job, with an input and an output that a retry may have."""
    answer = httpx.post(
        f"{api.url}/v1/jobs",
        json=bulk_under(api.allowed / new_id("tabs")),
        headers={"authorization": f"Bearer {api.key}"},
    )
    with store.transaction() as tx:
        job = tx.jobs.fetch(answer.json()["id"])
        transitions.plan(tx, job, "demo", [a_shard(0)], tx.now(), rows_total=1)
        assert transitions.finish(tx, job, JobState.FAILED, tx.now(), counts=Counts(1, 0, 1))
        return tx.jobs.fetch(job.id)


def retries_of(store: Store, job: Job) -> list[str]:
    with store.snapshot() as tx:
        return list(tx.jobs.retries(job.tenant_id, job.id, 10))


def test_a_dead_letter_is_replayed_by_one_of_several_tabs(
    client: httpx.Client, rows: Rows, page_store: Store
) -> None:
    with page_store.transaction() as tx:
        tx.workers.register_model(Model(id="demo", kind=ModelKind.DECODER, revision="r1"), tx.now())

    assert at_once(client, f"/ui/dead_letters/{rows.letter}/replay") == [303, 409, 409, 409]

    assert act(client, f"/ui/dead_letters/{rows.letter}/discard").status_code == 409
    with page_store.snapshot() as tx:
        letter = tx.dead_letters.get(rows.tenant, rows.letter)
    assert letter is not None
    assert letter.state is DeadLetterState.REPLAYED


def test_a_delivery_is_owed_once_whichever_tab_asked(
    client: httpx.Client, rows: Rows, page_store: Store
) -> None:
    statuses = at_once(client, f"/ui/deliveries/{rows.delivery}/replay")

    assert statuses[0] == 303
    assert set(statuses) <= {303, 409}
    with page_store.snapshot() as tx:
        delivery = tx.deliveries.get(rows.tenant, rows.delivery)
    assert delivery is not None
    assert delivery.state is DeliveryState.PENDING


def test_a_key_is_rotated_by_one_of_several_tabs(client: httpx.Client, rows: Rows) -> None:
    assert at_once(client, f"/ui/keys/{rows.key}/rotate", overlap="an hour") == [200, 409, 409, 409]


def test_failed_rows_run_again_once_though_the_form_is_sent_more_often(
    signed_in: httpx.Client, page_store: Store, shared_api: SharedApi
) -> None:
    client, job = signed_in, submitted(page_store, shared_api)
    shown = client.get(f"/ui/jobs/{job.id}").text
    [newest] = re.findall(r'name="newest" value="(\w*)"', shown)

    assert at_once(client, f"/ui/jobs/{job.id}/retry", newest=newest) == [303] * TABS

    [retry] = retries_of(page_store, job)
    assert f'name="newest" value="{retry}"' in client.get(f"/ui/jobs/{job.id}").text
    assert act(client, f"/ui/jobs/{job.id}/retry", newest=retry).status_code == 303
    assert len(retries_of(page_store, job)) == 2


@pytest.mark.parametrize("action", ["cancel", "pause", "resume", "priority"])
def test_an_action_on_a_job_that_has_ended_meanwhile_says_so_and_changes_nothing(
    client: httpx.Client, rows: Rows, page_store: Store, action: str
) -> None:
    job = ended(page_store, rows.tenant)

    answer = act(client, f"/ui/jobs/{job.id}/{action}", priority="background")

    assert answer.status_code == 409
    with page_store.snapshot() as tx:
        assert tx.jobs.fetch(job.id) == job


@pytest.mark.parametrize("action", ["cancel", "pause", "resume", "priority", "retry"])
def test_an_action_on_a_job_that_was_deleted_meanwhile_says_so(
    client: httpx.Client, rows: Rows, page_store: Store, action: str
) -> None:
    job = ended(page_store, rows.tenant)
    with page_store.transaction() as tx:
        assert delete_job(tx, job, tx.now())

    answer = act(client, f"/ui/jobs/{job.id}/{action}", priority="background")

    assert answer.status_code == 404
    assert "No such Job object" in answer.text


def test_an_action_after_the_session_ended_in_another_tab_says_so_and_leads_back_to_the_view(
    client: httpx.Client, rows: Rows, page_store: Store
) -> None:
    token, session = csrf_of(client), dict(client.cookies)
    client.post("/ui/sign_out", data={"csrf": token})
    client.cookies.update(session)

    answer = client.post(f"/ui/dead_letters/discard/{rows.letter}", data={"csrf": token})
    of_script = client.post(f"/ui/webhooks/{rows.endpoint}/disable", data={"csrf": token}, headers=UPDATE)

    assert answer.status_code == 401
    assert "Your session has ended. Nothing was changed." in answer.text
    assert 'name="next" value="/ui/dead_letters"' in answer.text
    assert (of_script.status_code, of_script.headers["hx-refresh"]) == (401, "true")
    with page_store.snapshot() as tx:
        letter = tx.dead_letters.get(rows.tenant, rows.letter)
    assert letter is not None
    assert letter.state is DeadLetterState.DEAD


def test_signing_out_in_both_tabs_is_no_error(client: httpx.Client) -> None:
    token, session = csrf_of(client), dict(client.cookies)
    for _ in range(2):
        client.cookies.update(session)
        assert client.post("/ui/sign_out", data={"csrf": token}).status_code == 303
