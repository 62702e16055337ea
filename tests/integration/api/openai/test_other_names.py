"""Routes that endpoints have at other servers: each answers as the endpoint's own does."""

import pytest

from nightshift import endpoints

ALIASES = [(alias, endpoint.route) for endpoint in endpoints.every() for alias in endpoint.aliases]


@pytest.mark.parametrize(("alias", "route"), ALIASES)
@pytest.mark.parametrize("body", [{}, {"model": "no-such-model"}], ids=["empty", "unknown model"])
def test_another_servers_route_refuses_as_ours_does(shared_http, alias, route, body):
    theirs, ours = (shared_http.post(path, json=body) for path in (alias, route))

    assert (theirs.status_code, theirs.json()) == (ours.status_code, ours.json())
    assert theirs.status_code == 400


def test_another_servers_route_needs_a_key(shared_http):
    assert shared_http.post("/rerank", json={}, headers={"authorization": ""}).status_code == 401
