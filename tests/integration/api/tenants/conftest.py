"""An administrator's client."""

from collections.abc import Iterator

import httpx
import pytest

from nightshift.tenants.keys import Scope
from tests.integration.api.conftest import TIMEOUT_S, KeyMaker


@pytest.fixture
def admin(base_url: str, make_key: KeyMaker) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {make_key('operators', scopes=frozenset({Scope.ADMIN}))}"}
    with httpx.Client(base_url=base_url, headers=headers, timeout=TIMEOUT_S, trust_env=False) as client:
        yield client
