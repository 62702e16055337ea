"""Time zones by their names in the IANA database: https://www.iana.org/time-zones."""

from difflib import get_close_matches
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from nightshift.errors import InvalidRequest


def zone_named(name: str) -> ZoneInfo:
    """The zone, of the system's database or the package tzdata. Raises InvalidRequest, which the caller
    gives its field.
    """
    if name not in _names():
        raise InvalidRequest(f"{name!r} is no time zone{_advice(name)}", code="unknown_time_zone")
    return ZoneInfo(name)


@cache
def _names() -> frozenset[str]:
    """Names alone are looked up: a name is a path for ZoneInfo. `localtime` depends on the machine."""
    return frozenset(available_timezones() - {"localtime"})


def _advice(name: str) -> str:
    alike = get_close_matches(name, _names(), n=1)
    example = alike[0] if alike else "Europe/Berlin"
    return f", such as {example} or UTC."
