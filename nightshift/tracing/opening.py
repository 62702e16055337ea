"""Reads the standard `OTEL_*` variables, and opens the tracer that they ask for.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/: what is invalid in them is
said in a warning and ignored. Traces never keep a process from starting.
"""

import logging
import os
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from nightshift.tracing.collector import check_collector
from nightshift.tracing.tracer import NO_TRACER, Tracer
from nightshift.tracing.variables import NotTraced, value_of

log = logging.getLogger(__name__)

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL: Final = "http/protobuf"
RATIO_SAMPLERS: Final = ("traceidratio", "parentbased_traceidratio")
OFF_SAMPLERS: Final = ("always_off", "parentbased_always_off")


def open_tracer(process: str, environment: Mapping[str, str] = os.environ) -> Tracer:
    """`process`: api, scheduler or worker. Where traces are asked for in vain, a warning says why."""
    try:
        if not are_wanted(environment):
            return NO_TRACER
        from nightshift.tracing.otlp import open_otlp

        return open_otlp(process, environment)
    except ImportError as error:
        why = f"nightshift[tracing] is not installed ({error.name})"
    except NotTraced as error:
        why = str(error)
    except Exception as error:  # noqa: BLE001 of the SDK, about a value of a variable
        why = f"{type(error).__name__}: {error}"
    log.warning("no traces are recorded: %s", why, extra={"action": "not_traced"})
    return NO_TRACER


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


def sampling_ratio(environment: Mapping[str, str]) -> float:
    """Of `OTEL_TRACES_SAMPLER_ARG` where the sampler has one, else 1."""
    if sampler_name(environment) not in RATIO_SAMPLERS:
        return 1.0
    try:
        ratio = float(value_of(environment, "OTEL_TRACES_SAMPLER_ARG"))
    except ValueError:
        return 1.0
    return ratio if 0.0 <= ratio <= 1.0 else 1.0


def sampler_name(environment: Mapping[str, str]) -> str:
    return value_of(environment, "OTEL_TRACES_SAMPLER").lower()
