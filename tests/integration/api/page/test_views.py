"""Workers, dead letters, deliveries, webhooks, models, usage and keys: what each shows to whom, and does."""

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from html import escape, unescape

import httpx
import pytest

from api.page import views
from api.page.views import dead_letters, deliveries, keys, models, usage, workers
from nightshift.fleet.models import Model, ModelKind
from nightshift.fleet.workers import MachineNotice, NoticeKind, WorkerState
from nightshift.jobs import Counts, Fault, InputError, JobState, Usage
from nightshift.jobs.dead_letters import DeadLetter, DeadLetterState
from nightshift.jobs.ids import new_id
from nightshift.lifecycle.problems import ProblemRecorder
from nightshift.lifecycle.tenants import Administration
from nightshift.objectstore import open_store
from nightshift.outbound.webhooks import Delivery, DeliveryState
from nightshift.process.settings import DataSettings
from nightshift.store import Store, Transaction
from nightshift.tenants.audit import Action, Actor
from nightshift.tenants.keys import Scope, key_id
from nightshift.tenants.usage import usage_day
from tests.helpers.fakes import a_delivery, a_spec, a_worker, an_api_key, an_attempt, submit
from tests.integration.api.asking import end_job
from tests.integration.api.page.browser import ground
from tests.integration.api.page.conftest import SignedInMaker, csrf_of, sign_in
from tests.integration.api.page.rows import Rows, add_rows

EVERY_SCOPE = frozenset(Scope)
EVIL_TEXT = "ExpiredToken <script>alert(1)</script>"


@pytest.fixture
def rows(page_store: Store) -> Rows:
    return add_rows(page_store, new_tenant(page_store))


@pytest.fixture
def client(rows: Rows, signed_in_with: SignedInMaker) -> httpx.Client:
    """A client with every scope, of the rows' tenant."""
    return signed_in_with(rows.tenant, scopes=EVERY_SCOPE)


def new_tenant(store: Store) -> str:
    name = f"t-{new_id('x')[-12:]}"
    with store.transaction() as tx:
        Administration(tx, Actor("tests")).create_tenant(name)
    return name


def act(client: httpx.Client, path: str, **form: str) -> httpx.Response:
    """As the page's form does."""
    return client.post(path, data={"csrf": csrf_of(client)} | form)


LISTS = (
    *("/ui/schedules", "/ui/dead_letters", "/ui/deliveries", "/ui/webhooks"),
    *("/ui/workers", "/ui/models", "/ui/usage"),
)


def addresses(rows: Rows) -> list[str]:
    """Addresses of every view but the keys'."""
    ones = (
        f"/ui/dead_letters/{rows.letter}",
        f"/ui/deliveries/{rows.delivery}",
        f"/ui/workers/{rows.worker}",
        f"/ui/jobs/{rows.lease}",
        f"/ui/schedules/{rows.schedule_name}",
    )
    return [*LISTS, *ones]


# -- whose ---------------------------------------------------------------------------------------------


def test_where_a_worker_runs_is_for_administrators(page_store, signed_in_with):
    rows = add_rows(page_store, new_tenant(page_store), "the-host-of-it")
    reader = signed_in_with(rows.tenant, scopes=frozenset({Scope.READ}))
    admin = signed_in_with(rows.tenant, scopes=EVERY_SCOPE)

    hosts = {"": "the-host-of-it · 4711", f"/{rows.worker}": "the-host-of-it, process 4711"}
    for path, host in hosts.items():
        address = f"/ui/workers{path}"
        assert host not in reader.get(address).text
        assert host in admin.get(address).text


# -- what a key may do ---------------------------------------------------------------------------------

ACTIONS = [
    (view.path.rstrip("/") + action.path, action.scope) for view in views.VIEWS for action in view.actions
]


@pytest.mark.parametrize(("path", "scope"), ACTIONS)
def test_an_action_needs_its_scope_and_the_sessions_token(signed_in_with, path, scope):
    address = re.sub(r"\{\w+\}", "any", path)
    without = signed_in_with("another", scopes=EVERY_SCOPE - {scope})
    with_it = signed_in_with("another", scopes=EVERY_SCOPE)
    elsewhere = {"origin": "https://evil.example"}

    refused = (
        act(without, address),
        with_it.post(address, data={"csrf": "0" * 64}),
        with_it.post(address),
        with_it.post(address, data={"csrf": csrf_of(with_it)}, headers=elsewhere),
    )
    assert [answer.status_code for answer in refused] == [403] * 4


