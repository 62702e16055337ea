"""The registered endpoints, by route.

endpoint = endpoints.get(job.spec.endpoint)
request = endpoint.parse(body)
"""

from collections.abc import Sequence
from typing import Final

from nightshift.endpoints.encoders.classifications import Classifications
from nightshift.endpoints.encoders.classify import Classify
from nightshift.endpoints.encoders.embeddings import Embeddings
from nightshift.endpoints.encoders.moderations import Moderations
from nightshift.endpoints.encoders.rerank import Rerank
from nightshift.endpoints.encoders.scores import Score
from nightshift.endpoints.endpoint import Endpoint
from nightshift.endpoints.responses import Responses
from nightshift.endpoints.texts.chat import Chat
from nightshift.endpoints.texts.completions import Completions
from nightshift.endpoints.tokenizers.detokenize import Detokenize
from nightshift.endpoints.tokenizers.tokenize import Tokenize

__all__ = ["Endpoint", "every", "get", "named", "register", "unregister"]

_BY_ROUTE: Final[dict[str, Endpoint]] = {}


def register(endpoint: Endpoint) -> None:
    _BY_ROUTE[endpoint.route] = endpoint


def unregister(endpoint: Endpoint) -> None:
    """Raises KeyError for an endpoint that is not registered."""
    del _BY_ROUTE[endpoint.route]


def every() -> Sequence[Endpoint]:
    """All endpoints, in the order of listings."""
    return tuple(_BY_ROUTE.values())


def get(route: str) -> Endpoint:
    """The endpoint of an accepted job. Raises KeyError for an unknown route."""
    return _BY_ROUTE[route]


def named(name: str) -> Endpoint:
    """An endpoint by its route or name. Raises ValueError, which names the known ones."""
    said = name.strip("/").removeprefix("v1/")
    for endpoint in _BY_ROUTE.values():
        if said in (endpoint.name, endpoint.route.removeprefix("/v1/")):
            return endpoint
    raise ValueError(f"unknown endpoint {name!r}: use one of {', '.join(_BY_ROUTE)}")


for _endpoint in (
    *(Chat(), Completions(), Responses(), Embeddings()),
    *(Classifications(), Classify(), Moderations(), Rerank(), Score()),
    *(Tokenize(), Detokenize()),
):
    register(_endpoint)
