"""The client of a service, for programs and the command line."""

from nightshift.client.answers import (
    ApiError,
    JobEvent,
    RemoteJob,
    ServerUnreachable,
    check_api_key,
    check_base_url,
    parse_events,
)
from nightshift.client.http_client import TRIES_MAX, Client

__all__ = [
    "TRIES_MAX",
    "ApiError",
    "Client",
    "JobEvent",
    "RemoteJob",
    "ServerUnreachable",
    "check_api_key",
    "check_base_url",
    "parse_events",
]