def test_who_may_only_read_is_shown_no_button(rows, signed_in_with):
    reader = signed_in_with(rows.tenant, scopes=frozenset({Scope.READ}))

    for address in addresses(rows):
        forms = re.findall(r'<form method="post" action="([^"]+)"', reader.get(address).text)
        assert forms == ["/ui/sign_out"], address


def test_keys_are_shown_to_administrators_alone(rows, signed_in_with):
    usual, admin = signed_in_with(rows.tenant), signed_in_with(rows.tenant, scopes=frozenset({Scope.ADMIN}))

    assert 'href="/ui/keys"' not in usual.get("/ui/jobs").text
    refused = usual.get("/ui/keys")
    assert refused.status_code == 403
    assert "does not have the scope &#39;admin&#39; that GET /ui/keys needs" in refused.text
    assert usual.get(f"/ui/keys/{rows.key}").status_code == 403
    shown = admin.get("/ui/keys").text
    assert 'href="/ui/keys"' in shown
    assert 'href="/ui/workers"' not in shown  # which needs to read
    assert admin.get("/ui/workers").status_code == 403


# -- dead letters --------------------------------------------------------------------------------------


def letter_of(store: Store, rows: Rows) -> DeadLetter:
    with store.snapshot() as tx:
        letter = tx.dead_letters.get(rows.tenant, rows.letter)
    assert letter is not None
    return letter


def delivery_of(store: Store, rows: Rows) -> Delivery:
    with store.snapshot() as tx:
        delivery = tx.deliveries.get(rows.tenant, rows.delivery)
    assert delivery is not None
    return delivery


def test_a_dead_letter_is_replayed_once(client, rows, page_store):
    with page_store.transaction() as tx:
        tx.workers.register_model(Model(id="demo", kind=ModelKind.DECODER, revision="r1"), tx.now())

    replayed = act(client, f"/ui/dead_letters/{rows.letter}/replay")
    again = act(client, f"/ui/dead_letters/replay/{rows.letter}")

    letter = letter_of(page_store, rows)
    assert (replayed.status_code, letter.state) == (303, DeadLetterState.REPLAYED)
    assert replayed.headers["location"] == f"/ui/dead_letters/{rows.letter}"
    assert f"/ui/jobs/{letter.replay_job_id}" in client.get(f"/ui/dead_letters/{rows.letter}").text
    assert again.status_code == 409
    assert f"is replayed already, as {letter.replay_job_id}" in again.text


def test_a_dead_letter_is_discarded_from_the_list_which_stays_as_it_was_filtered(client, rows, page_store):
    answer = act(client, f"/ui/dead_letters/discard/{rows.letter}?state=dead")

    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/dead_letters?state=dead")
    assert rows.letter not in client.get("/ui/dead_letters?state=dead").text
    assert rows.letter in client.get("/ui/dead_letters?state=discarded").text
    assert rows.letter in client.get("/ui/dead_letters").text
    assert "Replay" not in client.get(f"/ui/dead_letters/{rows.letter}").text


# -- webhooks ------------------------------------------------------------------------------------------


def test_a_delivery_shows_its_attempts_and_not_what_the_receiver_said(client, rows):
    shown = client.get(f"/ui/deliveries/{rows.delivery}").text

    assert "https://receiver.example/plain" in shown
    assert ">plain</td>" in shown  # the attempt's error
    assert "secret plain" not in shown


def test_a_delivery_is_owed_once_more(client, rows, page_store):
    answer = act(client, f"/ui/deliveries/replay/{rows.delivery}?state=dead")

    assert answer.status_code == 303
    assert delivery_of(page_store, rows).state is DeliveryState.PENDING
    assert rows.delivery not in client.get("/ui/deliveries?state=dead").text
    assert rows.delivery in client.get(f"/ui/deliveries?state=pending&endpoint={rows.endpoint}").text


def test_a_receiver_is_disabled_with_the_reason_shown_and_enabled_again(client, rows):
    act(client, f"/ui/webhooks/{rows.endpoint}/disable")
    assert "by you" in client.get("/ui/webhooks").text
    refused = act(client, f"/ui/deliveries/{rows.delivery}/replay")
    assert refused.status_code == 409
    assert "is disabled (requested)" in refused.text

    act(client, f"/ui/webhooks/{rows.endpoint}/enable")
    assert "by you" not in client.get("/ui/webhooks").text


# -- workers and models --------------------------------------------------------------------------------


