"""Numbers, times and names as `top` shows them: short, and harmless to the terminal. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from rich.cells import cell_len

from nightshift.cli.terminal import printable

UNKNOWN: Final = "-"
ELLIPSIS: Final = "…"
_BARS: Final = "▁▂▃▄▅▆▇█"
_UNITS: Final = ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k"))


def rate(value: float | None) -> str:
    """`0`, `3.2`, `120`, `48k`."""
    if value is None:
        return UNKNOWN
    return f"{value:.1f}".removesuffix(".0") if value < 10 else count(round(value))


def count(value: int | None) -> str:
    """Whole below ten thousand."""
    if value is None:
        return UNKNOWN
    for size, unit in _UNITS:
        if value >= size:
            short = value / (1000 if unit == "k" else size)
            return f"{short:.1f}{unit}" if short < 100 else f"{short:.0f}{unit}"
    return str(value)


def share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.0f}%"


def seconds(value: float | None) -> str:
    """`8 ms`, `240 ms`, `1.3 s`, `90 s`."""
    if value is None:
        return UNKNOWN
    if value < 1:
        return f"{1000 * value:.0f} ms"
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def span(value: float) -> str:
    """`45s`, `12m`, `3h05`, `2d04h`; one that has passed begins with `-`."""
    sign, whole = ("-", -value) if value < 0 else ("", value)
    left = int(whole)
    if left < 60:
        return f"{sign}{left}s"
    if left < 3600:
        return f"{sign}{left // 60}m"
    if left < 86_400:
        return f"{sign}{left // 3600}h{left % 3600 // 60:02}"
    return f"{sign}{left // 86_400}d{left % 86_400 // 3600:02}h"


def size(num_bytes: int | None) -> str:
    return UNKNOWN if num_bytes is None else f"{num_bytes / 2**30:.1f} GiB"


def name(text: object, cells_max: int) -> str:
    """A name from outside in at most so many cells: wide characters take two."""
    clean = printable(str(text)).strip()
    if cell_len(clean) <= cells_max:
        return clean
    shown, used = [], 0
    for character in clean:
        used += cell_len(character)
        if used > cells_max - 1:
            break
        shown.append(character)
    return f"{''.join(shown)}{ELLIPSIS}"


def sparkline(values: Iterable[float | None], width: int) -> str:
    """The latest values as bars, the highest as the tallest; a space for one that is not known."""
    shown = list(values)[-width:] if width > 0 else []
    highest = max((value for value in shown if value is not None), default=0.0)
    return "".join(_bar(value, highest) for value in shown)


def bar(done: int, expected: int | None, width: int) -> str:
    if not expected:
        return ""
    filled = min(width, width * done // expected)
    return "█" * filled + "░" * (width - filled)


def joined(words: Sequence[str]) -> str:
    return ", ".join(words) or UNKNOWN


def _bar(value: float | None, highest: float) -> str:
    if value is None:
        return " "
    return _BARS[0] if highest <= 0 else _BARS[round((len(_BARS) - 1) * value / highest)]
