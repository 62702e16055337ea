"""Formats of numbers, times and texts on the page. Durations are between times of the database, whatever the
clock of the browser says."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

TEXT_CHARS_MAX: Final = 2000  # one text, such as an error's message
JUST_NOW_S: Final = 1

_UNITS: Final = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_SI: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def number(value: float) -> str:
    """`1,234,567`."""
    return f"{value:,.0f}"


def rough(value: float) -> str:
    """`1.2 M`: three digits are enough to compare by."""
    for size, unit in _SI:
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def price(value: float) -> str:
    """`1,234.50`, in a currency that the operator knows; of less than a cent two digits."""
    if value == 0 or value >= 0.01:
        return f"{value:,.2f}"
    return f"{value:.2g}" if value >= 0.0001 else "< 0.0001"


def duration(value: timedelta | float) -> str:
    """`3 h 12 min`: the two largest units; `0.3 s` of less than a second."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if 0 < seconds < 1:
        return f"{max(seconds, 0.1):.1f} s"
    left = int(seconds)
    sign, left = ("-", -left) if left < 0 else ("", left)
    parts: list[str] = []
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}")
        if len(parts) == 2:
            break
    return sign + (" ".join(part for part in parts if not part.startswith("0 ")) or "0 s")


def ago(at: datetime, now: datetime) -> str:
    """`5 min ago`, or `in 5 min`: one unit."""
    passed_s = (now - at).total_seconds()
    if abs(passed_s) < JUST_NOW_S:
        return "now"
    unit, size = next((unit, size) for unit, size in _UNITS if abs(passed_s) >= size)
    amount = f"{int(abs(passed_s) // size)} {unit}"
    return f"{amount} ago" if passed_s > 0 else f"in {amount}"


def moment(at: datetime) -> str:
    """`2026-11-30 14:05:09 UTC`."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock(at: datetime) -> str:
    """`14:05:09`, or with the day where that says too little."""
    return f"{at.astimezone(UTC):%H:%M:%S}"


def iso(at: datetime) -> str:
    """The text for the `datetime` attribute."""
    return at.astimezone(UTC).isoformat(timespec="seconds")


def shown(text: object, chars_max: int = TEXT_CHARS_MAX) -> str:
    """A text of any origin, cut; control characters are replaced, which some browsers drop silently."""
    text = str(text)
    cut = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text[:chars_max])
    return cut if len(text) <= chars_max else f"{cut}… ({len(text) - chars_max:,} more characters)"


def words(name: str) -> str:
    """`on_demand` as `on demand`."""
    return name.replace("_", " ")


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "number": number,
    "rough": rough,
    "price": price,
    "duration": duration,
    "ago": ago,
    "moment": moment,
    "clock": clock,
    "iso": iso,
    "shown": shown,
    "words": words,
}
