"""Ids of another tenant, at every address of the page: as if they never were, and nothing is changed."""

import re
from collections.abc import Mapping

import httpx
import pytest

from api.page import views
from nightshift.jobs.ids import new_id
from nightshift.store import Store, tables
from nightshift.tenants.keys import Scope
from tests.helpers.fakes import submit_online
from tests.integration.api.page.conftest import SignedInMaker, csrf_of
from tests.integration.api.page.rows import Rows, add_rows
from tests.integration.api.page.test_views import new_tenant

MARKER = "alphas-secret-4f1c"
OF_THE_SERVICE = {"worker_id"}  # seen by every tenant; what it holds is not
OWN_TRACES = {"page_session"}
OF_ALL = ("/", "/ui/jobs", "/ui/models", "/ui/workers")  # name models; hosts, for administrators
LISTS = [view.path for view in views.VIEWS if "{" not in view.path]
VIEWS = [view.path for view in views.VIEWS if "{" in view.path]
ACTIONS = [view.path.rstrip("/") + action.path for view in views.VIEWS for action in view.actions]


@pytest.fixture(scope="module")
def rows(page_store: Store) -> Rows:
    return add_rows(page_store, new_tenant(page_store), MARKER)


@pytest.fixture
def ids(rows: Rows, page_store: Store) -> Mapping[str, list[str]]:
    """Ids by the name of the path parameter; of jobs, one of each kind."""
    online = submit_online(page_store, tenant_id=rows.tenant).job.id
    return {
        "job_id": [online, rows.lease],
        "letter_id": [rows.letter],
        "delivery_id": [rows.delivery],
        "endpoint_id": [rows.endpoint],
        "key_id": [rows.key],
        "schedule_name": [rows.schedule_name],
        "worker_id": [rows.worker],
    }


@pytest.fixture
def other(page_store: Store, signed_in_with: SignedInMaker) -> httpx.Client:
    """A client of another tenant, with every scope."""
    return signed_in_with(new_tenant(page_store), scopes=frozenset(Scope))


@pytest.fixture
def own(rows: Rows, signed_in_with: SignedInMaker) -> httpx.Client:
    """A client of the rows' own tenant, with every scope."""
    return signed_in_with(rows.tenant, scopes=frozenset(Scope))


def filled(path: str, ids: Mapping[str, list[str]]) -> list[str]:
    """The path with each id that could stand in it."""
    parameter = re.search(r"\{(\w+)\}", path)
    return [path] if parameter is None else [path.replace(parameter[0], id) for id in ids[parameter[1]]]


def everything(store: Store) -> dict[str, list[object]]:
    with store.database.read() as connection:
        return {
            table.name: sorted(map(repr, connection.execute(table.select())))
            for table in tables.metadata.sorted_tables
            if table.name not in OWN_TRACES
        }


@pytest.mark.parametrize("path", [path for path in VIEWS if "worker_id" not in path])
def test_a_view_of_anothers_is_not_found(other, ids, path, own):
    for address in filled(path, ids):
        assert own.get(address).status_code == 200, address
        for query in ("", "?show=results", "?show=errors"):
            answer = other.get(address + query)
            never = other.get(re.sub(r"\w{4}$", "zzzz", address) + query)
            assert (answer.status_code, never.status_code) == (404, 404), address
            assert MARKER not in answer.text


def test_a_worker_is_seen_by_all_and_what_it_holds_of_a_tenant_by_that(other, own, rows):
    address = f"/ui/workers/{rows.worker}"

    assert rows.lease in own.get(address).text
    assert rows.lease not in other.get(address).text


@pytest.mark.parametrize("path", [path for path in ACTIONS if re.search(r"\{(?!worker_id)", path)])
def test_an_action_on_anothers_is_not_found_and_changes_nothing(other, ids, page_store, path):
    form = {"priority": "background", "overlap": "no time", "newest": ""}
    before = everything(page_store)

    for address in filled(path, ids):
        for headers in ({}, {"hx-request": "true"}):
            answer = other.post(address, data={"csrf": csrf_of(other)} | form, headers=headers)
            assert answer.status_code == 404, address
            assert MARKER not in answer.text

    assert everything(page_store) == before


def test_a_list_does_not_go_on_after_anothers(other, rows):
    letters, deliveries = {"dead_letters": rows.letter}, {"deliveries": rows.delivery}
    lists = {"jobs": rows.lease, "schedules": rows.schedule} | letters | deliveries
    for path, id in lists.items():
        assert other.get(f"/ui/{path}", params={"after": id}).status_code == 404, path


@pytest.mark.parametrize("path", LISTS)
def test_a_list_shows_nothing_of_anothers_whatever_its_filters_name(other, ids, rows, path):
    kept = {id for name, values in ids.items() if name not in OF_THE_SERVICE for id in values}
    for name in ("after", "job", "endpoint", "name", "model", "state", "show"):
        for value in [*kept, rows.tenant, new_id("file"), MARKER]:
            shown = other.get(path, params={name: value})
            assert shown.status_code < 500, (path, name)
            assert not [id for id in kept if f"/{id}" in shown.text], (path, name)
            if value != MARKER and path not in OF_ALL:
                assert MARKER not in shown.text, (path, name)
