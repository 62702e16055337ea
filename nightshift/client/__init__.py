"""The client of a service, for programs and the command line. What maps tables is loaded when it is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from nightshift.client.answers import (
    ApiError,
    JobEvent,
    RemoteJob,
    ServerUnreachable,
    check_api_key,
    check_base_url,
    parse_events,
)
from nightshift.client.connection import TRIES_MAX
from nightshift.client.http_client import Client

if TYPE_CHECKING:
    from nightshift.client.async_client import AsyncClient
    from nightshift.client.mapping.handles import AsyncMapHandle, MapHandle
    from nightshift.client.mapping.results import FailedRow, MapFailed, MapResult

__all__ = [
    "TRIES_MAX",
    "ApiError",
    "AsyncClient",
    "AsyncMapHandle",
    "Client",
    "FailedRow",
    "JobEvent",
    "MapFailed",
    "MapHandle",
    "MapResult",
    "RemoteJob",
    "ServerUnreachable",
    "check_api_key",
    "check_base_url",
    "parse_events",
]

_LATER: Final = {
    "AsyncClient": "async_client",
    **dict.fromkeys(("AsyncMapHandle", "MapHandle"), "mapping.handles"),
    **dict.fromkeys(("FailedRow", "MapFailed", "MapResult"), "mapping.results"),
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
