"""Leaves the database that a module does not name with `pytest.mark.databases` to `make test-all`."""

from pathlib import Path

import pytest

from nightshift.store import Store
from tests.integration.scheduler.scheduling import Place


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "databases(*names): those that `make test` takes")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        named, call = item.get_closest_marker("databases"), getattr(item, "callspec", None)
        params = {} if call is None else call.params
        name = params.get("dialect", params.get("database"))
        if named is not None and name not in (None, *named.args):
            item.add_marker(pytest.mark.exhaustive)


@pytest.fixture
def place(store: Store, tmp_path: Path) -> Place:
    """A service without jobs, and the model that they name."""
    place = Place.at(store, tmp_path)
    place.serve_model()
    return place
