"""The service's figures over time, as columns for the charts of the overview. Pure."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from nightshift.fleet.figures import INTERVAL_S, ServiceFigures
from nightshift.jobs import JsonObject

POINTS_MAX: Final = 480  # of a chart: more are not seen
HOURS: Final = (2, 12, 48)  # that may be asked for
GAP_S: Final = 4 * INTERVAL_S  # without figures, the line is broken

_Value = Callable[[ServiceFigures], float | None]

_COLUMNS: Final[dict[str, _Value]] = {
    "tokens_out": lambda each: each.generation_tokens_per_s,
    "tokens_in": lambda each: each.prompt_tokens_per_s,
    "rows": lambda each: each.rows_per_s,
    "busy": lambda each: None if each.busy_fraction is None else 100 * each.busy_fraction,
    "first_token_p50": lambda each: each.first_token_p50_s.get("interactive"),
    "first_token_p95": lambda each: each.first_token_p95_s.get("interactive"),
}


def every(hours: int) -> int:
    """Of how many figures one is drawn."""
    return math.ceil(hours * 3600 / INTERVAL_S / POINTS_MAX)


def columns(figures: Sequence[ServiceFigures], hours: int) -> JsonObject:
    """`at`, in seconds since the epoch, and a list for each column; None where nothing is known."""
    longest_s = GAP_S * every(hours)
    found: dict[str, list[float | None]] = {"at": [], **{name: [] for name in _COLUMNS}}
    for place, each in enumerate(figures):
        at_s = each.at.timestamp()
        if place and at_s - figures[place - 1].at.timestamp() > longest_s:
            _append(found, at_s - 1, dict.fromkeys(_COLUMNS))
        _append(found, at_s, {name: value(each) for name, value in _COLUMNS.items()})
    return dict(found)


def _append(found: dict[str, list[float | None]], at_s: float, values: dict[str, float | None]) -> None:
    found["at"].append(at_s)
    for name, value in values.items():
        found[name].append(None if value is None else round(value, 3))
