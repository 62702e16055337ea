"""An administrator's client."""

import httpx
import pytest

from nightshift.tenants.keys import Scope
from tests.integration.api.conftest import HttpMaker


@pytest.fixture
def admin(http_of: HttpMaker) -> httpx.Client:
    return http_of("operators", scopes=frozenset({Scope.ADMIN}))
