"""Reads the standard `OTEL_*` variables, and opens the traces that they ask for.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/: what is invalid in them is
said in a warning and ignored. Traces never keep a process from starting.
"""

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from nightshift.process.tracing.collector import NotTraced, check_collector, value_of
from nightshift.process.tracing.spans import record_with

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger(__name__)

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL: Final = "http/protobuf"
ID_SAMPLER: Final = "traceidratio"  # goes by a trace's id, which a client could choose so that it is sampled


def open_traces(process: str, environment: Mapping[str, str] = os.environ) -> Callable[[], None]:
    """Records this process's spans from now on, if the environment asks for that; where it does in vain, a
    warning says why. `process`: api, scheduler or worker. Returns what sends the rest, within a few seconds.
    """
    try:
        if not are_wanted(environment):
            return _nothing
        from nightshift.process.tracing.sdk import open_provider

        provider = open_provider(process, environment)
        sampler = value_of(environment, "OTEL_TRACES_SAMPLER").lower()
        record_with(provider.get_tracer("nightshift"), trusts_clients=sampler != ID_SAMPLER)
        return partial(_close, provider)
    except ImportError as error:
        why = f"nightshift[tracing] is not installed ({error.name})"
    except NotTraced as error:
        why = str(error)
    except Exception as error:  # noqa: BLE001 of the SDK, about a value of a variable
        why = f"{type(error).__name__}: {error}"
    log.warning("no traces are recorded: %s", why, extra={"action": "not_traced"})
    return _nothing


def _close(provider: "TracerProvider") -> None:
    from nightshift.process.tracing.sdk import close_provider

    record_with(None)
    close_provider(provider)


def _nothing() -> None:
    """Closes what was not opened."""


def are_wanted(environment: Mapping[str, str]) -> bool:
    """Traces are on where a collector is named, or `OTEL_TRACES_EXPORTER=otlp` asks for the default one.

    Raises NotTraced.
    """
    if value_of(environment, "OTEL_SDK_DISABLED").lower() == "true":
        return False
    exporter = value_of(environment, "OTEL_TRACES_EXPORTER").lower()
    if exporter == "none" or (not exporter and not any(value_of(environment, name) for name in ENDPOINTS)):
        return False
    if exporter not in ("", "otlp"):
        raise NotTraced(f"OTEL_TRACES_EXPORTER is '{exporter}', and there are 'otlp' and 'none'")
    for name in PROTOCOLS:
        if (protocol := value_of(environment, name)) and protocol != PROTOCOL:
            raise NotTraced(f"{name} is '{protocol}', and there is only '{PROTOCOL}'")
        if protocol:
            break  # the one for traces counts
    for name in ENDPOINTS:
        if endpoint := value_of(environment, name):
            _check_url(name, endpoint)
            break  # likewise
    check_collector(environment)
    return True


def _check_url(name: str, value: str) -> None:
    """Raises NotTraced. The value is not quoted: it may have a password in it."""
    try:
        url = urlsplit(value)
        is_url = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise NotTraced(f"{name} is no URL such as http://HOST:4318")
