"""A declared dashboard as Grafana's JSON, by Grafana's own library: its types are the schema."""

import itertools
import json

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from infra.grafana.panels import Dashboard, Panel, Query, Variable

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "nightshift"
HEIGHT = 8
NUMBER_HEIGHT = 4


def as_json(declared: Dashboard) -> str:
    """The file's content."""
    built = _dashboard(declared).build()
    return json.dumps(built, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _dashboard(declared: Dashboard) -> dashboard.Dashboard:
    built = (
        dashboard.Dashboard(f"Nightshift: {declared.title}")
        .uid(declared.uid)
        .description(declared.about)
        .tags([TAG])
        .timezone("browser")
        .refresh("30s")
        .time("now-3h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(_links())
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in declared.variables:
        built = built.with_variable(_variable(variable))
    ids = itertools.count(1)
    for section in declared.sections:
        built = built.with_row(dashboard.Row(section.title).id(next(ids)))
        for panel in section.panels:
            drawn = _number(panel) if panel.is_number else _graph(panel)
            built = built.with_panel(drawn.id(next(ids)))
    return built


def _links() -> dashboard.DashboardLink:
    """Links to the other dashboards, for the same time."""
    links = dashboard.DashboardLink("Nightshift").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    return links.as_dropdown(True).keep_time(True).include_vars(True)


def _variable(declared: Variable) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(declared.name)
        .label(declared.name.capitalize())
        .datasource(SOURCE)
        .query(declared.query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(text="All", value="$__all", selected=True))
    )


def _graph(declared: Panel) -> timeseries.Panel:
    panel = (
        timeseries.Panel()
        .title(declared.title)
        .description(declared.about)
        .datasource(SOURCE)
        .span(declared.width)
        .height(HEIGHT)
        .unit(declared.unit)
        .line_width(1)
        .fill_opacity(10)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    if declared.min is not None:
        panel = panel.min(declared.min)
    if declared.max is not None:
        panel = panel.max(declared.max)
    if declared.is_stacked:
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    for at, query in enumerate(declared.queries):
        panel = panel.with_target(_target(query, at).range())
    return panel


def _number(declared: Panel) -> stat.Panel:
    (query,) = declared.queries
    return (
        stat.Panel()
        .title(declared.title)
        .description(declared.about)
        .datasource(SOURCE)
        .span(declared.width)
        .height(NUMBER_HEIGHT)
        .unit(declared.unit)
        .graph_mode(BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(_target(query, 0).range())
    )


def _target(query: Query, at: int) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .datasource(SOURCE)
        .expr(query.expr)
        .legend_format(query.legend)
        .ref_id(chr(ord("A") + at))
    )
