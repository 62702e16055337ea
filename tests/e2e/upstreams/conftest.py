"""Engines of others, started once for all tests of them."""

from collections.abc import Iterator

import pytest

from tests.e2e.upstreams import engines
from tests.e2e.upstreams.engines import Engine
from tests.integration.servers import free_port


@pytest.fixture(scope="session", params=[engines.vllm, engines.llama_cpp], ids=lambda engine: engine.__name__)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine that answers. Skips where it cannot be installed."""
    engine = request.param(free_port(), tmp_path_factory.mktemp("engine"))
    try:
        engine.start()
        yield engine
    finally:
        engine.kill()