def test_a_worker_is_drained_by_an_administrator_and_that_is_in_the_audit_log(client, rows, page_store):
    answer = act(client, f"/ui/workers/drain/{rows.worker}")

    assert answer.status_code == 303
    assert "asked to drain" in client.get("/ui/workers").text
    assert f"/ui/workers/{rows.worker}/drain" not in client.get(f"/ui/workers/{rows.worker}").text
    with page_store.snapshot() as tx:
        assert tx.workers.is_drain_requested(rows.worker)
        (entry, *_) = tx.audit.list(limit=1)
    assert (entry.action, entry.object_id) == (Action.WORKER_DRAINED, rows.worker)
    assert act(client, f"/ui/workers/{rows.ended_worker}/drain").status_code == 404


def test_a_worker_shows_what_it_does_and_one_that_has_ended_why(client, rows):
    shown = client.get(f"/ui/workers/{rows.worker}").text
    for words in ("1.2 k", "50 %", "cold-one", "Pools"):
        assert words in shown
    assert rows.worker in client.get("/ui/workers").text
    assert rows.ended_worker not in client.get("/ui/workers").text

    ended = client.get("/ui/workers?show=ended").text
    assert rows.ended_worker in ended
    assert "a step did not end" in ended
    assert "a step did not end" in client.get(f"/ui/workers/{rows.ended_worker}").text
    assert client.get("/ui/workers/worker_nowhere").status_code == 404


def test_a_worker_that_is_not_heard_of_says_so_and_its_figures_no_more(client, rows, page_store):
    with page_store.transaction() as tx:
        worker = tx.workers.get(rows.worker)
        assert worker is not None
        tx.workers.record_heartbeat(worker.id, worker.state, tx.now() - timedelta(minutes=2), worker.figures)

    shown = client.get(f"/ui/workers/{rows.worker}").text
    assert "not heard of" in shown
    assert "50 %" not in shown


def test_a_worker_whose_machine_goes_says_so_everywhere(client, rows, page_store):
    with page_store.transaction() as tx:
        now = tx.now()
        notice = MachineNotice(NoticeKind.INTERRUPTION, now, now + timedelta(minutes=2, seconds=30))
        tx.workers.record_heartbeat(rows.worker, WorkerState.READY, now, notice=notice)

    for address in ("/", "/ui/workers", f"/ui/workers/{rows.worker}"):
        shown = re.sub(r"<[^>]+>", "", client.get(address).text)
        assert "its machine goes in 2 min" in shown, address
    assert "machine goes</span>" in client.get("/ui/workers").text


def test_a_model_shows_where_it_is_loaded(page_store, signed_in_with):
    rows = add_rows(page_store, new_tenant(page_store), "org/loaded-here")
    client = signed_in_with(rows.tenant)
    with page_store.snapshot() as tx:
        worker = tx.workers.get(rows.worker)
    assert worker is not None

    [row] = [line for line in rows_of(client.get("/ui/models").text) if worker.models[0] in line]
    for words in (rows.worker, "warm", "makes embeddings", "384", "512"):
        assert words in row
    assert rows.ended_worker not in row
    assert "adapter of" not in row


def test_an_adapter_names_its_model(page_store, signed_in_with):
    rows = add_rows(page_store, new_tenant(page_store), "org/with-adapter")
    client = signed_in_with(rows.tenant)
    with page_store.transaction() as tx:
        worker = tx.workers.get(rows.worker)
        assert worker is not None
        base = tx.workers.model(worker.models[0])
        assert base is not None
        tx.workers.register_model(replace(base, id="org/an-adapter", parent=base.id), tx.now())

    [row] = [line for line in rows_of(client.get("/ui/models").text) if "org/an-adapter" in line]
    assert f"adapter of {base.id}" in row


def rows_of(html: str) -> list[str]:
    return re.findall(r"<tr.*?</tr>", unescape(html), re.DOTALL)


# -- keys ----------------------------------------------------------------------------------------------


def shown_key(html: str) -> str:
    [key] = re.findall(r"<code>(ns_live_\w+)</code>", html)
    return key


def test_a_new_key_is_shown_once_and_may_do_what_was_chosen(client, rows, visitor, page_store):
    answer = act(client, "/ui/keys/create", name="nightly", scope_read="1", days="30")

    key = shown_key(answer.text)
    with page_store.snapshot() as tx:
        made = tx.keys.find(key_id(key) or "")
    assert made is not None
    assert (made.tenant_id, made.name, made.scopes) == (rows.tenant, "nightly", frozenset({Scope.READ}))
    assert made.expires_at == made.created_at + timedelta(days=30)
    assert sign_in(visitor, key).status_code == 303
    assert key not in client.get("/ui/keys").text
    assert 'hx-get="/ui/keys"' in answer.text  # updates and a reload show the list


