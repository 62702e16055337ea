"""The endpoints there are, by route. One module each decides everything about one of them.

endpoint = endpoints.get(job.spec.endpoint)
request = endpoint.parse(body)
"""

from collections.abc import Sequence
from typing import Final

from nightshift.endpoints.chat import Chat
from nightshift.endpoints.completions import Completions
from nightshift.endpoints.embeddings import Embeddings
from nightshift.endpoints.endpoint import Endpoint

__all__ = ["Endpoint", "every", "get", "named", "register", "unregister"]

_BY_ROUTE: Final[dict[str, Endpoint]] = {}


def register(endpoint: Endpoint) -> None:
    """Offer an endpoint from now on."""
    _BY_ROUTE[endpoint.route] = endpoint


def unregister(endpoint: Endpoint) -> None:
    """Offer it no longer. Raises KeyError if it was not offered."""
    del _BY_ROUTE[endpoint.route]


def every() -> Sequence[Endpoint]:
    """All endpoints, in the order in which they are listed to users."""
    return tuple(_BY_ROUTE.values())


def get(route: str) -> Endpoint:
    """The endpoint of a job that was accepted. Raises KeyError for any other route."""
    return _BY_ROUTE[route]


def named(name: str) -> Endpoint:
    """An endpoint by its route or its name, as users say it. Raises ValueError naming the known ones."""
    said = name.strip("/").removeprefix("v1/")
    for endpoint in every():
        if said in (endpoint.name, endpoint.route.removeprefix("/v1/")):
            return endpoint
    raise ValueError(f"unknown endpoint {name!r}: use one of {', '.join(e.route for e in every())}")


for _endpoint in (Chat(), Completions(), Embeddings()):
    register(_endpoint)
