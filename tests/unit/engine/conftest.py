"""One tiny llama on disk, and an engine over it, for the tests that need just any model."""

from pathlib import Path

import pytest

from nightshift_engine import Engine
from tests.unit.engine.tiny.decoders import make_engine, save_model


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def engine(llama: Path) -> Engine:
    """Fresh and roomy."""
    return make_engine(llama)
