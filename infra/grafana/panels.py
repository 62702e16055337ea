"""Declarations of dashboards, from which `build.py` makes Grafana's JSON.

What the API reads from the database is the same on every API process: `max` of it, never `sum`.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

# Grafana's names of units: https://grafana.com/docs/grafana/latest/panels-visualizations/configure-standard-options/
Unit = Literal["short", "s", "percentunit", "bytes", "Bps", "reqps", "wps", "cps"]

WIDTH_MAX: Final = 24  # columns of Grafana's grid


@dataclass(frozen=True)
class Query:
    """`legend`: with labels in `{{…}}`."""

    expr: str
    legend: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    unit: Unit
    queries: tuple[Query, ...]
    about: str = ""  # shown on hover
    is_number: bool = False  # the latest value, instead of a graph
    is_stacked: bool = False
    width: int = 8
    needs_gpu: bool = False  # without one its metrics are missing
    min: float | None = 0
    max: float | None = None


@dataclass(frozen=True)
class Section:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A choice of the reader at the top; all of it at first."""

    name: str
    query: str  # Grafana's label_values(SERIES, LABEL)


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    uid: str  # the name of its file, and part of its address
    title: str
    about: str
    sections: tuple[Section, ...]
    variables: tuple[Variable, ...] = field(default=())

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for section in self.sections for panel in section.panels)


MODEL: Final = Variable(name="model", query="label_values(nightshift_engine_busy_fraction, model)")

QUEUED: Final = "max by (kind, model, class, capacity) (nightshift_queue_queued)"


def graph(
    title: str,
    unit: Unit,
    *queries: Query,
    about: str = "",
    width: int = 8,
    is_stacked: bool = False,
    needs_gpu: bool = False,
    min: float | None = 0,
    max: float | None = None,
) -> Panel:
    return Panel(
        title=title,
        unit=unit,
        queries=queries,
        about=about,
        width=width,
        is_stacked=is_stacked,
        needs_gpu=needs_gpu,
        min=min,
        max=max,
    )


def rates(
    title: str, unit: Unit, counter: str, by: str, about: str = "", *, is_stacked: bool = False
) -> Panel:
    """A counter, with its selector, per second; by a label."""
    expr = f"sum by ({by}) (rate({counter}[$__rate_interval]))"
    return graph(title, unit, Query(expr, f"{{{{{by}}}}}"), about=about, is_stacked=is_stacked)


def number(title: str, unit: Unit, expr: str, about: str = "", width: int = 4) -> Panel:
    return Panel(title=title, unit=unit, queries=(Query(expr, ""),), about=about, width=width, is_number=True)


def quantiles(title: str, histogram: str, by: str, selector: str = "", about: str = "") -> Panel:
    """The median and the 95th percentile of a histogram of seconds, by a label."""
    rate = f"sum by (le, {by}) (rate({histogram}_bucket{selector}[$__rate_interval]))"
    return graph(
        title,
        "s",
        Query(f"histogram_quantile(0.5, {rate})", f"{{{{{by}}}}} p50"),
        Query(f"histogram_quantile(0.95, {rate})", f"{{{{{by}}}}} p95"),
        about=about,
    )