@pytest.mark.parametrize(
    "form", [{}, {"scope_read": "1", "days": "31"}, {"scope_read": "1", "name": 129 * "x"}]
)
def test_a_form_that_is_wrong_makes_no_key(client, rows, page_store, form):
    with page_store.snapshot() as tx:
        before = tx.keys.page(rows.tenant, limit=100)

    answer = act(client, "/ui/keys/create", **form)

    assert answer.status_code == 400
    assert "Invalid '" in unescape(answer.text)
    assert 'id="live">' in answer.text  # no update takes the message away
    with page_store.snapshot() as tx:
        assert tx.keys.page(rows.tenant, limit=100) == before


def test_a_rotated_key_has_a_successor_and_an_end(client, rows, page_store):
    new = shown_key(act(client, f"/ui/keys/{rows.key}/rotate", overlap="an hour").text)

    with page_store.snapshot() as tx:
        old = tx.keys.find(rows.key)
    assert old is not None
    assert old.replaced_by == key_id(new)
    shown = client.get(f"/ui/keys/{rows.key}").text
    assert "rotated" in shown
    assert f"/ui/keys/{old.replaced_by}" in shown
    assert act(client, f"/ui/keys/{rows.key}/rotate", overlap="an hour").status_code == 409
    assert act(client, f"/ui/keys/{rows.key}/rotate", overlap="for ever").status_code == 400


def test_who_revokes_the_key_of_the_session_is_signed_out(rows, client):
    own = re.search(r"Signed in with key (\w+)", client.get("/").text)
    assert own is not None

    answer = act(client, f"/ui/keys/{own[1]}/revoke")

    assert answer.status_code == 303
    assert 'action="/ui/sign_in"' in client.get("/ui/keys").text


def test_keys_of_another_tenant_are_shown_and_made_where_it_is_named(client, page_store, page_key):
    assert client.get("/ui/keys?tenant=nowhere").status_code == 404
    assert act(client, "/ui/keys/create?tenant=nowhere", scope_read="1").status_code == 404
    assert client.get(f"/ui/keys/{key_id(page_key('default'))}").status_code == 404


# -- many ----------------------------------------------------------------------------------------------


def another_letter(tx: Transaction, rows: Rows, number: int) -> None:
    letter = tx.dead_letters.get(rows.tenant, rows.letter)
    assert letter is not None
    tx.dead_letters.insert(replace(letter, id=new_id("dlq"), row=number + 1))


def another_usage(tx: Transaction, rows: Rows, number: int) -> None:
    day = usage_day(tx.now() - timedelta(days=number % 3))
    tx.usage.add(rows.tenant, f"{rows.tenant}-{number}", day, 1, 0, Usage())


# How one more row is added, how many a page has, and what tells a row.
LISTED: dict[str, tuple[Callable[[Transaction, Rows, int], object], int, str]] = {
    "/ui/dead_letters": (another_letter, dead_letters.PER_PAGE, r'<tr id="(dlq_\w+)"'),
    "/ui/deliveries": (
        lambda tx, rows, _: tx.deliveries.insert(
            a_delivery(tx.jobs.fetch(rows.lease), created_at=tx.now(), next_at=tx.now())
        ),
        deliveries.PER_PAGE,
        r'<tr id="(dlv_\w+)"',
    ),
    "/ui/workers": (
        lambda tx, rows, _: tx.workers.register(a_worker(started_at=tx.now(), heartbeat_at=tx.now())),
        workers.PER_PAGE,
        r'<tr id="(worker_\w+)"',
    ),
    "/ui/keys": (
        lambda tx, rows, _: tx.keys.insert(an_api_key(tenant_id=rows.tenant, created_at=tx.now())),
        keys.PER_PAGE,
        r'<tr id="key-(\w+)"',
    ),
    "/ui/models": (
        lambda tx, rows, number: tx.workers.register_model(
            Model(id=f"{rows.tenant}-{number}", kind=ModelKind.DECODER, revision="r"), tx.now()
        ),
        models.PER_PAGE,
        r'<th scope="row">(t-\w+-\d+)<',
    ),
    "/ui/usage": (another_usage, usage.PER_PAGE, r'data-label="Model" class="break">(t-\w+-\d+)<'),
}


