"""The `OTEL_*` variables as text."""

from collections.abc import Mapping


class NotTraced(Exception):
    """The environment asks for traces in a way that there is not. The message names the variable."""


def value_of(environment: Mapping[str, str], name: str) -> str:
    """Empty if it is not set: OpenTelemetry's variables do not tell the two apart."""
    return environment.get(name, "").strip()
