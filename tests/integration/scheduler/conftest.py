"""A service to run the scheduler's duties on."""

from pathlib import Path

import pytest

from nightshift.store import Store
from tests.integration.scheduler.scheduling import Place


@pytest.fixture
def place(store: Store, tmp_path: Path) -> Place:
    """A service without jobs, and the model that they name."""
    place = Place.at(store, tmp_path)
    place.serve_model()
    return place