@pytest.mark.parametrize("path", LISTED)
def test_a_long_list_is_shown_in_pages_that_leave_nothing_out_and_repeat_nothing(
    client, rows, page_store, path
):
    add, per_page, row = LISTED[path]
    with page_store.transaction() as tx:
        for number in range(2 * per_page):
            add(tx, rows, number)

    seen: list[str] = []
    address: str | None = path
    while address is not None:
        html = client.get(address).text
        matches = re.findall(row, html)
        assert len(matches) <= per_page
        seen += matches
        next_page = re.search(r'href="([^"]+)">(?:Older|Newer|Next)<', html)
        address = None if next_page is None else unescape(next_page[1])

    assert len(seen) == len(set(seen))
    assert len(seen) >= 2 * per_page


@pytest.mark.parametrize("path", [*LISTED, "/ui/workers?show=ended"])
def test_a_page_that_there_is_not_is_refused(client, path):
    joined = "&" if "?" in path else "?"
    status = client.get(f"{path}{joined}after=nowhere").status_code

    assert status == {"/ui/models": 200, "/ui/usage": 400}.get(path, 404)


def test_a_delivery_that_was_tried_often_shows_the_last_attempts(client, rows, page_store):
    with page_store.transaction() as tx:
        job = tx.jobs.fetch(rows.lease)
        delivery = a_delivery(job, created_at=tx.now(), next_at=tx.now())
        tx.deliveries.insert(delivery)
        for number in range(60):
            tried = replace(delivery, attempts=number)
            tx.deliveries.record(tried, an_attempt(tried), DeliveryState.PENDING, tx.now())

    shown = client.get(f"/ui/deliveries/{delivery.id}").text
    assert "These are the last 50 of 60." in shown
    assert '<th scope="row">60</th>' in shown
    assert '<th scope="row">10</th>' not in shown


def test_a_job_and_the_list_say_what_keeps_it_from_going_on(client, rows, page_store):
    job = submit(page_store, tenant_id=rows.tenant)
    error = InputError("storage_denied", f"The input cannot be read at present: {EVIL_TEXT}", param="input")
    with page_store.transaction() as tx:
        now = tx.now()
        tx.jobs.record_input_fault(job.id, Fault(error=error, met_at=now))
    ProblemRecorder(page_store).run_once(now)

    one = client.get(f"/ui/jobs/{job.id}").text
    assert "What it waits for" in one
    assert one.count(escape(EVIL_TEXT)) == 2, "beside its state, and in its life"
    assert escape(EVIL_TEXT) in client.get("/ui/jobs").text
    assert EVIL_TEXT not in one

    overview = client.get("/").text
    assert f'id="hindered-{job.id}"' in overview
    assert escape(EVIL_TEXT) in overview
    assert "begin when" not in overview


def test_a_job_shows_the_options_that_it_was_given_in_words(client, rows, page_store):
    spec = a_spec(keep_columns=("id", "title"), keep_body=True, part_bytes=1_048_576)
    job = submit(page_store, tenant_id=rows.tenant, spec=spec)

    shown = client.get(f"/ui/jobs/{job.id}").text
    facts = dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]*)</dd>", shown.partition("What was asked for")[2]))
    assert (facts["Keep columns"], facts["Keep body"]) == ("id, title", "yes")
    assert facts["Part bytes"] == "1,048,576"
    assert not {"Embedding dtype", "Reuse sampled"} & facts.keys(), "a default was not asked for"


def test_failed_rows_of_one_reason_are_one_group_wherever_they_are(client, rows, page_store, shared_api):
    job = ground.running(page_store, rows.tenant)
    data = DataSettings(data_dir=shared_api.allowed.parent / "data")
    with closing(open_store(data.resolved_storage_url)) as objects:
        message = "The text is too long. It is row {row} of 's3://in/a.csv'."
        ground.failed_rows(page_store, objects, job, ["id-1", "id-2"], message)

    shown = client.get(f"/ui/jobs/{job.id}?show=errors").text
    assert re.findall(r'data-label="Message" class="break">([^<]*)', shown) == ["The text is too long."]
    assert "<code>id-1</code>" in shown
    assert "<code>id-2</code>" in shown


def test_a_job_that_ended_in_time_shows_no_deadline_and_cut_short_no_pace(client, rows, page_store):
    cancelled, expired = (ground.running(page_store, rows.tenant, done=10) for _ in range(2))
    under_way = client.get(f"/ui/jobs/{cancelled.id}").text
    end_job(page_store, cancelled.id, JobState.CANCELLED, counts=Counts(100, 10, 0))
    end_job(page_store, expired.id, JobState.EXPIRED, counts=Counts(100, 10, 90))

    for shown in ("<dt>Deadline</dt>", "rows/s</span>"):
        assert shown in under_way
        assert shown not in client.get(f"/ui/jobs/{cancelled.id}").text
    assert "Its time was over. 90 rows have no answer." in client.get("/").text
