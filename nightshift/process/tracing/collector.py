"""Checks the collector's headers and certificates, which the environment names beside its address.

They are looked at before the SDK reads them. It would quote a header that it cannot parse, which has a key in
it, and would fail with every batch where a file is missing.
"""

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote


class NotTraced(Exception):
    """The environment asks for traces in a way that there is not. The message names the variable."""


def value_of(environment: Mapping[str, str], name: str) -> str:
    """Empty if it is not set: OpenTelemetry's variables do not tell the two apart."""
    return environment.get(name, "").strip()


PREFIXES: Final = ("OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_")  # the one for traces counts

# https://opentelemetry.io/docs/specs/otel/protocol/exporter/#specifying-headers-via-environment-variables,
# with spaces in values, which the SDK takes.
_HEADER: Final = re.compile(r"[!#$%&'*+\-.0-9A-Z^_`a-z|~]+[ \t]*=[ \t]*[ !#-+\-.-:<-\[\]-~]*")


def check_collector(environment: Mapping[str, str]) -> None:
    """Checks the variables. Raises NotTraced, without quoting values: they may be secret."""
    _check_headers(*_variable(environment, "HEADERS"))
    _check_authorities(*_variable(environment, "CERTIFICATE"))
    certificate, key = _variable(environment, "CLIENT_CERTIFICATE"), _variable(environment, "CLIENT_KEY")
    _check_client(*certificate, *key)


def _variable(environment: Mapping[str, str], name: str) -> tuple[str, str]:
    """The variable that counts, and its value."""
    names = [f"{prefix}{name}" for prefix in PREFIXES]
    return next(
        ((variable, value) for variable in names if (value := value_of(environment, variable))),
        (names[-1], ""),
    )


def _check_headers(name: str, value: str) -> None:
    for place, entry in enumerate(value.split(","), 1):
        header = entry.strip(" \t")
        if header and not _is_header(header):
            raise NotTraced(f"entry {place} of {name} is no NAME=VALUE that a header can have")


def _is_header(text: str) -> bool:
    decoded = unquote(text)
    return _HEADER.fullmatch(text) is not None and decoded.isascii() and decoded.isprintable()


def _check_authorities(name: str, path: str) -> None:
    if not path:
        return
    try:
        if Path(path).is_dir():
            return
        ssl.create_default_context(cafile=path)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise NotTraced(f"{name} names no file of certificates: {_reason(error)}") from error


def _check_client(certificate_name: str, certificate: str, key_name: str, key: str) -> None:
    if not certificate:
        return
    try:
        ssl.create_default_context().load_cert_chain(certificate, key or None, password="")
    except (OSError, ValueError) as error:
        names = f"{certificate_name} and {key_name} name" if key else f"{certificate_name} names"
        raise NotTraced(f"{names} no certificate with its key: {_reason(error)}") from error


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or getattr(error, "reason", None) or type(error).__name__
