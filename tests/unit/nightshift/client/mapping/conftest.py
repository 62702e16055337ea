from collections.abc import Iterator

import httpx
import pytest

from nightshift.client import Client
from tests.unit.nightshift.client.mapping.fake_service import FakeService


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def client(service: FakeService) -> Iterator[Client]:
    """Never really sleeps."""
    transport = httpx.MockTransport(service)
    with Client("http://server", "ns_key", transport=transport, sleep=lambda _: None) as client:
        yield client
